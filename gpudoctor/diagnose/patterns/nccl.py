"""Warnings of NCCL 2.7 and newer, printed directly or by torch after "Last error:". Source: NCCL's src."""

from __future__ import annotations

from gpudoctor.diagnose.patterns.model import rows

NCCL = rows(
    ("nvls_failed", "nvl", r"Failed to bind NVLink SHARP|NVLS.{0,40}(?:[Ff]ailed to|CUDA error)|transport/nvls\.cc:\d+ .{0,60}NCCL WARN Cuda failure "
     r"(?:1\b|401|'invalid argument|'the operation cannot)"),
    ("imex_mnnvl", "mnnvl", r"MNNVL.{0,80}(?:not working|failed|error)|[Cc]uda failure 800 .{0,60}(?:alloc|mnnvl)"
     r"|mnnvl\.cc.{0,80}NCCL WARN"),
    ("imex_mnnvl", "imex", r"IMEX (?:channel|daemon|domain).{0,60}(?:not|fail|missing)|CUDA_ERROR_NOT_PERMITTED.{0,40}fabric"),
    ("imex_mnnvl", "800", r"Cuda failure 800 'operation not permitted'"),
    # a flushed request (5) follows from the first error of its queue
    ("ib_flushed", "completion", r"Got completion .{0,120}(?:with error|status[= ]*) ?5\b", "victim"),
    ("ib_completion_error", "completion",
     r"Got completion (?:from peer (?P<peer>[^ <]{1,80})\S*)?.{0,60}(?:with error|status[= ]*) ?(?P<status>12|9|11|13)\b",
     "echo", 2, False),
    ("ib_completion_error", "completion",
     r"Got completion (?:from peer (?P<peer>[^ <]{1,80})\S*)?.{0,60}(?:with error|status[= ]*) ?(?P<status>\d+)\b",
     "cause", 2, False),
    ("ib_completion_error", "transport retry", r"transport retry counter exceeded", "echo", 2, False),
    ("ib_completion_error", "async", r"NET/IB : .{0,80}(?:[Gg]ot async (?:fatal )?event|async fatal event)", "echo", 2, False),
    ("ib_qp_setup_failed", "ibv_modify_qp", r"ibv_modify_qp failed"),
    ("ib_qp_setup_failed", "ibv_create_qp", r"ibv_create_qp failed"),
    ("ib_qp_setup_failed", "nvshmem", r"nvshmem.{0,200}(?:Error in mlx5dv_devx_obj_modify|ibgda_\w+ failed|ep_connect failed|connect EPS failed|setup connections failed)"),
    ("ib_qp_setup_failed", "init2r", r"Error in mlx5dv_devx_obj_modify for (?:INIT2RTR|RTR2RTS)"),
    ("ib_memlock", "ibv_", r"ibv_(?:reg_mr\w*|create_cq|create_qp) failed.{0,60}Cannot allocate memory"),
    ("ib_registration_failed", "ibv_reg", r"ibv_reg_\w*mr\w* failed.{0,40}(?:Bad address|Invalid argument|Operation not permitted|Input/output)"),
    ("ofi_error", "net/ofi", r"NET/OFI .{0,200}(?:RC: |[Uu]nable to|[Ff]ailed|err(?:or|no)?\b|Request .{0,40}completed with error)",
     "cause", 2, False),
    ("ofi_error", "peer host id", r"Peer host id: \S+", "cause", 2, False),
    ("shm_permission", "shm", r"(?:shm_open|/dev/shm/\S+|shared memory segment).{0,60}[Pp]ermission denied"),
    ("shm_too_small", "shm", r"failed to extend /dev/shm/|/dev/shm/nccl-\S+.{0,80}No space left"),
    ("shm_too_small", "posix_fallocate", r"posix_fallocate failed ?: ?No space left"),
    ("shm_too_small", "shared memory segment", r"creating shared memory segment \S*(?P<segment>nccl-\S+)", "cause", 2),
    ("shm_too_small", "posix_fallocate", r"posix_fallocate failed", "cause", 2),
    ("duplicate_gpu", "duplicate gpu", r"Duplicate GPU detected ?: ?rank (?P<a>\d+) and rank (?P<b>\d+) both on CUDA device (?P<device>\w+)",
     "cause", 3, False),
    ("nccl_size_mismatch", "message truncated", r"[Mm]essage truncated ?: ?(?:received|receiving) (?P<got>\d+) bytes instead of (?P<wanted>\d+)"),
    ("nccl_size_mismatch", "mismatched collective", r"Mismatched collective", "cause", 3, False),
    ("nccl_lib_mismatch", "mismatched nccl version", r"Mismatched NCCL version detected", "cause", 3, False),
    ("nccl_lib_mismatch", "nccl", r"undefined symbol: nccl\w+|symbol lookup error: .{0,200}nccl|libnccl\S*: version `\S+' not found"),
    ("bootstrap_no_interface", "interface", r"no socket interface found|No (?:usable )?(?:socket )?interface found|no interface found"),
    ("bootstrap_no_interface", "family", r"[Aa]ddress family \d+ is neither|wrong type 59936|family 59936 is neither"),
    ("cuda_not_supported", "not supported", r"Cuda failure (?:\d+ )?'(?:operation|feature) not supported'"),
    ("iommu", "iommu", r"Missing \"iommu=pt\"|IO_PAGE_FAULT", "fact", 1),
    # a peer that has exited looks the same as one that cannot be reached
    ("bootstrap_connect_failed", "connect",
     r"(?:socketStartConnect|NCCL WARN|Last error|NET/Socket).{0,60}[Cc]onnect to \S+ (?:failed|returned)|^Connect to \S+ failed",
     "echo", 2),
    ("bootstrap_connect_failed", "call to connect", r"NCCL (?:WARN|INFO) (?:NET/Socket : )?Call to connect (?:to \S+ )?(?:returned|failed)[^,]{0,60}(?!, retrying)$", "echo", 1),
    ("bootstrap_connect_failed", "socketpollconnect", r"socketPollConnect.{0,80}(?:[Cc]onnect|[Tt]imed out|refused|returned)", "echo", 2),
    ("bootstrap_connect_failed", "exceeded", r"(?:exceeded|after) (?:retries|\d+ (?:retries|attempts)).{0,40}(?:[Cc]onnect|root)", "echo", 2),
    ("peer_lost", "remote", r"socketProgress.{0,40}: Connection closed by remote peer|Connection closed by remote peer"
     r"|remote process exited or there was a network error|ncclRemoteError", "victim"),
    ("peer_lost", "socket recv", r"Socket recv failed while polling|recv failed with .{0,80}(?:reset|closed)", "victim"),
    ("peer_lost", "connection reset", r"NCCL WARN .{0,120}Connection reset by peer", "victim"),
    ("peer_lost", "failed to execute operation", r"\[Proxy Service\D{0,12}\d*\] Failed to execute operation .{0,80}", "victim"),
    ("peer_lost", "proxy call", r"Proxy Call to rank \d+ failed", "victim"),
    ("peer_lost", "attempt to use communicator", r"Attempt to use communicator before the previous operation", "victim"),
    ("peer_lost", "encountered error", r"communicator encountered error set by ProcessGroupNCCL", "victim"),
    ("peer_lost", "aborted", r"NCCL communicator (?:was|is) aborted|communicator was aborted on rank", "victim"),
)  # fmt: skip

# errors that wrap those of another library: tried after all others
NCCL_WRAPPERS = rows(
    ("nccl_invalid_usage", "invalid usage", r"NCCL error.{0,200}invalid usage|ncclInvalidUsage", "cause", 1, False),
    ("nccl_invalid_usage", "invalid argument", r"NCCL error.{0,200}invalid argument|ncclInvalidArgument", "cause", 1, False),
    ("nccl_cuda_unknown", "unhandled cuda error", r"unhandled cuda error|ncclUnhandledCudaError", "wrapper", 1, False),
    ("nccl_cuda_unknown", "cuda failure", r"NCCL WARN (?:.{0,60})?Cuda failure", "cause", 1),
    ("nccl_unknown", "attaching", r"Error while attaching to shared memory segment", "wrapper", 1),
    ("nccl_unknown", "system", r"ncclSystemError|unhandled system error", "wrapper", 1),
    ("nccl_unknown", "internal", r"ncclInternalError|NCCL (?:error|failure).{0,200}internal error", "wrapper", 1),
)  # fmt: skip
