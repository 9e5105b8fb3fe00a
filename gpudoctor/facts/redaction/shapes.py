"""Patterns for names of people, machines, parts and places in any text, and for settings that are safe to publish.

Each pattern is bounded, so that the time is linear in the length of the text.
Sites put hosts, users, paths and keys into environment variables of any name, so a value is hidden unless its variable
is known here and the value has a form that identifies nobody: numbers, GPUs, and keywords of the libraries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from gpudoctor.lazy import lazy_pattern

REDACTED = "redacted"
Replacement = str | Callable[[re.Match[str]], str]

# numbers with leading zeros (a VBIOS version) or a fifth part are not addresses
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_GROUPS = r"[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4})"
_PUBLIC_HOSTS = (
    r"(?:[\w-]+\.)?(?:nvidia|github|pytorch|kernel|schedmd|kubernetes|prometheus|readthedocs|python|ietf|huggingface)"
    r"\.(?:com|org|io|co)"
)
# top-level domains used for clusters; `so`, `py` and `sh` are excluded because they are file extensions
_TOP = (
    "com|org|net|edu|gov|mil|int|io|ai|app|dev|cloud|local|lan|internal|intra|corp|home|cluster|arpa|eu|de|fr|uk|ch|at|nl|"
    "be|it|es|pt|pl|cz|se|no|fi|dk|ie|gr|ro|hu|jp|cn|kr|tw|hk|in|sg|au|nz|ca|us|mx|br|ar|ru|ua|il|tr|za|sa|ae"
)
# locations used by distributions, the kernel and NVIDIA; any other may contain a private name
_OWN_PLACES = (
    r"usr/(?:bin|sbin|lib|lib32|lib64|libexec|share|include|src)/|usr/local/cuda(?:-[\d.]+)?(?![\w.-])|etc/|sys/|"
    r"proc/(?!(?:\d{1,10}|self|thread-self)/(?:root|cwd|fd|map_files|task)/)|"
    r"dev/(?!shm/|mapper/|disk/|hugepages/|mqueue/)|lib/|lib64/|bin/|sbin/|boot/|"
    r"run/(?:nvidia[\w-]*|systemd|udev|mount|lock)/|"
    r"var/log/(?:messages|syslog|kern\.log|dmesg|fabricmanager\.log|nvidia[\w.-]*)(?![\w./-])"
)
_IN_PATH = r"[\w.~@%+=:-]"
# a path that leaves such a location by "..", or is below another process's root, is redacted
_PATH = lazy_pattern(
    rf"(?<![\w./])/(?!(?:{_OWN_PLACES})(?!(?:\S{{0,300}}/)?\.\./))[\w~@%+-][\w.~@%+-]*(?:/{_IN_PATH}+)+/?"
)
_SHORT_PATH = lazy_pattern(
    r"(?<![\w./])/(?:home|Users|root|scratch|data|mnt|work|workspace|lustre|gpfs|fsx)/[\w.~@%+-]+"
)
_CGROUP = lazy_pattern(r"(/sys/fs/cgroup/)(?:[^\s/]+/)+([\w.]+)")
_FILE_ENDINGS = (
    "py|sh|json|jsonl|yaml|yml|toml|ini|cfg|conf|txt|log|csv|tsv|parquet|arrow|pt|pth|bin|ckpt|safetensors|npz|npy|h5|"
    "tar|gz|zip|zst|sif|sqsh|img|ipynb|sbatch|slurm|xml"
)
_LIBRARY = lazy_pattern(r".*/(lib[\w+-]+\.so[\d.]*)")
# how the driver's message continues after a process name; these words are judged and must not be redacted with it
_TAIL_OF_XID = (
    r"(?:Ch|channel|intr|engine|ESR|GPC|Graphics|MMU|MemErr|errorString|Class Error|Illegal|Out Of Range|"
    r"GPU (?:has fallen|recovery action)|[A-Z][A-Z_]{2,20} (?:Non-?)?[Ff]atal|(?:Non-?)?[Ff]atal)\b"
)
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
_SWITCH = lazy_pattern(rf"{_NUMBERS}|true|false|yes|no|on|off|", re.IGNORECASE)
# Variables that usually have a plain number. A number may still identify a machine: host, group and run ids stay hidden
_NUMERIC = lazy_pattern(
    r"RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_PORT|OMP_NUM_THREADS|COMPUTE_PROFILE|"
    r"NSIGHT_CUDA_DEBUGGER|PYTORCH_NVML_BASED_CUDA_CHECK|CUDA_.*|NCCL_.*|FI_.*|TORCH_NCCL_.*|OMPI_COMM_WORLD_.*|"
    r"TORCHELASTIC_(?:RESTART_COUNT|MAX_RESTARTS|USE_AGENT_STORE|ERROR_FILE_.*)|"
    r"SLURM_(?:CPUS_.*|JOB_ID|JOB_NUM_NODES|LOCALID|MEM_PER_NODE|NNODES|NODEID|NPROCS|NTASKS.*|PROCID|STEP_ID|STEP_NUM_NODES)"
)
_NEVER = lazy_pattern(
    r".*(?:HOST|COMM_ID|RUN_ID|ADDR|NAME|USER|PWD|PASS|TOKEN|KEY|SECRET|CREDENTIAL|AUTH).*", re.IGNORECASE
)
_SELECTED = lazy_pattern(r"(?:NCCL|GLOO)_SOCKET_IFNAME|NCCL_IB_HCA")
_ADAPTER = lazy_pattern(r"(?:mlx\d|bnxt_re|efa|irdma|roce|rocep|ibp|rdmap|hns)[\w]{0,20}")
# the names that SageMaker, and its local mode, give the hosts of every job
_ALGO = r"algo-\d{1,4}(?:-[a-z0-9]{5})?"
_SAGEMAKER_HOSTS = lazy_pattern(rf'{_ALGO}|\["{_ALGO}"(?:, ?"{_ALGO}"){{0,999}}\]')
# every machine's name and address for itself
_LOOPBACK = lazy_pattern(r"localhost|127\.0\.0\.1|::1")
_INTERFACE = lazy_pattern(r"(?:lo|docker|veth|br|bond|ib|eth|ens|eno|enp|enP|wlan|wlp)[0-9a-z]{0,12}")


def _of_path(match: re.Match[str]) -> str:
    library = _LIBRARY.fullmatch(match.group())
    return f"/{REDACTED}/{library[1]}" if library else f"/{REDACTED}"


def _of_url(match: re.Match[str]) -> str:
    public = re.fullmatch(rf"{_PUBLIC_HOSTS}(?:/.*)?", match[2], re.DOTALL) and "@" not in match[2]
    return match.group() if public else f"{match[1]}://{REDACTED}"


def _of_name(match: re.Match[str]) -> str:
    return match.group() if re.fullmatch(_PUBLIC_HOSTS, match.group(), re.IGNORECASE) else REDACTED


# the order matters: patterns that contain a host or a path come before those for a host or path alone
_SHAPES: tuple[tuple[re.Pattern[str], Replacement], ...] = (
    # an operator's reason for a suppression: free text, with tickets, names and places
    (lazy_pattern(r"\b(suppressed until [\d-]{10} \()(?s:.{1,4096}?)(\); was (?:fail|warn|unknown): )"),
     rf"\1{REDACTED}\2"),
    (lazy_pattern(r"\b(suppression of [^\s(]{1,100} ended on [\d-]{10} \()(?s:.{1,4096}?)(\): it no longer holds)"),
     rf"\1{REDACTED}\2"),
    (lazy_pattern(r"\b([A-Za-z][A-Za-z0-9+.-]{1,20})://([^\s'\"<>,;)]+)"), _of_url),
    # values after a word like "password", and tokens with a prefix that shows their kind
    (lazy_pattern(r"(?i)\b([\w-]{0,40}(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|credential)s?[\"']?"
                r"\s{0,4}[=:]\s{0,4}[\"']?)[^\s\"',;)]{4,}"), rf"\1{REDACTED}"),
    (lazy_pattern(r"(?i)\b(bearer|basic) [\w.~+/=-]{8,}"), rf"\1 {REDACTED}"),
    (lazy_pattern(r"(?<![\w-])(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[bp]-|AKIA)[\w-]{12,}"), REDACTED),
    (lazy_pattern(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*"), REDACTED),
    (lazy_pattern(r"\b(File \"?)[^\"\n,]{1,300}\.py\b(?=\"?, line)"), rf"\1{REDACTED}"),  # in a traceback
    (lazy_pattern(r"\b(pid=)('[^']*'|\d+)"), rf"\1{REDACTED}"),
    # a name may contain commas: it ends where the driver's message continues, otherwise with the line
    (lazy_pattern(rf"\b((?:name|comm|exe|cmdline|cmd|task|user)=)(?!<unknown>)(?:[^\n]*(?=, {_TAIL_OF_XID})|[^\n]*)"),
     rf"\1{REDACTED}"),
    # the kernel's messages about a process
    (lazy_pattern(r"\b(INFO: task )[^\n]{1,60}(:\d+ blocked for )"), rf"\1{REDACTED}\2"),
    (lazy_pattern(r"\b((?:Killed|Kill) process \d+ \()[^\n]{1,60}?(\)(?: |,|$))"), rf"\1{REDACTED}\2"),
    (lazy_pattern(r"( stuck for \d+s! \[)[^\n]{1,60}(:\d+\])"), rf"\1{REDACTED}\2"),
    (lazy_pattern(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*"), REDACTED),
    (lazy_pattern(r"(?i)\b(serial(?:[ _-]?(?:number|no))?|s/n|sn(?=\s?[:=#])|board[ _]?id)"
                r"(\.?\s*[:=#]?\s*)(?=[\w-]*\d)[\w-]{4,}"),
     rf"\1\2{REDACTED}"),
    (lazy_pattern(rf"(?<![\w./:])//[\w.-]+(?:/{_IN_PATH}+)+"), REDACTED),  # a share of a file server
    (_CGROUP, rf"\1{REDACTED}/\2"),
    (lazy_pattern(r"(?<![\w./~])~[A-Za-z_]?[\w.-]*(?:/[\w.~@%+=-]+)*(?<!~)"), REDACTED),
    (_PATH, _of_path),
    (_SHORT_PATH, f"/{REDACTED}"),
    (lazy_pattern(r"(?<![\w./-])\.{1,2}/[\w.~@%+=/-]+"), REDACTED),
    (lazy_pattern(rf"(?<![\w.@%+/-])(?:[\w.@%+-]+/)+[\w.@%+-]+\.(?:{_FILE_ENDINGS})\b"), REDACTED),
    # AWS ids of machines, disks and network cards; and host names that AWS derives from an address
    (lazy_pattern(r"(?<![\w-])(?:(?:i|vol|eni|vpc|subnet|ami|snap|sg)-[0-9a-f]{8,17}|ip(?:-\d{1,3}){4})(?![\w-])"),
     REDACTED),
    # ids of containers, machines, boots and images: 64, 40 or 32 hex digits, or the first 12
    (lazy_pattern(r"(?<![0-9A-Za-z])(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32})(?![0-9A-Za-z])"), REDACTED),
    (lazy_pattern(r"(?:(?<![0-9A-Za-z:.-])|(?<=docker-)|(?<=crio-)|(?<=containerd-))"
                r"(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{12}(?![0-9A-Za-z:-])"), REDACTED),
    # InfiniBand GUIDs; a bit mask of event reasons has leading zeros and is kept
    (lazy_pattern(r"(?<![0-9A-Za-z])(0x)?(?!0000)[0-9a-fA-F]{16}(?![0-9A-Za-z])"), rf"\1{REDACTED}"),
    # hardware addresses with colons, dashes or dots; GUIDs in four groups
    (lazy_pattern(r"(?<![\w:.])(?:[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5,19}|[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3})(?![\w:.])"),
     "0.0.0.0"),
    (lazy_pattern(r"(?<![\w-])[0-9a-fA-F]{2}(?:-[0-9a-fA-F]{2}){5,7}(?![\w-])"), "0.0.0.0"),
    (lazy_pattern(r"(?<![\w.])[0-9a-fA-F]{4}(?:\.[0-9a-fA-F]{4}){2}(?![\w.])"), "0.0.0.0"),
    (lazy_pattern(rf"(?<![\w:.])(?:{_GROUPS}{{7}}|{_GROUPS}{{0,6}}::(?:{_GROUPS}{{0,6}})?)(?![\w:.])"), "0.0.0.0"),
    (lazy_pattern(rf"(?<![\d.]){_OCTET}(?:\.{_OCTET}){{3}}(?!\.?\d)"), "0.0.0.0"),
    (lazy_pattern(rf"(?i)(?<![\w./-])(?:[a-z0-9-]{{1,63}}\.){{1,8}}(?:{_TOP})(?![\w-]|\.\w)"), _of_name),
    # a host with its port, in NCCL's notation and in the usual one
    (lazy_pattern(r"(?<![\w./-])[A-Za-z][\w.-]{0,254}(?=<\d{2,5}>)"), REDACTED),
    (lazy_pattern(r"(?<![\w./-])(?!(?i:gpu|rank|cuda|nvidia|sm_?)\d+:)[A-Za-z][A-Za-z0-9-]{0,62}\d(?=:\d{4,5}(?![\w.:]))"),
     REDACTED),
)  # fmt: skip


@lru_cache(maxsize=2048)  # a report repeats the same text for every GPU
def shapes_taken_out(text: str) -> str:
    """The text without addresses, ids, mail addresses, hosts with a domain, paths, and names labelled as such."""
    for pattern, replacement in _SHAPES:
        text = pattern.sub(replacement, text)
    return text


def _words(*text: str) -> str:
    return "|".join(map(re.escape, text))


def _list_of(text: str) -> str:
    return rf"\^?(?:{text})(?:[,;:]\^?(?:{text})){{0,32}}"


_LINK_LEVELS = _words("LOC", "NVL", "PIX", "PXB", "PXN", "P2C", "C2C", "PHB", "NODE", "SYS")
_TRANSPORTS = _words("IB", "Socket", "shm", "p2p", "cuMem", "HOST", "DEVICE")
# Variable -> values that may be shown, both as regular expressions. Sources: NCCL user guide, environment variables;
# CUDA programming guide, same title; torch: CUDA semantics and torch.distributed; Slurm: srun(1), output variables
_SETTINGS: tuple[tuple[str, str], ...] = (
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
_PUBLIC = tuple((lazy_pattern(name), lazy_pattern(shape, re.IGNORECASE)) for name, shape in _SETTINGS)


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
