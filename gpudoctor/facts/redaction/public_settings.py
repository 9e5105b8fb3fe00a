"""Which values of environment variables are safe to publish: numbers, GPUs, and keywords of the libraries.

Sites put hosts, users, paths and keys into variables of any name, so a value is hidden unless its variable is known
here and the value has a form that identifies nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = r"[+-]?\d{1,10}(?:\.\d{1,6})?[KMGkmg]?"
_NUMBERS = rf"{_NUMBER}(?:[,:;-]{_NUMBER}){{0,64}}"
_UUID_START = r"(?:GPU|MIG)-[0-9a-fA-F-]{0,36}(?:/\d{1,3}){0,2}"
_GPU_LIST = rf"(?:-?\d{{1,10}}|{_UUID_START}|)(?:,(?:-?\d{{1,10}}|{_UUID_START}|)){{0,256}}|all|none|void|NoDevFiles"
_CUDA_FOLDER = r"/usr/local/cuda(?:-\d{1,3}(?:\.\d{1,3}){0,2})?(?:/(?:bin|lib64|lib|include|nvvm|extras|targets))*/?"
_PER_NODE = r"\d{1,10}(?:\(x\d{1,6}\))?(?:,\d{1,10}(?:\(x\d{1,6}\))?){0,64}"
_ALLOCATOR_WORD = (
    "backend|expandable_segments|garbage_collection_threshold|max_split_size_mb|max_non_split_rounding_mb|"
    "per_process_memory_fraction|pinned_num_register_threads|pinned_reserve_segment_size_mb|"
    "pinned_use_background_threads|pinned_use_cuda_host_register|release_lock_on_cudamalloc|roundup_power2_divisions"
)
_ALLOCATOR = rf"(?:{_ALLOCATOR_WORD}):(?:[\d.]{{1,12}}|True|False|native|cudaMallocAsync|\[[\d:,>]{{1,200}}\])"


def _words(*words: str) -> str:
    return "|".join(map(re.escape, words))


def _list_of(words: str) -> str:
    return rf"\^?(?:{words})(?:[,;:]\^?(?:{words})){{0,32}}"


_LINK_LEVELS = _words("LOC", "NVL", "PIX", "PXB", "PXN", "P2C", "C2C", "PHB", "NODE", "SYS")
_TRANSPORTS = _words("IB", "Socket", "shm", "p2p", "cuMem", "HOST", "DEVICE")
# Variable -> values that may be shown, both as regular expressions. Sources: NCCL user guide, environment variables;
# CUDA programming guide, same title; torch: CUDA semantics and torch.distributed; Slurm: srun(1), output variables
_SHAPES: tuple[tuple[str, str], ...] = (
    (r"(?:CUDA|NVIDIA)_VISIBLE_DEVICES", _GPU_LIST),
    (r"SLURM_(?:JOB|STEP)_GPUS|CUDA_VISIBLE_GPUS", _GPU_LIST),
    (r"SLURM_GPUS(?:_ON_NODE|_PER_NODE|_PER_TASK)?", r"(?:gpu:)?(?:[a-z]{1,4}\d{1,4}[a-z]{0,3}:)?\d{1,4}"),
    (r"SLURM_(?:JOB_CPUS_PER_NODE|TASKS_PER_NODE)", _PER_NODE),
    (r"NVIDIA_DRIVER_CAPABILITIES", _list_of(_words(
        "all", "compute", "utility", "graphics", "video", "display", "ngx", "compat32"))),
    (r"CUDA_DEVICE_ORDER", _words("FASTEST_FIRST", "PCI_BUS_ID")),
    (r"CUDA_MODULE_LOADING", _words("EAGER", "LAZY", "DEFAULT")),
    (r"CUDA_(?:HOME|PATH|ROOT|TOOLKIT_ROOT_DIR|BIN_PATH|LIB_PATH)", _CUDA_FOLDER),
    (r"CUDA_VERSION", r"\d{1,3}(?:\.\d{1,3}){0,3}"),
    (r"NCCL_DEBUG", _words("VERSION", "WARN", "INFO", "TRACE", "ABORT", "NONE")),
    (r"NCCL_DEBUG_SUBSYS", _list_of(_words(
        "INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "CALL", "PROXY", "NVLS", "BOOTSTRAP",
        "REG", "PROFILE", "RAS", "ALL"))),
    (r"NCCL_(?:P2P|NET_GDR|SHM|NET_GDR_C2C)_LEVEL", _LINK_LEVELS),
    (r"NCCL_ALGO", _list_of(_words(
        "Ring", "Tree", "Collnet", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT", "ring", "tree",
        "allreduce", "allgather", "broadcast", "reduce", "reducescatter"))),
    (r"NCCL_PROTO", _list_of(_words("LL", "LL128", "Simple", "simple", "ll", "ll128"))),
    (r"NCCL_NET", _TRANSPORTS + r"|AWS Libfabric"),
    (r"FI_PROVIDER", _list_of(_words(
        "efa", "tcp", "sockets", "verbs", "shm", "cxi", "opx", "psm2", "psm3", "net", "ofi_rxm"))),
    (r"NCCL_SOCKET_FAMILY", _words("AF_INET", "AF_INET6")),
    (r"NCCL_NET_PLUGIN|NCCL_TUNER_PLUGIN", _words("none", "aws-ofi", "ofi", "libnccl-net.so", "libnccl-net-ofi.so")),
    (r"OMP_PROC_BIND", _list_of(_words("true", "false", "close", "spread", "master", "primary"))),
    (r"GOMP_CPU_AFFINITY", r"[\d ,:-]{1,256}"),
    (r"TORCH_DISTRIBUTED_DEBUG", _words("OFF", "INFO", "DETAIL")),
    (r"PYTORCH(?:_CUDA)?_ALLOC_CONF", rf"{_ALLOCATOR}(?:,{_ALLOCATOR}){{0,16}}"),
)  # fmt: skip
_PUBLIC = tuple((re.compile(name), re.compile(shape, re.IGNORECASE)) for name, shape in _SHAPES)
_SWITCH = re.compile(rf"{_NUMBERS}|true|false|yes|no|on|off|", re.IGNORECASE)
# Variables that usually have a plain number. A number may still identify a machine: host, group and run ids stay hidden
_NUMERIC = re.compile(
    r"RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_PORT|OMP_NUM_THREADS|COMPUTE_PROFILE|"
    r"NSIGHT_CUDA_DEBUGGER|PYTORCH_NVML_BASED_CUDA_CHECK|CUDA_.*|NCCL_.*|FI_.*|TORCH_NCCL_.*|OMPI_COMM_WORLD_.*|"
    r"TORCHELASTIC_(?:RESTART_COUNT|MAX_RESTARTS|USE_AGENT_STORE|ERROR_FILE_.*)|"
    r"SLURM_(?:CPUS_.*|JOB_ID|JOB_NUM_NODES|LOCALID|MEM_PER_NODE|NNODES|NODEID|NPROCS|NTASKS.*|PROCID|STEP_ID|STEP_NUM_NODES)"
)
_NEVER = re.compile(
    r".*(?:HOST|COMM_ID|RUN_ID|ADDR|NAME|USER|PWD|PASS|TOKEN|KEY|SECRET|CREDENTIAL|AUTH).*", re.IGNORECASE
)
_SELECTED = re.compile(r"(?:NCCL|GLOO)_SOCKET_IFNAME|NCCL_IB_HCA")
_ADAPTER = re.compile(r"(?:mlx\d|bnxt_re|efa|irdma|roce|rocep|ibp|rdmap|hns)[\w]{0,20}")
# the names that SageMaker, and its local mode, give the hosts of every job
_ALGO = r"algo-\d{1,4}(?:-[a-z0-9]{5})?"
_SAGEMAKER_HOSTS = re.compile(rf'{_ALGO}|\["{_ALGO}"(?:, ?"{_ALGO}"){{0,999}}\]')
# every machine's name and address for itself
_LOOPBACK = re.compile(r"localhost|127\.0\.0\.1|::1")
_INTERFACE = re.compile(r"(?:lo|docker|veth|br|bond|ib|eth|ens|eno|enp|enP|wlan|wlp)[0-9a-z]{0,12}")


def is_public(name: str, value: str, devices: Iterable[str]) -> bool:
    """Whether this variable's value identifies nobody; `devices` are the node's network interfaces and adapters."""
    if _SELECTED.fullmatch(name):
        return all(_is_device(item, devices) for item in value.strip().lstrip("^=").split(","))
    if name == "MASTER_ADDR" and _LOOPBACK.fullmatch(value.strip()):
        return True
    if name in ("SM_HOSTS", "SM_CURRENT_HOST") and _SAGEMAKER_HOSTS.fullmatch(value.strip()):
        return True
    if _NEVER.fullmatch(name):
        return False
    if any(shape.fullmatch(value) for known_name, shape in _PUBLIC if known_name.fullmatch(name)):
        return True
    return _NUMERIC.fullmatch(name) is not None and _SWITCH.fullmatch(value) is not None


def _is_device(item: str, devices: Iterable[str]) -> bool:
    name, _, port = item.strip().partition(":")
    if not re.fullmatch(r"\d{0,3}", port):
        return False
    return (
        not name
        or any(device.startswith(name) for device in devices)  # NCCL takes the start of a name
        or _INTERFACE.fullmatch(name) is not None
        or _ADAPTER.fullmatch(name) is not None
    )
