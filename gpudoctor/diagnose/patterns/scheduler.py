"""Jobs ended by Slurm, Kubernetes or the host. Sources: slurmstepd and srun of 22.05 to 24.11, kubelet, the kernel."""

from __future__ import annotations

from gpudoctor.diagnose.patterns.model import rows

ENDINGS = rows(
    ("time_limit", "time limit", r"CANCELLED AT \S+ DUE TO TIME LIMIT|DUE TO TIME LIMIT", "ending", 3, False),
    ("preempted", "preempt", r"DUE TO PREEMPTION|preempted JobId=\d+ has been|Preempted in order to admit|reason: Preempted|Reason: +Preempted", "ending", 3, False),
    ("node_lost", "node failure", r"DUE TO NODE FAILURE|Node failure on (?P<host>[\w.\[\],-]+)|due to failure of node (?P<node>\w[\w.-]*)", "ending", 3, False),
    ("node_lost", "not responding", r"error: Nodes (?P<host>[\w.\[\],-]+) not responding", "ending", 3, False),
    ("node_lost", "node is not ready", r"NodeNotReady|Node is not ready|NodeLost", "ending", 2, False),
    ("cancelled", "cancelled at", r"\*\*\* (?:JOB|STEP) \S+ ON (?P<on>\S+) CANCELLED AT \S+ \*\*\*", "ending", 1, False),
    ("cancelled", "cancelled", r"REQUEST_KILL_JOB JobId=\d+ uid|scancel", "ending", 1, False),
    ("host_oom", "oom", r"Detected \d+ oom[-_]kill event(?:\(s\)|s)? in (?:StepId|JobId|step)", "cause", 3),
    ("host_oom", "out of memory", r"(?:srun|slurmstepd\S*): error: (?P<host>[\w.-]+): tasks? (?P<tasks>[\d,\-]+): Out Of Memory", "cause", 3),
    ("host_oom", "oomkilled", r"OOMKilled", "cause", 3),
    ("host_oom", "memory", r"(?:task\(s\)|workers?) (?:was|were|is) killed (?:due to|because of) the node running low on memory|ray\.exceptions\.OutOfMemoryError", "cause", 3),
    ("host_oom", "memory pressure", r"[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure|actors\) killed due to memory pressure \(OOM\), 0 Workers crashed", "cause", 3),
    ("host_oom", "exceeded job memory limit", r"[Ee]xceeded job memory limit|memory limit.{0,20}being killed", "cause", 3),
    ("evicted", "evict", r"(?:Reason|reason|status|Status)\W{1,40}Evicted|The node was low on resource|Pod was evicted", "ending", 3, False),
    ("terminated_signal", "death signal", r"Received (?:(?P<signal>\d+)|Signals\.(?P<name>SIG\w+)) death signal", "ending", 2, False),
    ("terminated_signal", "got signal", r"SignalException: Process (?P<pid>\d+) got signal: (?P<signal>\d+)", "ending", 2, False),
    ("terminated_signal", "keyboardinterrupt", r"^KeyboardInterrupt\b", "ending", 1, False),
)  # fmt: skip
