"""Every value of `cause.what`: its title, what to do, which checks to run on the node, and its page.

Several values may share a page. Checks are ids of `gpudoctor list`; none if no node is at fault.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

_PAGES = Path(__file__).parent / "pages"
_PROGRAM = "Fix the program or its data; no machine is at fault by this."
_NCCL_AGAIN = "Run again with NCCL_DEBUG=WARN (INFO for the start) and keep the output of every rank."
_RECORDER = "Run again with TORCH_FR_BUFFER_SIZE=2000 (before torch 2.9: TORCH_NCCL_TRACE_BUFFER_SIZE) and keep the dumps of all ranks."
_STACKS = "While it hangs: py-spy dump --pid PID of every rank; the odd one out is the suspect."
_SHM = "Give /dev/shm more room: docker --shm-size=16g, or an emptyDir of medium Memory; remove left-over files there."
_IB = "Look at the port counters and cables of both ends, and whether the peer died before."
# for a cause that is unknown or only possible
COLLECT = (
    "the output of every rank, not of one alone (torchrun --log-dir DIR --redirects 3, srun -l)",
    "the kernel log of each host: dmesg -T",
    "flight recorder dumps: TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1",
    "while it hangs: py-spy dump of every rank, and ncclras",
)
_HARDWARE = ("gpu_ecc", "gpu_reset_required", "gpu_lost", "gpu_xid", "nvlink_failed", "wrong_results")
_LOOK_FIRST = (
    "Look before you drain: only the job's output says so. Read dmesg -T on that node and run the checks below there; "
    "their reports (--reports) confirm it or not.",
)


class CauseText(msgspec.Struct, frozen=True):
    """The text for one value: a title of one line, steps, checks for the node, name of the page."""

    title: str
    page: str
    steps: tuple[str, ...]
    checks: tuple[str, ...] = ()


def _c(page: str, title: str, *steps: str, checks: str = "") -> CauseText:
    return CauseText(title, page, steps, tuple(checks.split()))


CAUSES: dict[str, CauseText] = {
    "user_exception": _c("user-exception", "the program raised an exception", "Read its traceback; the last frame of your own code is named above.", _PROGRAM),
    "user_exception_all": _c("user-exception", "the program raised the same exception on all ranks", "Read one rank's traceback: it is the same everywhere.", _PROGRAM),
    "import_error": _c("import-error", "a Python module or a library could not be loaded", "Install it in the environment that the job uses; where only one host lacks it, compare images and virtual environments.", checks="env.frameworks"),
    "service_failed": _c("remote-service", "a service outside the cluster refused or did not answer", "Look at the service's status, its limits and the token; let one rank fetch, or fetch before the job (HF_HUB_OFFLINE=1 then).", "If only some hosts fail: their proxy, DNS and firewall."),
    "launch_failed": _c("launch", "the processes could not be started", "Read the sentence that is quoted: a file or command that is not there, or a refusal; no program ran yet.", "Of Slurm: slurmd's log of the node that is named, and scontrol show node."),
    "pod_not_scheduled": _c("launch", "Kubernetes found no node for the pod", "Insufficient nvidia.com/gpu: kubectl describe node: are the GPUs Allocatable (the device plugin's pod), and which pods hold them?", "unschedulable: a node is cordoned; taints: the pod has no toleration; affinity: its labels are on no node.", checks="gpu.count"),
    "container_failed": _c("launch", "a container did not start", "Read the reason in the line shown: the image and its entry point, the registry, or the NVIDIA container runtime of that host.", "Start the same image by hand on that host with nvidia-smi as command.", checks="driver.loaded driver.version-match"),
    "ssh_failed": _c("launch", "the launcher cannot reach a host over ssh", "From the host that starts the job: ssh HOST hostname, as the same user and without a password; is sshd running there, is the key in authorized_keys, is the name known?", "Hosts without ssh: let srun or a launcher on each node start the ranks (DeepSpeed: --no_ssh)."),
    "mpi_failed": _c("launch", "MPI could not start", "Compare the MPI inside and outside of the container, and --mpi=pmix; run a program without GPUs first.", "--mca pml ob1 --mca btl tcp,self, or UCX_TLS=tcp, as a test."),
    "init_hang": _c("rendezvous", "the job stands in its start, and no line says why", "Read the logs of the ranks and nodes that are missing; compare world size, node ranks and master address with what was started.", _STACKS, checks="env.nccl"),
    "duplicate_rank": _c("rendezvous", "processes disagree about who is which rank", "Compare RANK, WORLD_SIZE, node rank and master address of all processes: two claim one rank, or they were started with different world sizes.", "Look for a second job, or a left-over process, at the same address and port."),
    "config_mismatch": _c("collective-mismatch", "ranks built different models or settings", "Compare the configuration and the arguments of the odd rank with the others'."),
    "nan": _c("nan", "the numbers went wrong (NaN or infinite)", "Look at data, learning rate and precision first.", "If it comes again, always on the same GPU: run compute.exact there.", checks="compute.exact"),
    "rank_behind": _c("nccl-timeout", "a rank did not issue the collective that the others wait in", "Look at what that rank did last: its stack, its data, its host.", _STACKS, checks="train.balance gpu.xid"),
    "rank_hung": _c("nccl-timeout", "a rank hangs while the others wait for it", _STACKS, "Look at that rank's data loading, locks and files.", checks="gpu.xid driver.responsive"),
    "watchdog_stuck": _c("watchdog-stuck", "torch's NCCL watchdog itself is stuck", "Look for Xids in the kernel log of that host.", "py-spy dump --native of that rank.", checks="gpu.xid driver.responsive"),
    "collective_mismatch": _c("collective-mismatch", "the ranks run different collectives", "Look for a branch, a skipped step or uneven data before this collective.", "TORCH_DISTRIBUTED_DEBUG=DETAIL names both sides at once."),
    "timeout_too_short": _c("nccl-timeout", "the time limit for collectives is too short", "Set it to minutes: init_process_group(timeout=timedelta(minutes=30)), or the framework's option for it (ddp_timeout, dist_timeout)."),
    "timeout_all_same_seq": _c("nccl-timeout", "all ranks heard of wait in the same collective", "Read the logs of the ranks and hosts that are silent.", "If all are heard: test the network and the links between them.", _RECORDER, checks="network.infiniband collective.pairs"),
    "timeout_undecidable": _c("nccl-timeout", "a collective timed out; who is missing is not in these logs", "Collect the logs of all ranks and diagnose them together.", _RECORDER, _STACKS),
    "first_collective_hang": _c("nccl-timeout", "the first collective never ended", "See whether all ranks came: one that still loads, or died before, says nothing here.", "Try NCCL_P2P_DISABLE=1 once: if it runs then, peer-to-peer does not work here (ACS, IOMMU, container).", checks="pcie.acs link.peer host.shm"),
    "early_exit": _c("early-exit", "one rank ended normally while others still had work", "Make all ranks take the same number of steps: uneven data, early stopping decided by one rank alone."),
    "silent_exit": _c("process-died", "a rank left with an error code and no traceback", "Look for os._exit, sys.exit or a native exit; keep the stderr of that rank; decorate main with torch's @record."),
    "missing_rank": _c("nccl-timeout", "a rank never came", "Read the log of the rank and node that is missing.", _STACKS),
    "heartbeat_lost": _c("process-died", "a process sent no heartbeat: dead, or too busy to send one", "Read that process's own log: an exception or a kill before this line, or a long call (allocation of pinned memory, compilation, a checkpoint) that held it.", "dmesg -T on its host; if it only is slow, a longer heartbeat timeout of the launcher or framework.", checks="host.ram-per-gpu gpu.xid"),
    "node_lost": _c("node-lost", "a node or its agent was lost", "Read the kernel log and the BMC's event log of that node; last -x shows reboots.", checks="gpu.xid"),
    "killed_sigkill": _c("process-died", "a rank was killed by SIGKILL; by whom is not in these logs", "Read the kernel log of that host (dmesg -T) for the OOM killer, and the scheduler's log.", checks="host.ram-per-gpu"),
    "host_oom": _c("host-oom", "the memory of the host or its cgroup ran out", "Fewer or smaller data loader workers, less pinned memory; a larger memory request.", "Watch the memory of the ranks over time: a leak grows.", checks="host.ram-per-gpu"),
    "host_alloc_failed": _c("host-oom", "an allocation of host memory failed", "Compare the size asked for with the RAM: a wrong shape, or no memory left.", checks="host.ram-per-gpu"),
    "segfault": _c("process-died", "a rank crashed (SIGSEGV)", "Run with PYTHONFAULTHANDLER=1 and keep a core dump; look at native extensions.", checks="gpu.xid"),
    "segfault_all": _c("process-died", "all ranks crashed at once: a common cause in native code", "Look at what changed: libraries, environment variables, native extensions."),
    "sigbus": _c("shared-memory", "a rank died of SIGBUS", _SHM, checks="host.shm"),
    "process_died_unknown": _c("process-died", "a process vanished without an error of its own", "Read the kernel log (dmesg -T) and the launcher's own log on that host.", checks="host.ram-per-gpu gpu.xid"),
    "terminated_signal": _c("ended-from-outside", "the job was ended by a signal from outside", "Ask the scheduler, the cloud or the user: preemption, scancel, a closed terminal."),
    "time_limit": _c("ended-from-outside", "the time limit of the job was reached", "If it moved until then: ask for more time, or write checkpoints before the limit (sbatch --signal).", "If it stood still before, more time does not help: what it waited for is the question. gpudoctor diagnose --follow tells a stall while it happens."),
    "preempted": _c("ended-from-outside", "the job was preempted or requeued", "See that it starts again (squeue, sacct -D); write checkpoints on SIGTERM."),
    "evicted": _c("ended-from-outside", "Kubernetes evicted the pod", "Read kubectl describe pod: memory, disk or a drain of the node."),
    "cancelled": _c("ended-from-outside", "the job was cancelled", "By a user or by the end of its step; see sacct."),
    "cuda_oom": _c("cuda-oom", "GPU memory ran out", "Smaller batch or sequence, activation checkpointing, sharding: gpudoctor plan tells what fits.", "If its own words say that gibibytes are reserved but unallocated: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.", "Look who else uses the GPU.", checks="gpu.in-use train.memory"),
    "cuda_illegal_access": _c("cuda-error", "a GPU kernel touched memory that is not its own", "CUDA_LAUNCH_BLOCKING=1 (ROCm: AMD_SERIALIZE_KERNEL=3) shows the true place; compute-sanitizer finds the access.", "A bug of a kernel nearly always; Xid 31 in the kernel log belongs to it.", checks="gpu.xid"),
    "cuda_device_assert": _c("cuda-error", "an index or label is out of range on the GPU", "Compare labels and indices with the number of classes or the vocabulary; run one batch on the CPU."),
    "cuda_system_not_ready": _c("fabric", "the NVSwitch fabric is not up (CUDA 802)", "Start nvidia-fabricmanager in the driver's own version.", checks="nvlink.fabric"),
    "cuda_driver_mismatch": _c("driver", "driver library and kernel module do not fit", "Reboot after an update, or align the versions; remove a compat library from the container.", checks="driver.version-match"),
    "cuda_driver_too_old": _c("driver", "the driver is too old for this CUDA runtime", "Update the driver, or install a build for the CUDA version that the driver has (\"found version 11040\" is CUDA 11.4).", checks="driver.version-match env.torch"),
    "cuda_no_kernel_image": _c("driver", "this build has no kernels for the GPU", "Install a build of torch, or of the library whose kernel failed, for the GPU's compute capability: torch.cuda.get_arch_list() against torch.cuda.get_device_capability().", checks="env.torch"),
    "cuda_not_supported": _c("driver", "the driver or this virtual GPU lacks what CUDA or NCCL asks for", "A newer driver or an older NCCL; on vGPU see its limits.", checks="env.torch driver.version-match"),
    "cuda_init_failed": _c("driver", "CUDA does not work on this GPU: it could not start, or failed with an unknown error", "Look for left-over processes and Xids; try a small CUDA program on that GPU.", checks="gpu.lost gpu.xid driver.responsive"),
    "cuda_busy": _c("driver", "the GPU is busy or in exclusive mode", "Find the process that holds it; look at the compute mode.", checks="gpu.in-use gpu.settings"),
    "cuda_launch_failure": _c("cuda-error", "a CUDA kernel died", "Xids of that time decide between program and card.", "CUDA_LAUNCH_BLOCKING=1, compute-sanitizer.", checks="gpu.xid compute.pattern"),
    "gpu_isolated": _c("driver", "the process sees no such GPU", "Compare CUDA_VISIBLE_DEVICES, the container's devices and the number of ranks.", checks="env.cuda-visible-devices gpu.count"),
    "gpu_ecc": _c("gpu-fault", "the memory of a GPU failed (uncorrectable ECC)", "Drain the node, reset the GPU; replace it if it comes again.", checks="gpu.ecc gpu.memory-repair"),
    "nvlink_failed": _c("gpu-fault", "an access over NVLink failed: the link or the other GPU", "Read the kernel logs of all nodes of that NVLink domain: Xids 74 and 144 to 150, SXids.", "Drain the node, reset its GPUs; replace what comes again.", checks="nvlink.errors nvlink.links nvlink.fabric gpu.xid"),
    "gpu_lost": _c("gpu-fault", "a GPU no longer answers", "Drain the node and power-cycle it; reseat the card if it comes again.", checks="gpu.lost pcie.errors"),
    "gpu_reset_required": _c("gpu-fault", "a GPU must be reset before it works again", "Drain the node and reset the GPU; read the kernel log for why.", checks="gpu.lost gpu.xid"),
    "kernel_hang": _c("gpu-fault", "a process or processor hangs in the kernel", "Read the call trace below that line: nvidia functions mean the driver, those of nfs or lustre the file system.", checks="gpu.xid driver.responsive"),
    "gpu_xid": _c("gpu-fault", "the driver reported a fault of a GPU (Xid)", "See gpudoctor explain gpu.xid for the code.", checks="gpu.xid"),
    "nccl_cuda_unknown": _c("nccl-error", "a CUDA call of NCCL failed; which call, is not in this text", _NCCL_AGAIN, checks="gpu.xid env.torch"),
    "nccl_unknown": _c("nccl-error", "NCCL failed; why is not in this text", _NCCL_AGAIN),
    "gpu_peer_access": _c("nccl-error", "two GPUs could not open each other's memory", "More than 8 GPUs in one process: CUDA's limit; use one process for each GPU.", "Else let each process see all GPUs of the node (no CUDA_VISIBLE_DEVICES of its own), and share the IPC and PID namespaces between containers.", "NCCL_P2P_DISABLE=1 as a test.", checks="link.peer pcie.acs"),
    "tpu_init_failed": _c("driver", "the TPU runtime could not start", "Another process may hold the chips (lsof /dev/accel*), or the container may not open them.", "Compare the worker addresses in the environment (TPU_PROCESS_ADDRESSES, TPU_WORKER_HOSTNAMES) with the workers."),
    "tpu_fault": _c("gpu-fault", "a TPU chip reported a fatal error", "Take that host out of the job and replace it if it comes again."),
    "accelerator_error": _c("gpu-fault", "an accelerator's runtime or its communication library reported an error", "Read the line that is shown; the vendor's own tool has the state of the device (npu-smi, rocm-smi, xpu-smi, hl-smi): gpudoctor judges NVIDIA GPUs only.", "Look for processes of an earlier run that still hold the device."),
    "nvls_failed": _c("fabric", "NVLink SHARP memory could not be bound", "Restart the fabric manager or reset the node; meanwhile NCCL_NVLS_ENABLE=0.", checks="nvlink.fabric nvlink.links"),
    "imex_mnnvl": _c("fabric", "memory over multi-node NVLink could not be shared", "Look at the IMEX daemon and at /dev/nvidia-caps-imex-channels in the container; meanwhile NCCL_MNNVL_ENABLE=0.", checks="nvlink.fabric"),
    "ib_completion_error": _c("infiniband", "a request over InfiniBand or RoCE got no answer", _IB, checks="network.infiniband"),
    "ib_qp_setup_failed": _c("infiniband", "two network cards do not reach each other", "Check GID index, VLAN and MTU, rails (NCCL_CROSS_NIC=0), and whether a port is down.", checks="network.infiniband"),
    "ib_access_error": _c("infiniband", "a network card was refused access to memory, its own host's or the peer's", "GPUDirect RDMA: nvidia_peermem or DMA-BUF must fit driver and kernel; switch ACS and the IOMMU off. NCCL_NET_GDR_LEVEL=LOC as a test: if it runs then, it was that.", "The same versions of NCCL and of its network plugin on both ends.", checks="network.infiniband pcie.acs"),
    "efa_not_found": _c("infiniband", "no EFA device was found in this host or container", "fi_info -p efa on that host and in the container: the instance type and its network interfaces, the efa kernel module, /dev/infiniband.", "NCCL takes sockets without it: slow.", checks="network.infiniband"),
    "ib_port_error": _c("infiniband", "a port or adapter of this host failed", "Look at the cable, the switch port and the kernel log (mlx5_core) of this host; ibstat, mlxlink.", _IB, checks="network.infiniband"),
    "ib_device_refused": _c("infiniband", "an InfiniBand device could not be opened: NCCL takes sockets there", "Give the container /dev/infiniband and the memlock limit; compare the drivers inside and outside.", checks="network.infiniband host.limits"),
    "ib_memlock": _c("infiniband", "the network card could not pin memory", "ulimit -l unlimited: in the container, in slurmd's and systemd's limits.", checks="host.limits"),
    "ib_registration_failed": _c("infiniband", "the network card could not register GPU memory", "modprobe nvidia_peermem, or a kernel and driver with DMA-BUF.", checks="network.infiniband"),
    "ofi_error": _c("infiniband", "libfabric (EFA) failed towards a peer", "Compare versions of EFA, libfabric and aws-ofi-nccl on both ends; read the peer's log; NCCL_NET=Socket as a test."),
    "bootstrap_connect_failed": _c("bootstrap", "a rank could not connect to a peer", "Check which interface it took (NET/Socket : Using): set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME; open the firewall between the nodes.", checks="env.nccl"),
    "bootstrap_no_interface": _c("bootstrap", "no network interface was found that may be used", "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names none that exists here, or none is up.", checks="env.nccl"),
    "connect_stale": _c("rendezvous", "a rank could not connect to the address of another", "After a restart: old addresses in the store; diagnose the first attempt."),
    "iommu": _c("fabric", "the IOMMU stands between the GPUs", "Boot with iommu=pt; switch ACS off.", checks="pcie.acs"),
    "rendezvous_unreachable": _c("rendezvous", "the master address does not answer as a rendezvous", "Check MASTER_ADDR, port, DNS and firewall; see what listens there."),
    "rendezvous_timeout": _c("rendezvous", "the rendezvous was not complete in time", "Read the log of the node that is missing; compare --nnodes with what was started; after a crash take a new port or init file."),
    "rendezvous_closed": _c("rendezvous", "the rendezvous was closed before this agent came", "Read the logs of the other nodes: one had ended or failed.", "A new --rdzv-id for each start; with etcd the old one stays closed."),
    "port_in_use": _c("rendezvous", "the port is taken", "ss -ltnp shows by whom: a left-over process or a second job; or choose another port."),
    "shm_too_small": _c("shared-memory", "/dev/shm is full or too small for NCCL", _SHM, checks="host.shm"),
    "shm_too_small_loader": _c("shared-memory", "/dev/shm is full or too small for the data loader", _SHM, "Or fewer data loader workers.", checks="host.shm"),
    "shm_permission": _c("shared-memory", "/dev/shm may not be written", "chmod 1777 /dev/shm, or the mount's options.", checks="host.shm"),
    "loader_worker_killed": _c("loader", "a data loader worker died", "Look for the OOM killer in the kernel log of that host; run with num_workers=0 to see its error.", checks="host.ram-per-gpu host.shm"),
    "limit_nproc": _c("limits", "no more processes or threads could be made", "Raise ulimit -u and the cgroup's pids.max; fewer data loader workers; OMP_NUM_THREADS=1.", checks="host.limits"),
    "limit_nofile": _c("limits", "too many open files", "Raise ulimit -n, or torch.multiprocessing.set_sharing_strategy('file_system').", checks="host.limits"),
    "disk_full": _c("storage", "the file system is full, or a quota is used up", "df -h and df -i of the path that is named; the quota."),
    "checkpoint_not_written": _c("storage", "a checkpoint could not be written", "df -h, df -i and the quota of that folder; does it exist on every node, and may this user write there?", "Make the folder before the job, on rank 0 alone, and let the others wait."),
    "file_damaged": _c("storage", "a file is damaged or incomplete", "Compare its size and checksum; take the checkpoint before it: a job that dies while it writes leaves such a file.", "If it happens to new files: the mount and the kernel log of that host."),
    "fs_readonly": _c("storage", "the file system is read-only", "Look at the mount and the kernel log of that host."),
    "stale_nfs": _c("storage", "a file handle of a network file system went stale", "Remount; see whether the server was restarted or the folder was removed."),
    "fs_error": _c("storage", "the file system failed", "Look at the mount and the kernel log of that host."),
    "nccl_size_mismatch": _c("collective-mismatch", "NCCL got another size than it expected", "Equal calls and equal NCCL_* settings on all ranks.", checks="env.nccl"),
    "nccl_invalid_usage": _c("nccl-error", "NCCL refused a call (nearly always two ranks on one GPU)", "torch.cuda.set_device(local_rank) before the first collective; no more ranks than GPUs.", _NCCL_AGAIN, checks="env.cuda-visible-devices"),
    "nccl_lib_mismatch": _c("nccl-error", "different versions of NCCL are mixed", "One libnccl for all: LD_LIBRARY_PATH, wheels of several CUDA versions.", checks="env.torch"),
    "nccl_lib_missing": _c("nccl-error", "the NCCL library is not there", "Install it in the environment of the job (nvidia-nccl-cu12, or a build with NCCL), and put its folder into LD_LIBRARY_PATH.", checks="env.torch env.nccl"),
    "nccl_topology": _c("nccl-error", "NCCL could not read the topology of the machine", "Look at /sys in the container: NCCL needs the PCI devices of GPUs and network cards there.", "Run with NCCL_TOPO_DUMP_FILE and look at the node that is named; leave that card out (NCCL_IB_HCA, NCCL_SOCKET_IFNAME), or correct NCCL_TOPO_FILE.", _NCCL_AGAIN, checks="env.nccl network.infiniband"),
    "wrong_results": _c("nccl-error", "a collective gave wrong results", "Drain these nodes: what they compute together is wrong. Test each node alone, then pairs of GPUs.", "NCCL_P2P_DISABLE=1, then NCCL_IB_DISABLE=1, show the path at fault; look at ACS and the IOMMU.", checks="compute.exact collective.pairs link.peer pcie.acs"),
    "duplicate_gpu": _c("nccl-error", "two ranks use one GPU", "torch.cuda.set_device(local_rank); no more ranks per node than GPUs.", checks="env.cuda-visible-devices"),
    "victims_only": _c("victims-only", "only ranks speak that lost another one", "Read the log of rank 0 (it holds the store) and of the ranks that are silent."),
    "launcher_table_only": _c("victims-only", "only the launcher speaks: exit codes, no errors", "Keep the stderr of each rank: torchrun --log-dir DIR --redirects 3 --tee 3, srun -l; decorate main with torch's @record."),
    "unknown_error": _c("unknown-error", "the last error is in words that gpudoctor does not know", "Read the line that is shown, and what stands before it."),
    "failed_saying": _c("failed-saying", "a program failed, and this is what it said", "Read the sentence that is quoted: no rule knows it, but it is the first that the job did not outlive.", "Then what stands right before it in that log."),
    "stalled": _c("nccl-timeout", "the job stands still, and no line says why", _STACKS, "ncclras shows who launched fewer operations (NCCL 2.24 and newer)."),
    "recovered": _c("ended-from-outside", "an attempt failed, and a later one ended well", "Nothing to do for this job; the first attempt's cause is named above."),
}  # fmt: skip


def text_of_cause(what: str) -> CauseText:
    """The text for a value of `cause.what`; a plain one for a value without a row."""
    return CAUSES.get(what) or CauseText(what.replace("_", " "), "victims-only", ())


def steps_for(what: str, confidence: str) -> tuple[str, ...]:
    """What to do; what only a job's own output says of hardware is looked at before a node is drained for it."""
    return _LOOK_FIRST if what in _HARDWARE and confidence != "certain" else text_of_cause(what).steps


def page_names() -> list[str]:
    """Names of the pages, as `gpudoctor explain diagnose.NAME` takes them."""
    return sorted(path.stem for path in _PAGES.glob("*.md"))


def page_of(name: str) -> str | None:
    """The page with this name, or of this value of `cause.what`; None if there is none."""
    page = name.removeprefix("diagnose.").replace("_", "-")
    word = CAUSES.get(page.replace("-", "_"))
    if page not in page_names():
        page = word.page if word else ""
    return (_PAGES / f"{page}.md").read_text(encoding="utf-8") if page else None
