"""Tables of patterns: warnings of NCCL and its network plugins, and errors of torch that wrap them."""

from __future__ import annotations

from gpudoctor.diagnose.patterns.rows import rows

# Warnings of NCCL 2.7 and newer, printed directly or by torch after "Last error:". Source: NCCL's src
NCCL = rows(
    ("nvls_failed", "nvl", r"Failed to bind NVLink SHARP|NVLS.{0,40}(?:[Ff]ailed to|CUDA error)|transport/nvls\.cc:\d+ .{0,60}NCCL WARN Cuda failure "
     r"(?:1\b|401|'invalid argument|'the operation cannot)"),
    ("imex_mnnvl", "mnnvl", r"MNNVL.{0,80}(?:not working|failed|error)|[Cc]uda failure 800 .{0,60}mnnvl"
     r"|mnnvl\.cc.{0,80}NCCL WARN"),
    ("imex_mnnvl", "imex|not_permitted|800", r"IMEX (?:channel|daemon|domain).{0,60}(?:not|fail|missing)|CUDA_ERROR_NOT_PERMITTED.{0,40}fabric|Cuda failure 800 'operation not permitted'"),
    # a flushed request (5) follows from the first error of its queue
    ("ib_flushed", "completion", r"Got completion .{0,120}(?:with error|status[= ]*)(?: |\w+\()?5\b", "victim"),
    # an access that the adapter refused (IBV_WC_LOC_PROT_ERR, LOC_ACCESS_ERR, REM_ACCESS_ERR): its view of memory, no cable
    ("ib_access_error", "completion",
     r"Got completion (?:from peer (?P<peer>[^ <]{1,80})\S*)?.{0,60}(?:with error|status[= ]*)(?: |\w+\()?(?P<status>4|8|10)\b",
     "cause", 2, False),
    ("ib_access_error", "error on ", r"\b(?:Remote access|Local protection|Local access) error on \w+:\d", "cause", 2, False),
    ("ib_completion_error", "completion",
     r"Got completion (?:from peer (?P<peer>[^ <]{1,80})\S*)?.{0,60}(?:with error|status[= ]*)(?: |\w+\()?(?P<status>12|9|11|13)\b",
     "echo", 2, False),
    ("ib_completion_error", "completion",
     r"Got completion (?:from peer (?P<peer>[^ <]{1,80})\S*)?.{0,60}(?:with error|status[= ]*)(?: |\w+\()?(?P<status>\d+)\b",
     "cause", 2, False),
    # UCX
    ("ib_completion_error", "retry count exceeded| error on ", r"\b[Rr]etry count exceeded on \w+:\d|\b(?:Remote|Local) (?:operation|length|QP operation|invalid request) error on \w+:\d", "echo", 2, False),
    ("ib_completion_error", "transport retry", r"transport retry counter exceeded", "echo", 2, False),
    # an event of this host's own adapter; those of a change (GID table, LID, port active) do no harm
    ("ib_port_error", "async", r"NET/IB ?: .{0,80}async (?:fatal |error )?event ?: ?(?:port error|local catastrophic error)", "echo", 3, False),
    ("ib_completion_error", "async", r"NET/IB ?: .{0,80}async (?:fatal event|(?:error )?event ?: ?.{0,60}\berror)", "echo", 2, False),
    # NCCL takes sockets then: slow, and a hang if other hosts take InfiniBand
    ("ib_device_refused", "open", r"ibv_open_device failed|NET/IB ?: Unable to open device \S+", "echo", 1, False),
    ("ib_qp_setup_failed", "ibv_modify_qp", r"ibv_modify_qp failed"),
    # NVSHMEM, DeepEP, UCCL, perftest
    ("ib_qp_setup_failed", "to modify|ibv_create_qp", r"[Ff]ailed to modify (?:the )?QP\b.{0,30}? to (?:INIT|RTR|RTS)|ibv_create_qp failed"),
    ("ib_qp_setup_failed", "nvshmem", r"nvshmem.{0,200}(?:Error in mlx5dv_devx_obj_modify|ibgda_\w+ failed|ep_connect failed|connect EPS failed|setup connections failed)"),
    ("ib_qp_setup_failed", "devx_obj_modify", r"Error in mlx5dv_devx_obj_modify for (?:INIT2RTR|RTR2RTS)"),
    ("ib_memlock", "ibv_", r"ibv_(?:reg_mr\w{0,20}|create_cq|create_qp)(?:\(\))? failed.{0,60}Cannot allocate memory"),
    ("ib_registration_failed", "ibv_reg", r"ibv_reg_\w{0,20}mr\w{0,20} failed.{0,40}(?:Bad address|Invalid argument|Operation not permitted|Input/output)"),
    # the plugin of EFA found no device in this host or container
    ("efa_not_found", "provider efa", r"libfabric:.{0,200}provider efa\S* output empty list", "echo", 1, False),
    ("efa_not_found", "net/ofi", r"NET/OFI .{0,120}(?:No eligible providers|Unable to find a protocol that worked|fi_getinfo\S* .{0,60}No data available)",
     "cause", 2, False),
    ("ofi_error", "net/ofi", r"NET/OFI .{0,200}(?:RC: |[Uu]nable to|[Ff]ailed|err(?:or|no)?\b|Request .{0,40}completed with error)",
     "cause", 2, False),
    ("ofi_error", "peer host id", r"Peer host id: \S+", "cause", 2, False),
    ("shm_permission", "permission denied", r"(?:shm_open|/dev/shm/|shared memory segment).{0,160}[Pp]ermission denied"),
    ("shm_too_small", "posix_fallocate", r"posix_fallocate failed ?: ?No space left"),
    ("shm_too_small", "shared memory segment|posix_fallocate", r"creating shared memory segment \S*(?P<segment>nccl-\S+)|posix_fallocate failed", "cause", 2),
    # nccl-tests: the sum of its check, and rows with a count in the column "#wrong" (older ones have an error there)
    ("wrong_results", "out of bounds values", r"# Out of bounds values : [1-9]\d* FAILED", "cause", 3, False),
    ("wrong_results", " ", r"^\s*\d+ +\d+ +(?:float|half|double|bfloat16|u?int\d+|f?p?8\w*) +(?:[a-z]+ +)?(?:-?\d+ +)?(?:[\d.]+ +){3}(?:[1-9]\d*(?: |$)|(?:\S+ +)(?:[\d.]+ +){3}[1-9]\d*\s*$)", "cause", 3, False),
    ("nccl_size_mismatch", "message truncated", r"[Mm]essage truncated ?: ?(?:received|receiving) (?P<got>\d+) bytes instead of (?P<wanted>\d+)"),
    ("nccl_size_mismatch", "mismatched collective", r"Mismatched collective", "cause", 3, False),
    ("nccl_lib_mismatch", "mismatched nccl version", r"Mismatched NCCL version detected", "cause", 3, False),
    ("nccl_lib_mismatch", "nccl", r"undefined symbol: nccl\w+|symbol lookup error: .{0,200}nccl|libnccl\S{0,80}: version `\S{1,80}' not found"),
    ("nccl_lib_missing", "nccl", r"[Uu]nable to load NCCL library|(?:Could not|Failed to|cannot) (?:load|open|find) \S{0,200}libnccl\.so|libnccl\.so\S{0,40}: cannot open shared object file"
     r"|doesn't have NCCL built in|NCCL support was not built|built without NCCL", "cause", 3, False),
    ("duplicate_rank", "checked in|bootstrap root", r"rank (?P<twice>\d+) of (?P<world>\d+) ranks has already checked in|Bootstrap Root ?: ?(?:mismatch in (?:rank count|info) from procs|localId \d+ is out of range)", "cause", 3, False),
    ("duplicate_rank", "task registered|invalid rank requested", r"[Uu]nexpected (?:duplicate )?task registered with task_name|[Ii]nvalid rank requested ?: ?\d+/\d+", "cause", 3, False),
    # what NCCL reads of the machine's buses, or of a file that describes them
    ("nccl_topology", "of node", r"Attribute \w+ of node \w+ (?:not found|is not an? \w+)", "cause", 3, False),
    ("nccl_topology", "xml", r"(?:NCCL WARN|log entry).{0,80}(?:XML (?:Parse|Import)\b|(?:could not|Could not) (?:open|read|parse) XML|XML (?:graph|topology|file)|too many XML nodes)", "cause", 2, False),
    ("nccl_topology", "too many", r"(?:NCCL WARN|log entry).{0,80}(?:too many (?:links|nodes of type)|tried to create too many nodes)", "cause", 2, False),
    ("nccl_topology", "could not find", r"(?:NCCL WARN|log entry).{0,80}Could not find (?:any local path|a path|any CPU|CPU|GPU with|NET with)", "cause", 2, False),
    ("bootstrap_no_interface", "interface|family", r"no socket interface found|No (?:usable )?(?:socket )?interface found|no interface found|[Aa]ddress family \d+ is neither|family 59936 is neither"),
    ("gpu_peer_access", "peer", r"(?i)cuda (?:failure|error|runtime error)\b.{0,60}peer (?:mapping resources exhausted|access (?:is not supported|has not been))", "cause", 3, False),
    ("gpu_peer_access", "ipc handle", r"failed to open CUDA IPC handle", "cause", 3, False),
    ("iommu", "iommu", r"Missing \"iommu=pt\"", "fact", 1),
    # only a host that is down or a network that drops packets lets a connection time out: a process that ended refuses it
    ("bootstrap_connect_failed", "connect",
     r"(?:NCCL WARN|log entry).{0,60}[Cc]onnect (?:to \S+ )?(?:failed|returned) ?:? ?(?:Connection timed out|No route to host|Network is unreachable)",
     "echo", 2),
    # a peer that has exited looks the same as one that cannot be reached
    ("bootstrap_connect_failed", "connect",
     r"(?:socketStartConnect|NCCL WARN|Last error|log entry|NET/Socket).{0,60}[Cc]onnect to \S+ (?:failed|returned)|^Connect to \S+ failed",
     "echo", 2),
    ("bootstrap_connect_failed", "call to connect", r"NCCL (?:WARN|INFO) (?:NET/Socket : )?Call to connect (?:to \S+ )?(?:returned|failed)[^,]{0,60}(?!, retrying)$", "echo", 1),
    ("bootstrap_connect_failed", "socketpollconnect|exceeded", r"socketPollConnect.{0,80}(?:[Cc]onnect|[Tt]imed out|refused|returned)|exceeded (?:retries|\d+ (?:retries|attempts)).{0,40}(?:[Cc]onnect|root)", "echo", 2),
    ("peer_lost", "remote", r"socketProgress.{0,40}: Connection closed by remote peer|Connection closed by remote peer"
     r"|remote process exited or there was a network error|ncclRemoteError", "victim"),
    ("peer_lost", "recv failed|connection reset", r"Socket recv failed while polling|recv failed with .{0,80}(?:reset|closed)|NCCL WARN .{0,120}Connection reset by peer", "victim"),
    ("peer_lost", "failed to execute operation|proxy call", r"\[Proxy Service\D{0,12}\d*\] Failed to execute operation .{0,80}|Proxy Call to rank \d+ failed", "victim"),
    ("peer_lost", "attempt to use communicator|encountered error", r"Attempt to use communicator before the previous operation|communicator encountered error set by ProcessGroupNCCL", "victim"),
    ("peer_lost", "aborted", r"NCCL communicator (?:was|is) aborted|communicator was aborted on rank", "victim"),
)  # fmt: skip

# errors that wrap those of another library: tried after all others
NCCL_WRAPPERS = rows(
    ("nccl_invalid_usage", "usage|argument", r"NCCL (?:error|operation).{0,200}invalid usage|ncclInvalidUsage|NCCL (?:error|operation).{0,200}invalid argument|ncclInvalidArgument", "cause", 1, False),
    ("nccl_cuda_unknown", "unhandled", r"unhandled cuda error|ncclUnhandledCudaError", "wrapper", 1, False),
    ("nccl_cuda_unknown", "cuda failure", r"NCCL WARN (?:.{0,60})?Cuda failure", "cause", 1),
    ("nccl_unknown", "attaching|system|internal", r"Error while attaching to shared memory segment|ncclSystemError|unhandled system error|ncclInternalError|NCCL (?:error|failure|operation).{0,200}internal error", "wrapper", 1),
)  # fmt: skip
