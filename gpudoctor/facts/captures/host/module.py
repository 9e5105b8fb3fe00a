"""The driver's kernel module in the output of lsmod, modinfo, dkms, modprobe and mokutil; and uname."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.reader import Block, Part, TextReader, text_reader
from gpudoctor.facts.model.driver import DRIVER_VERSION, DkmsBuild, Driver, LoadFailure, LoadFailureCause
from gpudoctor.facts.model.missing import NOT_READ
from gpudoctor.facts.model.node import Host, Network, Node
from gpudoctor.facts.system.network import PEER_CORES, PEERMEM

_LSMOD = re.compile(r"(?P<module>[\w-]{1,60})\s+\d{3,10}\s+-?\d{1,5}(?!\S)\s*(?P<users>.*)")
_MODINFO = re.compile(rf"version:\s+({DRIVER_VERSION})\s*$")
_DKMS = re.compile(
    rf"nvidia[\w-]{{0,20}}(?:/|, ?)(?P<version>{DRIVER_VERSION})(?:, (?P<kernel>[^,:\s]{{1,80}}))?"
    r"(?:, [^,:]{1,20})?: ?(?P<state>\w+)"
)
_UNAME = re.compile(
    r"Linux \S{1,253} (?P<kernel>\d{1,2}\.\d{1,3}\.\S{1,80}) #\d.*?\b(?P<machine>x86_64|aarch64|ppc64le)\b"
)
_UNAME_R = re.compile(r"(?P<kernel>\d{1,2}\.\d{1,3}\.\d[\w.+-]{0,80})\s*$")
_PROC_VERSION = re.compile(
    rf"NVRM version: .{{0,120}}?Kernel Module(?: for \w{{1,20}})?\D{{0,60}}?({DRIVER_VERSION})\b"
)
_MOKUTIL = re.compile(r"SecureBoot (enabled|disabled)")
_KMOD = r"(?:modprobe|insmod): (?:ERROR|FATAL): .{0,120}nvidia.{0,80}"
# nvidia-container-cli's messages about NVML when it starts a container -> nvmlInit's code
_NVML_CODES = {"driver not loaded": 9, "driver/library version mismatch": 18, "nvml error: unknown error": 999}
_NO_NVML, _NO_NVML_CODE = r"libnvidia-ml\.so\S{0,6}: cannot open shared object file", 12
_CONTAINER_NVML = re.compile(rf".{{0,300}}nvidia-container-cli: .{{0,80}}({'|'.join(_NVML_CODES)}|{_NO_NVML})")
_CONTAINER_WITH_GPUS = re.compile(
    r"\b(?:docker|podman|nerdctl)(?: container)? run [^|;&]{0,400}?(?:--gpus|--runtime[= ]nvidia|nvidia\.com/gpu)"
)
# one of these is in each of the lines above: a long log is searched for them only
_LOAD_WORDS = re.compile("modprobe: |insmod: |modinfo: |rror! |ERROR: |device driver|untime|CDI|container-cli")


class LoadError(msgspec.Struct, frozen=True):
    """One row of the table: a line whose start matches `pattern` means `cause`; `source` is what prints it."""

    pattern: re.Pattern[str]
    cause: LoadFailureCause
    source: str


# Messages of tools that failed to load or build the module, or to give GPUs to a container
_LOAD_ERRORS: tuple[tuple[LoadFailureCause, str, str], ...] = (
    ("signature-rejected", "kmod, EKEYREJECTED", _KMOD + "(?:Key was rejected|Required key not available)"),
    ("other-kernel", "kmod, ENOEXEC", _KMOD + "(?:Exec format error|Unknown symbol|Invalid module format)"),
    ("build-failed", "kmod, ENOENT", r"modprobe: FATAL: Module nvidia\S{0,20} not found"),
    ("build-failed", "kmod, modinfo", r"modinfo: ERROR: Module nvidia\S{0,20} not found"),
    ("refused", "kmod, ENODEV", _KMOD + "No such device"),
    ("other-driver", "kmod, EBUSY", _KMOD + "Device or resource busy"),
    ("build-failed", "dkms", r"Error! (?:Your kernel headers for kernel|Bad return status for module build)"),
    ("build-failed", "dkms", r"Error! (?:Could not locate dkms\.conf|The dkms\.conf|Module nvidia)"),
    ("build-failed", "nvidia-installer",
        "ERROR: (?:Unable to find the kernel source tree|The kernel module failed to build)"),
    ("signature-rejected", "nvidia-installer",
        "ERROR: The kernel module failed to load.{0,200}(?:Secure Boot|signed)"),
    ("other-driver", "nvidia-installer", "ERROR: .{0,80}Nouveau kernel driver is currently in use"),
    ("no-container-runtime", "dockerd",
        r".{0,160}could not select device driver \"\S{0,20}\" with capabilities: \[\[.{0,60}gpu"),
    ("no-container-runtime", "dockerd",
        r".{0,160}[Uu]nknown (?:or invalid )?runtime (?:name|specified):? \"?nvidia"),
    ("no-container-runtime", "containerd", r".{0,300}no runtime for \"nvidia\" is configured"),
    ("no-container-runtime", "dockerd, podman", r".{0,300}unresolvable CDI devices nvidia\.com/gpu"),
)  # fmt: skip
LOAD_ERRORS = tuple(LoadError(re.compile(pattern), cause, source) for cause, source, pattern in _LOAD_ERRORS)


@text_reader("lsmod", r"Module\s+Size\s+Used by|(?:nvidia\w*|nouveau)\s+\d{3,10}\s+\d{1,5}(?:\s|$)", _LSMOD.match)
def read_lsmod(block: Block) -> Part:
    """`lsmod`, complete or filtered: the loaded modules. A module that is not listed may have been cut off."""
    users = {found["module"]: found["users"] for found in block.matches(_LSMOD)}
    driver, network = Driver(), Network()
    if "nvidia" in users:
        driver = Driver(module_loaded=True)
    elif "nouveau" in users:
        driver = Driver(nouveau_loaded=True)
    if not users.keys().isdisjoint(PEERMEM):
        cores = [users[core] for core in PEER_CORES if core in users]
        registered = any("peer" in each for each in cores) if cores else NOT_READ
        network = Network(peermem_loaded=True, peermem_registered=registered)
    return Part(Node(driver=driver, network=network))


@text_reader(
    "dkms status",
    rf"nvidia[\w-]{{0,20}}(?:/|, ?){DRIVER_VERSION}(?:, [^,:]{{1,80}}){{0,2}}: ?(?:added|built|installed|broken)",
)
def read_dkms(block: Block) -> Part:
    """`dkms status`: the kernels for which the module is built."""
    builds = tuple(DkmsBuild(**found.groupdict()) for found in block.matches(_DKMS))
    return Part(Node(driver=Driver(dkms=builds)))


def is_load_error(line: str) -> bool:
    """Whether the line matches `LOAD_ERRORS` or is from nvidia-container-cli about NVML."""
    patterns = (*(row.pattern for row in LOAD_ERRORS), _CONTAINER_NVML)
    return _LOAD_WORDS.search(line) is not None and any(pattern.match(line) for pattern in patterns)


@text_reader("driver load error", is_load_error)
def read_load_errors(block: Block) -> Part:
    """Messages of tools that could not load or build the module, or start a container with GPUs."""
    driver = Driver()
    failures: dict[LoadFailure, None] = {}
    for line in block.lines:
        if row := next((row for row in LOAD_ERRORS if row.pattern.match(line)), None):
            failures[LoadFailure(row.cause, line.strip()[:300])] = None
        if found := _CONTAINER_NVML.match(line):
            driver = Driver(init_code=_NVML_CODES.get(found[1], _NO_NVML_CODE), init_error=line.strip()[:300])
    return Part(Node(driver=replace(driver, load_failures=tuple(failures))))


@text_reader(
    "modinfo",
    r"filename:\s+/\S*/nvidia[\w.-]*\.ko|modinfo: ERROR: Module nvidia",
    r"(?:filename|alias|version|supported|license|description|author|srcversion|depends|retpoline|name|vermagic"
    r"|sig_id|signer|sig_key|sig_hashalgo|signature|parm|firmware|import_ns|softdep|intree):\s"
    r"|\s+[0-9A-F]{2}(?::[0-9A-F]{2})+",
)
def read_modinfo(block: Block) -> Part:
    """`modinfo nvidia`: the version of the module on disk, or that there is none for this kernel."""
    if found := next(block.matches(_MODINFO), None):
        return Part(Node(driver=Driver(disk_version=found[1])))
    return read_load_errors.read(block)


def shows_gpus_in_container(block: Block, part: Part) -> bool:
    """Whether the text is of a container that was started with GPUs, and shows them."""
    return _CONTAINER_WITH_GPUS.search(block.command) is not None and any(dump.gpus for dump in part.smi)


def without_container_failures(node: Node) -> Node:
    """The node without the failures to give GPUs to a container."""
    left = tuple(failure for failure in node.driver.load_failures if failure.cause != "no-container-runtime")
    return replace(node, driver=replace(node.driver, load_failures=left))


@text_reader("uname", _UNAME.match, _UNAME_R.match, after=r"uname(?: -\w+)?\s*$")
def read_uname(block: Block) -> Part:
    """`uname -a`, or `uname -r` if the prompt above shows that command."""
    for line in block.lines:
        if found := _UNAME.match(line) or _UNAME_R.match(line):
            leaves: dict[str, Any] = found.groupdict()
            return Part(Node(host=Host(**leaves)))
    return Part()


@text_reader("mokutil", _MOKUTIL.match)
def read_mokutil(block: Block) -> Part:
    """`mokutil --sb-state`."""
    found = next(block.matches(_MOKUTIL), None)
    return Part(Node(host=Host(secure_boot=found[1] == "enabled"))) if found else Part()


@text_reader("kernel-module", "NVRM version:", "GCC version:")
def read_proc_version(block: Block) -> Part:
    """/proc/driver/nvidia/version."""
    version = _PROC_VERSION.search(block.text)
    if version is None:
        raise SourceError("no version behind 'NVRM version:'")
    return Part(Node(driver=Driver(module_version=version[1], module_loaded=True)))


MODULE_READERS: tuple[TextReader, ...] = (
    *(read_lsmod, read_modinfo, read_dkms, read_load_errors, read_uname, read_mokutil, read_proc_version),
)
