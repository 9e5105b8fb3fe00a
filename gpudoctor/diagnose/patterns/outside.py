"""Tables of patterns: the lines of those who run a job (kernel, schedulers, container runtimes, launchers)."""

from __future__ import annotations

from gpudoctor.diagnose.patterns.rows import rows

# Messages of a kernel log that `facts.kernel_log` does not read: processes that were killed or crashed
KERNEL = rows(
    ("host_oom", "killed process", r"Killed process (?P<pid>\d+) \((?P<name>[^)]{0,64})\)", "cause", 3),
    ("host_oom", "invoked oom-killer|oom-kill:", r"(?P<name>\S{1,64}) invoked oom-killer: |oom-kill:constraint=\w+,.{0,800}?,pid=(?P<pid>\d+)", "cause", 3),
    ("segfault", "segfault at", r"\[(?P<pid>\d+)\]: segfault at", "exit", 2),
    ("kernel_hang", "blocked for more than|lockup", r"INFO: task \S{1,64}:(?P<pid>\d+) blocked for more than \d+ seconds|BUG: soft lockup - CPU#\d+ stuck for \d+s|Watchdog detected hard LOCKUP", "echo", 1, False),
)  # fmt: skip

# Jobs ended by Slurm, Kubernetes or the host. Sources: slurmstepd and srun of 22.05 to 24.11, kubelet, the kernel
ENDINGS = rows(
    ("time_limit", "time limit", r"CANCELLED AT \S+ DUE TO TIME LIMIT|DUE TO TIME LIMIT", "ending", 3, False),
    ("preempted", "preempt", r"DUE TO PREEMPTION|preempted JobId=\d+ has been|Preempted in order to admit|reason: Preempted|Reason: +Preempted|(?<![Ii]f the )actor's node was preempted:|DRAIN_NODE_REASON_PREEMPTION|PreemptionByScheduler", "ending", 3, False),
    ("preempted", "preempted by|requeue", r"\bPreempted by (?:pod )?\S+ on node (?P<node>[\w.-]+)|CANCELLED AT \S+ DUE TO JOB REQUEUE", "ending", 3, False),
    # submitit's handler; it requeues the job in both cases
    ("preempted", "preempted", r"Caught signal SIG\w{1,9} on \S{1,253}: this job is preempted", "ending", 3, False),
    # of a script's check before the job, or of the job: a known launcher, and no work behind it
    ("time_limit", "sending signal", r"^timeout: sending signal (?:TERM|KILL|INT|HUP)\S* to command .(?:\S*/)?(?:python[\d.]*|torchrun|srun|mpirun|mpiexec|deepspeed|accelerate|horovodrun|bash|sh|\S*(?:train|launch|run)\S*\.(?:sh|py))\W*$", "ending", 2, False),
    ("wrapper", "sending signal", r"^timeout: sending signal \w+ to command", "said", 1, False),
    ("time_limit", "timed-out", r"Caught signal SIG\w{1,9} on \S{1,253}: this job is timed-out", "ending", 3, False),
    ("node_lost", "node failure|due to failure of node", r"DUE TO NODE FAILURE|Node failure on (?:(?P<host>[\w.-]+)(?![\w.\[,-]))?|due to failure of node (?P<node>\w[\w.-]*)", "ending", 3, False),
    ("node_lost", "not responding", r"error: Nodes (?:(?P<host>[\w.-]+)|\S+) not responding", "ending", 3, False),
    ("node_lost", "node is not ready", r"Node is not ready", "ending", 2, False),
    ("cancelled", "cancelled at", r"\*\*\* (?:JOB|STEP) \S+ ON (?P<on>\S+) CANCELLED AT \S+ \*\*\*", "ending", 1, False),
    ("cancelled", "scancel", r"(?i)cancelled.{0,200}scancel", "ending", 1, False),
    ("host_oom", "oom|out of memory", r"Detected \d+ oom[-_]kill event(?:\(s\)|s)? in (?:StepId|JobId|step)|(?:srun|slurmstepd[\w.\[\]-]{0,80}): error: (?P<host>[\w.-]+): tasks? (?P<tasks>[\d,\-]+): Out Of Memory|OOMKilled", "cause", 3),
    ("host_oom", "memory", r"(?:task\(s\)|workers?) (?:was|were|is) killed (?:due to|because of) the node running low on memory|ray\.exceptions\.OutOfMemoryError", "cause", 3),
    ("host_oom", "memory pressure|oom killer", r"[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure|actors\) killed due to memory pressure \(OOM\), 0 Workers crashed|has been killed by the OOM killer", "cause", 3),
    ("host_oom", "memory limit", r"[Ee]xceeded job memory limit|memory limit.{0,40}being killed", "cause", 3),
    # PBS and Moab, LSF, Grid Engine, HTCondor
    ("time_limit", "limit", r"job exceeded wallclock limit|PBS: job killed: walltime \S+ exceeded limit|TERM_RUNLIMIT: job killed|exceeds job hard limit \"[hs]_rt\"", "ending", 3, False),
    ("host_oom", "limit", r"exceeded MEM usage hard limit|PBS: job killed: v?mem\w* .{0,40}exceeded limit|TERM_MEMLIMIT: job killed|gone over memory limit|exceeds job hard limit \"[hs]_(?:vmem|rss|data)\"", "cause", 3, False),
    ("host_oom", "request_memory", r"memory usage exceeded request_memory", "cause", 3, False),
    ("preempted", "term_preempt", r"TERM_PREEMPT: job killed", "ending", 3, False),
    ("cancelled", "job deleted at request", r"^Job deleted at request of \S+", "ending", 1, False),
    ("evicted", "evict|tionby|low on resource", r"(?:Reason|reason|status|Status)\W{1,40}Evicted|Pod was evicted|TerminationByKubelet|EvictionByEvictionAPI|DeletionByTaintManager|The node was low on resource", "ending", 3, False),
    ("terminated_signal", "death signal", r"Received (?:(?P<signal>\d+)|Signals\.(?P<name>SIG\w+)) death signal", "ending", 2, False),
    ("terminated_signal", "main process received|got signal", r"Main process received (?P<name>SIG\w+), exiting|SignalException: Process (?P<pid>\d+) got signal: (?P<signal>\d+)", "ending", 2, False),
)  # fmt: skip

