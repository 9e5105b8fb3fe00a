"""Tables of patterns: the lines of NCCL, CUDA and torch that report or wrap an error; what a line of any table says."""

from __future__ import annotations

import re
from functools import lru_cache

from gpudoctor.diagnose.events import Event
from gpudoctor.diagnose.patterns import facts
from gpudoctor.diagnose.patterns.outside import ENDINGS, KERNEL, STARTS, TPU
from gpudoctor.diagnose.patterns.rows import LinePattern, rows
from gpudoctor.diagnose.patterns.unknown_lines import is_harmless

# Warnings of NCCL 2.7 and newer, printed directly or by torch after "Last error:". Source: NCCL's src
_NCCL = rows(
    ("nvls_failed", "nvl", r"Failed to bind NVLink SHARP|NVLS.{0,40}(?:[Ff]ailed to|CUDA error)|transport/nvls\.cc:\d+ .{0,60}NCCL WARN Cuda failure "
     r"(?:1\b|401|'invalid argument|'the operation cannot)"),
    ("imex_mnnvl", "mnnvl", r"MNNVL.{0,80}(?:not working|failed|error)|[Cc]uda failure 800 .{0,60}mnnvl"
     r"|mnnvl\.cc.{0,80}NCCL WARN"),
    ("imex_mnnvl", "imex", r"IMEX (?:channel|daemon|domain).{0,60}(?:not|fail|missing)"),
    ("imex_mnnvl", "not_permitted", r"CUDA_ERROR_NOT_PERMITTED.{0,40}fabric"),
    ("imex_mnnvl", "800", r"Cuda failure 800 'operation not permitted'"),
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
    ("ib_completion_error", "retry count exceeded", r"\b[Rr]etry count exceeded on \w+:\d", "echo", 2, False),
    ("ib_completion_error", " error on ", r"\b(?:Remote|Local) (?:operation|length|QP operation|invalid request) error on \w+:\d", "echo", 2, False),
    ("ib_completion_error", "transport retry", r"transport retry counter exceeded", "echo", 2, False),
    # an event of this host's own adapter; those of a change (GID table, LID, port active) do no harm
    ("ib_port_error", "async", r"NET/IB ?: .{0,80}async (?:fatal |error )?event ?: ?(?:port error|local catastrophic error)", "echo", 3, False),
    ("ib_completion_error", "async", r"NET/IB ?: .{0,80}async (?:fatal event|(?:error )?event ?: ?.{0,60}\berror)", "echo", 2, False),
    # NCCL takes sockets then: slow, and a hang if other hosts take InfiniBand
    ("ib_device_refused", "open", r"ibv_open_device failed|NET/IB ?: Unable to open device \S+", "echo", 1, False),
    ("ib_qp_setup_failed", "ibv_modify_qp", r"ibv_modify_qp failed"),
    ("ib_qp_setup_failed", "ibv_create_qp", r"ibv_create_qp failed"),
    ("ib_qp_setup_failed", "nvshmem", r"nvshmem.{0,200}(?:Error in mlx5dv_devx_obj_modify|ibgda_\w+ failed|ep_connect failed|connect EPS failed|setup connections failed)"),
    ("ib_qp_setup_failed", "devx_obj_modify", r"Error in mlx5dv_devx_obj_modify for (?:INIT2RTR|RTR2RTS)"),
    ("ib_memlock", "ibv_", r"ibv_(?:reg_mr\w*|create_cq|create_qp)(?:\(\))? failed.{0,60}Cannot allocate memory"),
    ("ib_registration_failed", "ibv_reg", r"ibv_reg_\w*mr\w* failed.{0,40}(?:Bad address|Invalid argument|Operation not permitted|Input/output)"),
    ("ofi_error", "net/ofi", r"NET/OFI .{0,200}(?:RC: |[Uu]nable to|[Ff]ailed|err(?:or|no)?\b|Request .{0,40}completed with error)",
     "cause", 2, False),
    ("ofi_error", "peer host id", r"Peer host id: \S+", "cause", 2, False),
    ("shm_permission", "permission denied", r"(?:shm_open|/dev/shm/\S+|shared memory segment).{0,60}[Pp]ermission denied"),
    ("shm_too_small", "shm", r"failed to extend /dev/shm/|/dev/shm/nccl-\S+.{0,80}No space left"),
    ("shm_too_small", "posix_fallocate", r"posix_fallocate failed ?: ?No space left"),
    ("shm_too_small", "shared memory segment", r"creating shared memory segment \S*(?P<segment>nccl-\S+)", "cause", 2),
    ("shm_too_small", "posix_fallocate", r"posix_fallocate failed", "cause", 2),
    # nccl-tests: the sum of its check, and rows with a count in the column "#wrong" (older ones have an error there)
    ("wrong_results", "out of bounds values", r"# Out of bounds values : [1-9]\d* FAILED", "cause", 3, False),
    ("wrong_results", " ", r"^\s*\d+ +\d+ +(?:float|half|double|bfloat16|u?int\d+|f?p?8\w*) +(?:[a-z]+ +)?(?:-?\d+ +)?(?:[\d.]+ +){3}(?:[1-9]\d*(?: |$)|(?:\S+ +)(?:[\d.]+ +){3}[1-9]\d*\s*$)", "cause", 3, False),
    ("duplicate_gpu", "duplicate gpu", r"Duplicate GPU detected ?: ?rank (?P<a>\d+) and rank (?P<b>\d+) both on CUDA device (?P<device>\w+)",
     "cause", 3, False),
    ("nccl_size_mismatch", "message truncated", r"[Mm]essage truncated ?: ?(?:received|receiving) (?P<got>\d+) bytes instead of (?P<wanted>\d+)"),
    ("nccl_size_mismatch", "mismatched collective", r"Mismatched collective", "cause", 3, False),
    ("nccl_lib_mismatch", "mismatched nccl version", r"Mismatched NCCL version detected", "cause", 3, False),
    ("nccl_lib_mismatch", "nccl", r"undefined symbol: nccl\w+|symbol lookup error: .{0,200}nccl|libnccl\S{0,80}: version `\S{1,80}' not found"),
    ("nccl_lib_missing", "nccl", r"[Uu]nable to load NCCL library|(?:Could not|Failed to|cannot) (?:load|open|find) \S{0,200}libnccl\.so|libnccl\.so\S{0,40}: cannot open shared object file"
     r"|doesn't have NCCL built in|NCCL support was not built|built without NCCL", "cause", 3, False),
    ("duplicate_rank", "checked in", r"rank (?P<twice>\d+) of (?P<world>\d+) ranks has already checked in", "cause", 3, False),
    ("duplicate_rank", "bootstrap root", r"Bootstrap Root ?: ?(?:mismatch in (?:rank count|info) from procs|localId \d+ is out of range)", "cause", 3, False),
    ("duplicate_rank", "task registered", r"[Uu]nexpected (?:duplicate )?task registered with task_name", "cause", 3, False),
    ("duplicate_rank", "invalid rank requested", r"[Ii]nvalid rank requested ?: ?\d+/\d+", "cause", 3, False),
    # what NCCL reads of the machine's buses, or of a file that describes them
    ("nccl_topology", "of node", r"Attribute \w+ of node \w+ (?:not found|is not an? \w+)", "cause", 3, False),
    ("nccl_topology", "xml", r"(?:NCCL WARN|log entry).{0,80}(?:XML (?:Parse|Import)\b|(?:could not|Could not) (?:open|read|parse) XML|XML (?:graph|topology|file)|too many XML nodes)", "cause", 2, False),
    ("nccl_topology", "too many", r"(?:NCCL WARN|log entry).{0,80}(?:too many (?:links|nodes of type)|tried to create too many nodes)", "cause", 2, False),
    ("nccl_topology", "could not find", r"(?:NCCL WARN|log entry).{0,80}Could not find (?:any local path|a path|any CPU|CPU|GPU with|NET with)", "cause", 2, False),
    ("bootstrap_no_interface", "interface", r"no socket interface found|No (?:usable )?(?:socket )?interface found|no interface found"),
    ("bootstrap_no_interface", "family", r"[Aa]ddress family \d+ is neither|family 59936 is neither"),
    ("cuda_not_supported", "not supported", r"Cuda failure (?:\d+ )?'(?:operation|feature) not supported'"),
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
    ("bootstrap_connect_failed", "socketpollconnect", r"socketPollConnect.{0,80}(?:[Cc]onnect|[Tt]imed out|refused|returned)", "echo", 2),
    ("bootstrap_connect_failed", "exceeded", r"exceeded (?:retries|\d+ (?:retries|attempts)).{0,40}(?:[Cc]onnect|root)", "echo", 2),
    ("peer_lost", "remote", r"socketProgress.{0,40}: Connection closed by remote peer|Connection closed by remote peer"
     r"|remote process exited or there was a network error|ncclRemoteError", "victim"),
    ("peer_lost", "recv failed", r"Socket recv failed while polling|recv failed with .{0,80}(?:reset|closed)", "victim"),
    ("peer_lost", "connection reset", r"NCCL WARN .{0,120}Connection reset by peer", "victim"),
    ("peer_lost", "failed to execute operation", r"\[Proxy Service\D{0,12}\d*\] Failed to execute operation .{0,80}", "victim"),
    ("peer_lost", "proxy call", r"Proxy Call to rank \d+ failed", "victim"),
    ("peer_lost", "attempt to use communicator", r"Attempt to use communicator before the previous operation", "victim"),
    ("peer_lost", "encountered error", r"communicator encountered error set by ProcessGroupNCCL", "victim"),
    ("peer_lost", "aborted", r"NCCL communicator (?:was|is) aborted|communicator was aborted on rank", "victim"),
)  # fmt: skip

