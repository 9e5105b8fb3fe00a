"""The software environment: the variables that control it, the versions of what is installed, and the node's name.

Variables of CUDA, NCCL, libfabric, launchers and the scheduler. Versions of Python, torch, its CUDA and NCCL, and the
plugins of NCCL come from files: importing torch takes seconds.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Environment, NcclNetPlugin, Software, Variable
from gpudoctor.facts.system.sysfs import ROOT, AnyPath, SysPath, list_names, missing_from, present, read_text
from gpudoctor.lazy import lazy_imports, lazy_pattern

with lazy_imports():  # starts processes, which the readers of captures do not
    from gpudoctor.facts.system import path_status

_PREFIXES = ("CUDA_", "NCCL_", "TORCH_NCCL_", "TORCHELASTIC_", "OMPI_COMM_WORLD_", "FI_")
_NAMES = frozenset((
    "COMPUTE_PROFILE", "GLOO_SOCKET_IFNAME", "GOMP_CPU_AFFINITY", "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "NSIGHT_CUDA_DEBUGGER", "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS", "OMP_PROC_BIND", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NVML_BASED_CUDA_CHECK", "RANK", "SM_CURRENT_HOST", "SM_HOSTS", "TORCH_DISTRIBUTED_DEBUG", "WORLD_SIZE",
    "SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_GPU", "SLURM_CPUS_PER_TASK", "SLURM_GPUS", "SLURM_GPUS_ON_NODE",
    "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_GPUS", "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_LOCALID", "SLURM_MEM_PER_NODE", "SLURM_NNODES",
    "SLURM_NODEID", "SLURM_NODELIST", "SLURM_NPROCS", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID",
    "SLURM_STEP_GPUS", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_TASKS_PER_NODE",
))  # fmt: skip
_SECRET = lazy_pattern(r"TOKEN|KEY|SECRET|PASS|PWD|CREDENTIAL|AUTH", re.IGNORECASE)
# Variables that name a file; the libraries may also be bare names that the loader looks up
_FILES = frozenset({"NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_CONF_FILE"})
_LIBRARIES = frozenset({"NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "CUDA_INJECTION64_PATH"})
_MAX_VALUE = 4096

# a script's word for what is not set: '<unset>'
_PLACEHOLDER = lazy_pattern(r"['\"]?<(?:un|not )?(?:set|defined|none|empty)>['\"]?")
_ASSIGNMENT = lazy_pattern(r"(?:export |declare -x )?([A-Za-z_][A-Za-z0-9_.%()]*)=(.*)", re.DOTALL)
NODE_NAME_VARIABLE = "GPUDOCTOR_NODE_NAME"
_NOT_INSTALLED = Missing("PyTorch is not installed: pip install 'torch>=2.4' 'numpy>=1.26'")
# NCCL user guide, NCCL_NET_PLUGIN: libnccl-net.so, or libnccl-net-NAME.so
_FILE = lazy_pattern(r"libnccl-net(?:-[\w.-]+)?\.so(?:\.\d+)*")
_CACHED = lazy_pattern(rb"(/[^\0]{1,4000}/libnccl-net(?:-[\w.-]+)?\.so(?:\.\d+)*)\0")
_CACHE = "etc/ld.so.cache"
_CACHE_BYTES = 16 << 20
# the prefix of each log message of aws-ofi-nccl (nccl_ofi_log.h)
_LIBFABRIC = b"NET/OFI "
_LIBRARY_BYTES = 64 << 20
# ld.so(8): searched without a cache
_DEFAULT_FOLDERS = (
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
)


def read_environment(environ: Mapping[str, str], root: AnyPath = ROOT) -> Environment:
    """The variables of interest, by name; `path_exists` is set if one names a file, and its file system answers.

    Variables whose name suggests a secret are never kept. Values are truncated to 4096 characters.
    """
    return Environment(variables=_kept(environ.items(), root))


def parse_env_text(text: str) -> Environment:
    """A captured `env`, `export -p` or /proc/PID/environ; a line without NAME= continues the value above it.

    A placeholder (`<unset>`) is no value. The files that variables name are on another machine, so `path_exists` stays
    None.
    """
    variables: dict[str, str] = {}
    last: str | None = None
    by_line = "\0" not in text
    for entry in text.split("\n") if by_line else text.split("\0"):
        match = _ASSIGNMENT.fullmatch(entry.rstrip("\r") if by_line else entry)
        if match:
            last = match[1]
            variables[last] = _unquoted(match[2]) if entry.startswith(("export ", "declare ")) else match[2]
            if _PLACEHOLDER.fullmatch(match[2]):
                del variables[last]
                last = None
        elif last is not None and entry and by_line and len(variables[last]) < _MAX_VALUE:
            variables[last] += f"\n{entry}"
    return Environment(variables=_kept(variables.items(), None))


def _kept(items: Iterable[tuple[str, str]], root: AnyPath | None) -> tuple[Variable, ...]:
    listed = ((name, value) for name, value in sorted(items) if name in _NAMES or name.startswith(_PREFIXES))
    retained = [(name, value) for name, value in listed if not _SECRET.search(name)]
    exist = {} if root is None else _paths_exist([value for name, value in retained if _names_file(name, value)], root)
    return tuple(
        Variable(name, _clean(value), exist.get(value) if _names_file(name, value) else None)
        for name, value in retained
    )


def _clean(value: str) -> str:
    """Python keeps bytes that are not UTF-8 as lone surrogates, which JSON cannot hold."""
    return value[:_MAX_VALUE].encode("utf-8", "replace").decode()


def _unquoted(value: str) -> str:
    quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value


def _names_file(name: str, value: str) -> bool:
    return name in _FILES or (name in _LIBRARIES and "/" in value)


def _paths_exist(paths: list[str], root: AnyPath) -> dict[str, bool | None]:
    """Whether each path exists; None if it is on a mount that does not answer, which would block this process."""
    absolute = [path for path in paths if path.startswith("/")]
    found: dict[str, bool | None] = {path: os.path.exists(path) for path in paths if path not in absolute}
    if os.fspath(root) != ROOT:
        return found | {path: os.path.exists(root / path.lstrip("/")) for path in absolute}
    for path, status in zip(absolute, path_status.ask_paths(absolute) if absolute else (), strict=True):
        found[path] = None if isinstance(status, Missing) else status.error is None
    return found


def node_name() -> str:
    """The name of this node in reports and metrics: GPUDOCTOR_NODE_NAME, else the hostname.

    The hostname of a pod without the host's network is not the node's; its manifest sets the variable
    (Kubernetes' downward API, spec.nodeName).
    """
    return given_node_name() or socket.gethostname()


def given_node_name() -> str | None:
    """The value of GPUDOCTOR_NODE_NAME; None if it is unset or empty. Bytes that are not UTF-8 become `?`."""
    return os.environ.get(NODE_NAME_VARIABLE, "").strip().encode("utf-8", "replace").decode() or None


def read_software(search_path: Sequence[str] | None = None) -> Software:
    """The torch that `import torch` would find on the search path (default: this interpreter's).

    `torch_cuda` is None for a CPU-only build. The version of NCCL comes from the nvidia-nccl package, else from
    the name of the library file; every copy of libnccl is listed in `nccl_copies`, since two of
    them in one process make NCCL fail in unpredictable ways.
    """
    search_path = sys.path if search_path is None else search_path
    folders = [SysPath(os.path.normpath(entry)) for entry in search_path if os.path.isdir(entry or ".")]
    python = ".".join(str(part) for part in sys.version_info[:3])
    torch = next((folder / "torch" for folder in folders if os.path.isfile(folder / "torch/__init__.py")), None)
    if torch is None:
        return Software(python, _NOT_INSTALLED, _NOT_INSTALLED, _NOT_INSTALLED, _NOT_INSTALLED)
    text = known(read_text(torch / "version.py")) or ""
    version = _assigned(text, "__version__")
    cuda = _assigned(text, "cuda")
    copies = _nccl_copies(torch, folders)
    return Software(
        python=python,
        torch=version or Missing(f"{torch / 'version.py'} tells no version", "failed"),
        torch_cuda=cuda if text else Missing(f"{torch / 'version.py'} cannot be read", "failed"),
        torch_location=str(torch),
        nccl=_nccl_version(folders, copies, cuda),
        nccl_copies=tuple(str(copy) for copy in copies),
    )


def _assigned(text: str, name: str) -> str | None:
    """The string assigned to a name: name = '1.2', name: Optional[str] = '1.2'; None for anything else."""
    found = re.search(rf"^{name}\s*(?::[^=\n]+)?=\s*['\"]([^'\"\n]+)['\"]", text, re.MULTILINE)
    return found.group(1) if found else None


def _nccl_version(folders: list[SysPath], copies: list[SysPath], cuda: str | None) -> str | Missing:
    for folder in folders:
        for name in known(list_names(folder)) or ():
            found = re.fullmatch(r"nvidia_nccl_cu\d+-(.+)\.dist-info", name)
            if found:
                return found.group(1)
    for copy in copies:
        found = re.search(r"\.so\.(\d+\.\d+.*)$", os.path.basename(os.path.realpath(copy)))
        if found:
            return found.group(1)
    if cuda is None:
        return Missing("a CPU-only build of PyTorch has no NCCL")
    if copies:
        return Missing(f"{copies[0].name} does not tell its version")
    # older builds and NVIDIA's containers link NCCL statically into torch
    return Missing("no NCCL library beside PyTorch: it may be linked into it")


def _nccl_copies(torch: SysPath, folders: list[SysPath]) -> list[SysPath]:
    """libnccl in torch's folder, in the nvidia packages, and in LD_LIBRARY_PATH; each file once."""
    places = [torch / "lib", *(folder / "nvidia/nccl/lib" for folder in folders)]
    places += [SysPath(os.path.normpath(entry)) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    found: dict[str, SysPath] = {}
    for place in places:
        for name in known(list_names(place)) or ():
            if name.startswith("libnccl.so.") and os.path.exists(place / name):  # a link that leads nowhere is no copy
                found.setdefault(os.path.realpath(place / name), place / name)
    return list(found.values())


# NCCL's network plugins


def read_nccl_net_plugins(root: AnyPath, environment: Mapping[str, str]) -> tuple[NcclNetPlugin, ...] | Missing:
    """The plugins in the loader's order: LD_LIBRARY_PATH, its cache, its default folders; each once.

    A path in NCCL_NET_PLUGIN comes first. No library is loaded: the one for libfabric is recognised by its strings.
    Missing (failed, denied) if the cache exists but cannot be read: a plugin may be in it.
    """
    named = environment.get("NCCL_NET_PLUGIN", "")
    found = [named] if named.startswith("/") and present(root / named.lstrip("/")) else []
    folders = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    found += [path for folder in folders for path in _in_folder(root, folder)]
    cached = _in_cache(root)
    if isinstance(cached, Missing):
        return cached
    found += cached
    found += [path for folder in _DEFAULT_FOLDERS for path in _in_folder(root, folder)]
    return tuple(NcclNetPlugin(path, _is_for_libfabric(root / path.lstrip("/"))) for path in dict.fromkeys(found))


def _in_folder(root: AnyPath, folder: str) -> list[str]:
    names = known(list_names(root / folder.lstrip("/"))) or ()
    return [f"{folder.rstrip('/')}/{name}" for name in names if _FILE.fullmatch(name)]


def _in_cache(root: AnyPath) -> list[str] | Missing:
    """Existing paths of plugins among the strings of the loader's cache (ldconfig(8))."""
    try:
        with open(root / _CACHE, "rb") as file:
            text = file.read(_CACHE_BYTES)
    except FileNotFoundError:
        return []  # musl, and images without a cache
    except OSError as error:
        return missing_from(error, f"/{_CACHE}")
    paths = [match[1].decode("utf-8", "replace") for match in _CACHED.finditer(text)]
    return [path for path in paths if present(root / path.lstrip("/"))]


def _is_for_libfabric(path: AnyPath) -> bool | Missing:
    try:
        # O_NONBLOCK: a FIFO of that name would wait for its writer
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            plain = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return plain and _LIBFABRIC in file.read(_LIBRARY_BYTES)
    except OSError as error:
        return missing_from(error, str(path))