# Processes that were never started. Sources: srun, pyxis and enroot, the container runtimes, the kubelet, Open MPI, ssh
# (alone, or as the remote shell of pdsh, mpirun and DeepSpeed's launcher)
STARTS = rows(
    ("ssh_failed", "ssh: connect to host", r"ssh: connect to host (?P<host>\S{1,253}) port \d+: \w[\w ]+", "cause", 3, False),
    ("ssh_failed", "resolve hostname", r"ssh: Could not resolve hostname (?P<host>[^\s:]{1,253})", "cause", 3, False),
    # not the start of a rank
    ("cause", "permission denied", r"\b(?:git@[\w.-]{1,253}|sudo): Permission denied", "said", 1, False),
    ("ssh_failed", "permission denied", r"(?:(?<![\w.-])(?P<host>[\w.-]{1,253}): )?Permission denied(?:, please try again| \((?:publickey|password|gssapi|keyboard|hostbased))", "cause", 3, False),
    ("ssh_failed", "host key verification|via ssh", r"Host key verification failed|host=(?P<host>\S{1,253}) was not reachable via ssh", "cause", 3, False),
    ("ssh_failed", "ssh -o passwordauthentication", r"Command '?\[?'?ssh -o PasswordAuthentication=no .{0,80}?(?P<host>\S{1,253}) hostname' returned non-zero exit status", "cause", 3, False),
    ("ssh_failed", "exited with exit code 255", r"pdsh@\S{1,253}: (?P<host>\S{1,253}): ssh exited with exit code 255", "cause", 2, False),
    ("ssh_failed", "_exchange_identification", r"(?:kex|ssh)_exchange_identification: (?:Connection closed|read:)", "cause", 3, False),
    ("launch_failed", "task launch", r"Task launch for \S+ failed on node (?P<host>[\w.-]+): (?!No such process)", "cause", 3, False),
    ("launch_failed", "launch", r"srun: error: (?:Task launch for \S+ failed on node|Application launch failed)", "cause", 2, False),
    ("launch_failed", "execve()|command not found", r"slurmstepd[\w.\[\]-]{0,80}: error: execve\(\): |\b(?:torchrun|python3?|deepspeed|accelerate|srun|mpirun|mpiexec|horovodrun|ray): command not found", "cause", 3, False),
    ("launch_failed", "failed|can't open file", r"sbatch: error: Batch job submission failed|\b(?:srun|salloc|sbatch): error: (?:Munge encode failed|Job submit/allocate failed)|^\S*python[\d.]*: can't open file ", "cause", 3, False),
    ("import_error", "shared|not found (required by", r"error while loading shared libraries: |version `\S{1,80}' not found \(required by ", "cause", 3),
    ("launch_failed", "fatal:", r"\b(?:srun|salloc|sbatch): fatal: ", "cause", 3, False),
    # the kubelet may place it later: "Started container"
    ("pod_not_scheduled", "nodes are available", r"\b(?P<pod>\d+/\d+ nodes are available): ", "cause", 2, False),
    ("launch_failed", "unable to", r"(?:srun|salloc|sbatch): error: Unable to (?:create step|allocate resources|confirm allocation)", "cause", 2, False),
    ("container_failed", "enroot", r"enroot-\w+: (?:failed|could not|command not found)|\[ERROR\] /etc/enroot/", "cause", 3, False),
    ("cuda_driver_mismatch", "version mismatch", r"nvml error: driver/library version mismatch", "cause", 3, False),
    ("container_failed", "nvidia-container-cli", r"nvidia-container-cli: \w[\w ]{0,40}error:", "cause", 3, False),
    ("container_failed", "error response from daemon", r"docker: Error response from daemon: ", "cause", 2, False),
    ("container_failed", "oci runtime", r"OCI runtime (?:create|exec|start) failed|OCI runtime error", "cause", 3, False),
    ("container_failed", "pyxis|spank", r"error: pyxis: (?:couldn't|container start failed|failed to|child \d+ failed)|error: (?:spank: required plugin \S+: \w+\(\) failed|Failed to invoke spank plugin)", "cause", 2, False),
    ("container_failed", "fatal:", r"FATAL: {1,9}(?:container creation failed|[Uu]nable to (?:open|build|handle|pull)|could not open image|While (?:making|performing|checking|getting|building))", "cause", 3, False),
    ("container_failed", "errimage", r"\b(?P<pod>ErrImagePull|ErrImageNeverPull)\b", "cause", 2, False),
    ("container_failed", "container", r"\b(?P<pod>CreateContainer(?:Config)?Error|RunContainerError)\b", "cause", 2, False),
    ("container_failed", "image", r"\b(?P<pod>ImagePullBackOff|InvalidImageName)\b", "cause", 2, False),
    ("unstuck", "normal|running", r"Normal +Started .{0,120}(?:Started container|Container started)|^Status: +Running\s*$", "progress", 2, False),
    ("scheduled", "successfully assigned", r"Successfully assigned \S{1,253} to ", "fact", 1, False),
    ("mpi_failed", "_init", r"An error occurred in MPI_Init|[Ll]ocal abort before MPI_INIT completed|It looks like \w{2,30}_(?:INIT|init) failed", "cause", 3, False),
    # MPICH and what is built on it; a fatal error in another call has a cause of its own
    ("mpi_failed", "mpi_init", r"Abort\(\d+\)(?: on node \d+)? \(rank (?:0|(?P<task_rank>[1-9]\d{0,5})) in comm \d+\): Fatal error in P?MPI_Init", "cause", 3),
    ("mpi_failed", "rte |slots", r"(?:ORTE|PRTE) was unable to|An? ORTE daemon has unexpectedly failed|There are not enough slots available in the system", "cause", 3, False),
    ("mpi_failed", "was unable to", r"(?:mpirun|prterun|mpiexec) was unable to (?:find|launch|start)", "cause", 3, False),
    ("node_lost", "remote daemon", r"Remote daemon: \S+ on node (?P<node>[\w.-]+)", "ending", 3, False),
)  # fmt: skip