# errors that wrap those of another library: tried after all others
_NCCL_WRAPPERS = rows(
    ("nccl_invalid_usage", "usage", r"NCCL (?:error|operation).{0,200}invalid usage|ncclInvalidUsage", "cause", 1, False),
    ("nccl_invalid_usage", "argument", r"NCCL (?:error|operation).{0,200}invalid argument|ncclInvalidArgument", "cause", 1, False),
    ("nccl_cuda_unknown", "unhandled", r"unhandled cuda error|ncclUnhandledCudaError", "wrapper", 1, False),
    ("nccl_cuda_unknown", "cuda failure", r"NCCL WARN (?:.{0,60})?Cuda failure", "cause", 1),
    ("nccl_unknown", "attaching", r"Error while attaching to shared memory segment", "wrapper", 1),
    ("nccl_unknown", "system", r"ncclSystemError|unhandled system error", "wrapper", 1),
    ("nccl_unknown", "internal", r"ncclInternalError|NCCL (?:error|failure|operation).{0,200}internal error", "wrapper", 1),
)  # fmt: skip

# Errors of CUDA, reported by torch or directly. Codes and texts: cudaError_t in the CUDA Runtime API reference
_CUDA = rows(
    ("gpu_ecc", "uncorrectable", r"[Uu]ncorrectable ECC error (?:encountered|was detected)"),
    # whoever reads a peer's memory reports it: the link or the peer failed
    ("nvlink_failed", "nvlink error", r"[Uu]ncorrectable NVLink error (?:encountered|(?:was )?detected)", "cause", 3, False),
    ("nvlink_failed", "peer gpu memory over nvlink", r"Invalid access of peer GPU memory over nvlink", "cause", 3, False),
    ("nvlink_failed", "cuda_error_contained", r"CUDA_ERROR_CONTAINED", "cause", 3, False),
    ("cuda_device_assert", "assert", r"device-side assert triggered|:\d+: \S+: block: \[\d.{0,60}Assertion `.{0,300}failed"),
    ("cuda_illegal_access", "illegal", r"an illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS"),
    ("cuda_illegal_access", "memory access fault", r"Memory access fault by GPU node-\d+"),
    ("cuda_illegal_access", "illegal", r"an illegal instruction was encountered", "cause", 2),
    ("cuda_launch_failure", "launch", r"unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED", "cause", 2),
    ("cuda_launch_failure", "misaligned", r"misaligned address", "cause", 2),
    ("cuda_launch_failure", "launch", r"the launch timed out and was terminated", "cause", 2),
    ("cuda_oom", "memory",
     r"(?:CUDA|HIP) out of memory|(?:CUDA|HIP) error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
     r"|OutOfMemoryError: (?:CUDA|HIP|Allocation)|Cuda failure (?:\d+ )?'out of memory'|cudaMalloc failed: out of memory|Test CUDA failure \S+ 'out of memory'"
     r"|RESOURCE_EXHAUSTED: Out of memory while trying to allocate"),
    # vLLM and SGLang at their start
    ("cuda_oom", "memory", r"Free memory on device .{0,60} is less than desired GPU memory utilization|No available memory for the cache blocks"
     r"|Not enough memory\. Please try to increase --mem-fraction-static", "cause", 3, False),
    # TensorFlow's allocator: first its words for an allocation that it can do without
    ("cuda_oom", "ran out of memory", r"ran out of memory trying to allocate .{0,120}(?P<warning>The caller indicates that this is not a failure)", "echo", 1, False),
    ("cuda_oom", "resource exhausted", r"(?P<warning>convolution algorithm): Resource exhausted: Out of memory", "echo", 1, False),
    ("cuda_oom", "of memory", r"Allocator \(GPU_\d+_bfc\) ran out of memory trying to allocate|Resource exhausted: Out of memory"),
    ("cuda_oom", "oom when allocating", r"OOM when allocating tensor with shape"),
    ("cuda_system_not_ready", "system not yet initialized", r"system not yet initialized", "cause", 3, False),
    ("cuda_driver_mismatch", "driver combination", r"unsupported display driver / cuda driver combination",
     "cause", 3, False),
    ("cuda_driver_mismatch", "driver/library version mismatch", r"[Dd]river/library version mismatch"),
    ("cuda_driver_mismatch", "forward compat", r"forward compatibility was attempted on non supported HW"),
    ("cuda_driver_mismatch", "dso version", r"kernel version \S+ does not match DSO version"),
    ("cuda_driver_too_old", "driver", r"CUDA driver version is insufficient for CUDA runtime version|cudaErrorInsufficientDriver"
     r"|The NVIDIA driver on your system is too old", "cause", 3, False),
    ("cuda_driver_too_old", "unsupported", r"provided PTX was compiled with an unsupported toolchain|CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "cause", 3, False),
    ("cuda_busy", "busy", r"all CUDA-capable devices are busy or unavailable|CUDA-capable device\(s\) is/are busy"),
    ("gpu_isolated", "cuda", r"no CUDA-capable device is detected|No CUDA GPUs are available|"
     r"CUDA_ERROR_NO_DEVICE"),
    ("gpu_isolated", "found no nvidia driver", r"Found no NVIDIA driver on your system"),
    ("gpu_isolated", "invalid device ordinal", r"invalid device ordinal"),
    ("cuda_not_supported", "not supported", r"(?:CUDA|Cuda|cuda)\b.{0,80}operation not supported"),
    ("cuda_no_kernel_image", "kernel image", r"no kernel image is available for execution on the device|device kernel image is invalid", "cause", 3, False),
    # torch's warning at its start, for any GPU of the machine; nvcc and ptxas, where a kernel is built for it
    ("cuda_no_kernel_image", "is not compatible with the current", r"with CUDA capability sm_\w+ is not compatible with the current PyTorch installation", "echo", 1, False),
    ("cuda_no_kernel_image", "no longer supports this gpu", r"PyTorch no longer supports this GPU because it is too old", "echo", 1, False),
    ("cuda_no_kernel_image", "cuda enabled", r"Torch not compiled with CUDA enabled", "cause", 3, False),
    ("cuda_no_kernel_image", "gpu", r"CUDA_ERROR_NO_BINARY_FOR_GPU|[Uu]nsupported gpu architecture '\w+'|Value 'sm_\w+' is not defined for option 'gpu-name'", "cause", 3, False),
    ("cuda_no_kernel_image", "invalid device function", r"invalid device function"),
    ("cuda_no_kernel_image", "success (", r"Check failed: \w+ == (?:cuda|hip)Success \((?:98|209) vs\. 0\)"),
    ("cuda_illegal_access", "hsa_status", r"HSA_STATUS_ERROR_MEMORY_(?:APERTURE_VIOLATION|FAULT)"),
    ("cuda_launch_failure", "hsa_status", r"HSA_STATUS_ERROR_(?:EXCEPTION|ILLEGAL_INSTRUCTION)", "cause", 2),
    ("cuda_launch_failure", "hw exception", r"HW Exception by GPU node-\d+", "cause", 2),
    ("cuda_init_failed", "initialization error", r"(?:CUDA|Cuda|cuda)\b.{0,80}initialization error", "cause", 2),
    ("cuda_init_failed", "unknown error", r"CUDA unknown error|CUDA (?:error|failure)[^a-z]{0,20}unknown error",
     "cause", 2),
    ("cuda_init_failed", "nvml", r"Failed to initialize NVML: ", "cause", 2),
    ("cuda_init_failed", "nvidia-smi has failed", r"NVIDIA-SMI has failed because", "cause", 2),
    ("cuda_init_failed", "failed", r"CUDA backend failed to initialize: |operation cuInit\(0\) failed", "cause", 2),
    ("cuda_init_failed", "cublas", r"CUBLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)", "cause", 1),
    ("cuda_init_failed", "cudnn", r"CUDNN_STATUS_NOT_INITIALIZED|[Cc]ould not create cudnn handle", "cause", 1),
    ("cuda_launch_failure", "cublas", r"CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)", "cause", 1),
    ("gpu_lost", "device handle", r"Unable to determine the device handle for (?:GPU|gpu) ?(?P<gpu>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"),
    ("gpu_lost", "lost", r"GPU is lost\. +Reboot|NVMLError_GpuIsLost|NVML_ERROR_GPU_IS_LOST|(?i:nvml)\w*.{0,60}: GPU is lost"),
)  # fmt: skip

# Errors of torch: stores, gloo, data loaders, DDP, checkpoints, numerics. Source: torch 1.13 to 2.15
_TORCH = rows(
    ("bootstrap_no_interface", "unable to find", r"Unable to find (?:address|interface) for: \S+"),
    # gloo: the address is that of the peer that exited first
    ("connect_stale", "connectfullmesh", r"connectFullMesh failed", "echo", 1, False),
    ("peer_lost", "connection closed by peer", r"Connection closed by peer \[(?P<peer>[^\]]{1,80})\]", "victim"),
    ("peer_lost", "connection reset by peer", r"Read error \[(?P<peer>[^\]]{1,80})\]\S* Connection reset by peer", "victim"),
    ("peer_lost", "gloo", r"gloo/transport/tcp/\S+\] (?:Connection closed|Read error|writev|sendmsg|Socket closed|Error (?:reading|writing))", "victim"),
    ("gloo_timeout", "timed out waiting", r"Timed out waiting (?P<timeout_ms>\d+)ms for (?P<side>recv|send) operation", "wait"),
    ("gloo_timeout", "application timeout", r"Application timeout caused pair closure", "wait"),
    ("collective_mismatch", "preamble", r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<wanted>\d+)", "cause", 2, False),
    # rank 0 holds the store: a rank that prints this outlived rank 0
    ("store_lost", "should dump", r"Failed to check the \"should dump\" flag on TCPStore", "victim"),
    ("store_lost", "socketimpl", r"(?:sendBytes|recvValue\w*|recvVector|recvBytes) failed on SocketImpl"
     r"\(fd=\d+, addr=\[[^\]]*\]:\d+, remote=\[(?P<store>[^\]]{1,253})\]:\d+\)", "victim"),
    ("store_lost", "failed to recv, got 0 bytes", r"Failed to recv, got 0 bytes", "victim"),
    ("store_lost", "broken pipe", r"(?:TCPStore|c10d|SocketImpl|DistNetworkError|DistBackendError).{0,200}Broken pipe", "victim"),
    # a rank that waits for a key waits for the rank that writes it; gloo's keys end in that rank
    ("store_timeout", "wait timeout", r"wait timeout after \d+ms, keys: (?:\S*/(?:cpu|cuda)//\d+/(?P<key_rank>\d+))?", "wait"),
    ("store_timeout", "store based barrier", r"store based barrier on rank.{0,120}?world_size=(?P<world>\d+), (?:worker_count|num_workers_joined)=(?P<joined>\d+)", "wait"),
    ("store_timeout", "uniqueid", r"ret(?:rie|rei)ving ncclUniqueId from \[(?P<key_rank>\d+)\].{0,200}got error: (?:[Ww]ait timeout|Socket Timeout|Timeout)", "wait"),
    ("store_timeout", "other ranks", r"there are other ranks that didn't finish", "wait"),
    ("store_timeout", "socket timeout", r"(?:RuntimeError|DistStoreError|DistNetworkError|c10d\S*): Socket Timeout\b", "wait"),
    ("store_lost", "store->get", r"store->get\('.{0,80}got error", "victim"),
    # Horovod: one of its processes ended and reported why before this
    ("peer_lost", "horovod", r"Horovod has been shut down|HorovodInternalError", "victim"),
    ("peer_lost", "mpi communication peer", r"MPI communication peer process has unexpectedly disconnected", "victim"),
    ("peer_timeout", "deepep", r"DeepEP\b.{0,80}\btimeout", "wait"),
    # JAX's coordination service; its other tasks are told by CoordinationReader
    ("process_died_unknown", "different incarnation", r"/job:[^/\s]{1,80}/(?:replica:\d+/)?task:(?P<task_rank>\d+) unexpectedly tried to connect with a different incarnation", "cause", 2),
    ("heartbeat_lost", "heartbeat timeout", r"Task /job:[^/\s]{1,80}/(?:replica:\d+/)?task:(?P<task_rank>\d+) heartbeat timeout", "cause", 2),
    ("store_lost", "coordination", r"(?:UNAVAILABLE|ABORTED|INTERNAL): .{0,300}[Cc]oordination", "victim"),
    ("store_timeout", "deadline_exceeded", r"DEADLINE_EXCEEDED: .{0,200}[Bb]arrier", "wait"),
    ("rendezvous_unreachable", "stop_waiting", r"[Ss]top_waiting response is (?:expected|required)"),
    ("rendezvous_unreachable", "client socket has", r"client socket has (?:timed out|failed).{0,120}(?:while trying to connect|connect to)"),
    ("bootstrap_connect_failed", "gloo/transport", r"gloo/transport/\S+\] connect \[(?P<address>[0-9a-fA-F.:]{3,45})\]:\d+: (?:Connection refused|Connection timed out|No route to host)"),
    # SGLang ends its processes after it
    ("stalled", "watchdog_timeout", r"Watchdog timeout \(self\.watchdog_timeout=\d+", "cause", 3, False),
    ("rendezvous_unreachable", "etcd", r"EtcdConnectionFailed|Connection to etcd failed"),
    ("rendezvous_unreachable", "connect() timed out", r"connect\(\) timed out\. Original timeout was \d+ ms"),
    # an agent that had been in the rendezvous lost the host of its store
    ("store_lost", "the rendezvous", r"has failed to (?:send a keep-alive heartbeat to|shutdown|close) the rendezvous .{0,200}RendezvousConnectionError", "victim"),
    ("rendezvous_closed", "rendezvous", r"RendezvousClosedError|[Rr]endezvous \S+ (?:has already been|is) closed", "wrapper", 1, False),
    ("rendezvous_unreachable", "rendezvousconnectionerror", r"RendezvousConnectionError", "echo", 2, False),
    ("rendezvous_unreachable", "hostname", r"hostname.{0,200}(?:Name or service not known|Temporary failure in name resolution)"
     r"|The IPv[46] network addresses of \([^)]*\) cannot be retrieved.{0,60}hostname", "echo", 2, False),
    ("rendezvous_timeout", "rendezvoustimeouterror", r"RendezvousTimeoutError", "cause", 3, False),
    ("rendezvous_timeout", "clients joined", r"waiting for clients\. (?P<joined>\d+)/(?P<world>\d+) clients joined", "cause", 3, False),
    ("port_in_use", "address already in use", r"[Aa]ddress already in use", "cause", 3, False),
    ("port_in_use", "eaddrinuse", r"EADDRINUSE", "cause", 3, False),
    ("barrier_failed", "monitoredbarrier", r"(?P<ranks>Rank[s ]*[\d, ]+)(?:failed to pass|in) monitoredBarrier|Ranks? (?P<more>[\d, ]+) failed to pass monitoredBarrier", "cause", 3, False),
    ("peer_lost", "monitoredbarrier", r"reached monitoredBarrier, but received errors while waiting", "victim"),
    ("barrier_waits", "monitoredbarrier", r"(?:Detected rank|Please check rank) (?P<named>\d+).{0,80}monitoredBarrier|monitoredBarrier", "wait"),
    # FSDP; DeepSpeed; of torch's analyser of dumps, the incidents that are no question of how far a rank had come
    ("collective_mismatch", "order differs across ranks", r"(?:Forward|Backward) order differs across ranks", "cause", 3, False),
    ("collective_mismatch", "disagreement between rank", r"disagreement between rank\d+ and rank\d+", "cause", 3, False),
    ("collective_mismatch", "culprit rank", r"Culprit rank \d+; Error type: (?:SIZE_OR_SYNTAX|COLLECTIVE_TYPE|COLLECTIVE_DTYPE)_MISMATCH", "cause", 3, False),
    ("collective_mismatch", "detected mismatch between collectives", r"Detected mismatch between collectives on ranks", "cause", 3, False),
    ("config_mismatch", "ddp expects same model", r"DDP expects same model across all ranks, but Rank (?P<a>\d+) has (?P<a_params>\d+) params, "
     r"while rank (?P<b>\d+) has inconsistent (?P<b_params>\d+) params", "cause", 3, False),
    ("config_mismatch", "appears not to match", r"\[(?P<a>\d+)\]: params\[\d+\] in this process with sizes .{0,200}appears not to match"
     r"|params\[\d+\] in this process with sizes .{0,200}appears not to match", "cause", 3, False),
    ("user_exception_all", "finished reduction", r"Expected to have finished reduction in the prior iteration", "cause", 3, False),
    ("shm_too_small_loader", "bus error", r"DataLoader worker .{0,60}killed by signal: Bus error|[Uu]nexpected bus error encountered in worker", "cause", 3, False),
    ("shm_too_small_loader", "shm", r"[Uu]nable to (?:allocate|open|write|mmap|resize).{0,120}shm", "cause", 3, False),
    ("shm_too_small_loader", "shared memory", r"insufficient shared memory|out of shared memory", "cause", 3, False),
    ("shm_too_small_loader", "torch_", r"unable to write to file </torch_\S+>", "cause", 3, False),
    ("loader_worker_killed", "dataloader worker", r"DataLoader worker \(pid(?:\(s\))? (?P<workers>[\d, ]+)\) (?:is killed by signal|exited unexpectedly)"),
    ("limit_nofile", "too many open files", r"Too many open files"),
    ("limit_nofile", "ancdata", r"received \d+ items of ancdata"),
    ("limit_nproc", "resource temporarily unavailable", r"(?:pthread_create|fork|clone|thread_init|Thread creation|BlockingIOError|system_error|OSError).{0,80}Resource temporarily unavailable", "cause", 2, False),
    ("limit_nproc", "start new thread", r"can't start new thread", "cause", 3, False),
    ("file_damaged", "pytorchstreamreader", r"PytorchStreamReader failed (?:reading|locating)", "cause", 3, False),
    ("file_damaged", "deserializing header", r"[Ee]rror while deserializing header", "cause", 3, False),
    ("file_damaged", "truncated", r"UnpicklingError: pickle data was truncated", "cause", 3, False),
    ("file_damaged", "corrupt", r"unexpected EOF, expected \d+ more bytes\. The file might be corrupted", "cause", 3, False),
    ("disk_full", "no space left", r"(?:Errno 28\]?|OSError|IOError|Exception|Error|write|\(28\)|os error 28).{0,120}No space left on device|No space left on device \(os error 28\)"),
    ("disk_full", "quota", r"Disk quota exceeded"),
    ("disk_full", "unexpected pos", r"unexpected pos \d+ vs \d+", "cause", 2),
    ("disk_full", "pytorchstreamwriter", r"PytorchStreamWriter failed writing", "cause", 2),
    ("disk_full", "iostream error", r"basic_ios::clear: iostream error", "cause", 2),
    ("fs_readonly", "read-only", r"Read-only file system"),
    ("stale_nfs", "stale", r"Stale (?:NFS )?file handle"),
    ("fs_error", "input/output error", r"Errno 5\] Input/output error|(?:read|write)\(\): fd \d+ failed with Input/output error", "cause", 2),
    ("fs_error", "errno 1", r"Errno 121\] Remote I/O error|Errno 110\] Connection timed out: '/", "cause", 2),
    ("host_alloc_failed", "allocat", r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory).{0,40}(?:allocate )?(?P<bytes>\d+)? ?|Unable to allocate [\d.]+ [KMGTPE]iB for an array"),
    ("host_alloc_failed", "memory", r"OSError: \[Errno 12\] Cannot allocate memory|^MemoryError"),
    ("nan", "in local", r"found (?:NaN|Inf) in local (?:grad|forward)"),
    ("nan", "unexpected result", r"Unexpected result (?:nan|inf)"),
    ("nan", "nan", r"[Ll]oss is (?:nan|NaN)"
     r"|(?:FloatingPointError|AssertionError|ValueError|RuntimeError|\.NaN\w*).{0,120}\b(?:nan|NaN|NaNs)\b|contains? NaN"
     r"|Function '\w+' returned nan values"),
    ("nan", "nan", r"(?i)\bgrad(?:ient)? ?norm[:= ]+nan\b|\bloss[:= ]+nan\b", "cause", 2),
    ("nan", "loss scale already at minimum", r"loss scale already at minimum"),
    ("nan", "minimum loss scale", r"Minimum loss scale reached"),
    # Apex has no minimum of its own: it halves the scale at every step that overflows
    ("nan", "reducing loss scale to", r"loss scaler \d+ reducing loss scale to (?:0(?:\.\d+)?|[\d.]+e-\d+)$"),
)  # fmt: skip

# after these a job may go on, and worse than slow it need not be
_ONLY_WARNINGS = ("kernel_hang", "ib_device_refused", "cuda_no_kernel_image")
# in the order in which they are tried
ROWS: tuple[LinePattern, ...] = (*KERNEL, *ENDINGS, *STARTS, *_NCCL, *_CUDA, *TPU, *_TORCH, *_NCCL_WRAPPERS)

_FAR, _BEFORE = 250, 100
# most lines differ from others only in their numbers
_DIGITS = str.maketrans("123456789", "0" * 9)
_NEEDLES = tuple((row.needle.translate(_DIGITS), row) for row in ROWS)
_MOST_CACHED = 1000


@lru_cache(maxsize=2048)
def _rows_of(kind: str) -> tuple[LinePattern, ...]:
    """The rows whose needle is in a line of this kind: lower case, each digit 0."""
    return tuple(row for needle, row in _NEEDLES if needle in kind)


def error_event(text: str) -> Event | None:
    """The event of the first row that matches, with its named groups as details.

    None if no row matches or the line is known to be harmless.

    >>> error_event("RuntimeError: CUDA error: an illegal memory access was encountered").what
    'cuda_illegal_access'
    """
    kind = text.lower().translate(_DIGITS)
    for row in _rows_of(kind) if len(kind) <= _MOST_CACHED else _rows_of.__wrapped__(kind):
        if found := row.regex.search(text):
            if is_harmless(text):
                return None
            detail: dict[str, str | int] = {key: value for key, value in found.groupdict().items() if value is not None}
            if row.role == "echo" and row.what in _ONLY_WARNINGS:
                detail["warning"] = 1
            event = Event(role=row.role, what=row.what, strength=row.strength, names_rank=row.names_rank, detail=detail)
            if found.start() > _FAR:  # what matters of a long line is shown: XLA puts NCCL's warning at its end
                event.text = f"... {text[found.start() - _BEFORE :]}"
            return event
    return None


def with_place(event: Event, text: str) -> Event:
    """The event with the rank, host and GPU that its own text names."""
    if event.what == "collective_mismatch" and (found := facts.MISMATCH.search(text)):
        event.detail = {**event.detail, **{k: v for k, v in found.groupdict().items() if v is not None}}
    if task := event.word("task_rank"):
        event.rank = int(task)
    if event.what == "ssh_failed" and (host := event.word("host")):
        event.host = "" if host in ("localhost", "127.0.0.1", "::1") else host
    if event.what == "nan" and (named := re.search(r"[Rr]ank (\d+)", text)):
        event.rank = int(named[1])
    if where := facts.DEVICE_NODE.search(text):
        event.gpu, event.host = where["gpu"], where["host"]
    if event.gpu is None and event.what in ("cuda_oom", "gpu_ecc") and (gpu := facts.GPU.search(text)):
        event.gpu = gpu["gpu"] or gpu["device"]
    return event
