"""The health check's verdict, saved for prologs: trusted only if it is recent and nothing has changed since."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

import msgspec

from gpudoctor import __version__
from gpudoctor.process.private_folder import why_replaceable
from gpudoctor.report.output_files import OutputError, write_file
from gpudoctor.slurm.quick_check import HookVerdict, text_of
from gpudoctor.slurm.settings import HookSettings

_FILE = "verdict.json"
_CONFIG = "etc/gpudoctor/config.yaml"
_KMSG_BYTES_MAX = 16 << 20
# words in kernel messages about GPUs, PCIe, memory or network; an irrelevant match only costs a live check
_WORDS = (
    "nvrm",
    "nvidia",
    "nvswitch",
    "xid",
    "aer:",
    "pcie",
    "hardware error",
    "mce:",
    "edac",
    "mlx",
    "iommu",
    "i/o error",
)


class NodeIdentity(msgspec.Struct, frozen=True):
    """What must be unchanged: the boot, the driver, the GPUs that it lists, and the settings of the check."""

    boot: str
    driver: str
    gpus: tuple[str, ...]
    judged_by: tuple[str, ...]


class NodeBefore(msgspec.Struct, frozen=True):
    """The node before a check: its identity, the seconds since boot, and the number of the kernel log's last record."""

    identity: NodeIdentity
    since_boot_s: float
    kernel_last: int


class _Kept(NodeBefore, frozen=True):
    verdict: Literal["pass", "warn"]
    reason: str


def node_before(settings: HookSettings, root: Path = Path("/")) -> NodeBefore | None:
    """To be read before a check begins, so that changes during it invalidate its verdict.

    None if its identity or the kernel log cannot be read: no verdict is saved then.
    """
    about, records = _identity(settings, root), _kernel_records(root)
    return None if about is None or not records else NodeBefore(about, since_boot_s(), records[-1][0])


def _identity(settings: HookSettings, root: Path) -> NodeIdentity | None:
    boot, driver = text_of(root / "proc/sys/kernel/random/boot_id"), text_of(root / "proc/driver/nvidia/version")
    if settings.simulated:
        driver = "simulated"
    if not boot or not driver:
        return None
    try:
        gpus = tuple(sorted(os.listdir(root / "proc/driver/nvidia/gpus")))  # noqa: PTH208 - names
    except OSError:
        gpus = ()
    if not gpus and not settings.simulated:
        return None
    how = (__version__, *settings.skip, "trial", *settings.simulated, _stamp(root / _CONFIG))
    return NodeIdentity(boot, driver, gpus, how)


def keep(settings: HookSettings, before: NodeBefore | None, verdict: HookVerdict) -> None:
    """Save a pass or warn of the whole node for prologs; any other verdict, or one that may not be kept, forgets it."""
    found = verdict.verdict
    if before is None or not settings.max_age_s or not (found == "pass" or found == "warn"):
        forget(settings)
        return
    retained = _Kept(before.identity, before.since_boot_s, before.kernel_last, found, verdict.why)
    try:
        write_file(settings.state / _FILE, msgspec.json.encode(retained).decode())
    except OutputError:
        forget(settings)


def forget(settings: HookSettings) -> None:
    try:
        (settings.state / _FILE).unlink(missing_ok=True)
    except OSError:  # read-only, or another user's: `fresh` does not trust it then
        return


def fresh(settings: HookSettings, root: Path = Path("/")) -> HookVerdict | None:
    """The saved verdict, with its age, if it is still valid; None if there is any doubt, and the node must be checked.

    It is valid for `max_age_s` of the boot clock, for the same driver, GPUs, settings and version of gpudoctor, as long
    as the kernel has logged nothing about GPUs, PCIe, memory or network since, and only if no user but root could have
    written it.
    """
    path = settings.state / _FILE
    if not settings.max_age_s:
        return None
    try:
        if why_replaceable(path) is not None:
            return None
        retained = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except (OSError, ValueError, RecursionError):  # msgspec raises UnicodeDecodeError too
        return None
    age_s = since_boot_s() - retained.since_boot_s
    if not 0 <= age_s <= settings.max_age_s or retained.identity != _identity(settings, root):
        return None
    if not _kernel_is_quiet_since(retained.kernel_last, root):
        return None
    return HookVerdict(retained.verdict, f"{retained.reason} (health check of {age_s:.0f} s ago)")


def since_boot_s() -> float:
    """Seconds since boot, including suspends, on a clock that cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _kernel_is_quiet_since(mark: int, root: Path) -> bool:
    records = _kernel_records(root)
    if not records or not records[0][0] <= mark <= records[-1][0]:
        return False  # unread, overwritten, or another log
    later = (text.lower() for number, text in records if number > mark)
    return not any(word in text for text in later for word in _WORDS)


def _kernel_records(root: Path) -> list[tuple[int, str]]:
    """Sequence number and text of each record of /dev/kmsg; empty if it is unreadable or overwritten while reading."""
    try:
        device = os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    parts: list[bytes] = []
    size = 0
    try:
        while size < _KMSG_BYTES_MAX and (part := os.read(device, 1 << 16)):  # one record a read
            parts.append(part)
            size += len(part)
    except BlockingIOError:
        pass  # the end
    except OSError:
        return []
    finally:
        os.close(device)
    records = []
    for line in b"".join(parts).decode("utf-8", "replace").splitlines():
        head, _, text = line.partition(";")
        number = head.split(",")[1:2]
        if number and number[0].isdecimal():
            records.append((int(number[0]), text))
    return records


def _stamp(file: Path) -> str:
    try:
        found = file.stat()
    except OSError:
        return "no configuration"
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"
