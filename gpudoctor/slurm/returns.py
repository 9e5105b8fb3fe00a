"""When a node that gpudoctor drained may return: healthy checks in a row, returns of one day, a check under load."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TypeVar

import msgspec

from gpudoctor.process.private_folder import read_own_file
from gpudoctor.report.output_files import OutputError, write_file
from gpudoctor.slurm.drain import NodeRecord, is_of_hardware
from gpudoctor.slurm.settings import HookSettings

# the scripts remove the first one if gpudoctor gives no answer
_COUNT_FILE, _RETURNS_FILE = "undrain.json", "returns.json"
_BYTES_MAX = 1 << 16
_DAY_S = 86400.0
T = TypeVar("T")


class _HealthyChecks(msgspec.Struct, frozen=True):
    """`drain` is the reason and time of one drain: the count of another drain starts at 0."""

    drain: str = ""
    healthy: int = 0
    passed_load: bool = False


def count_healthy(folder: Path, node: NodeRecord) -> int:
    """Add one passed health check to the current drain of `node` and return the count. A lost file counts as 0."""
    checks = _checks(folder, node)
    healthy = checks.healthy + 1
    # a count that cannot be saved cannot grow; with GPUDOCTOR_UNDRAIN_AFTER=1 undraining still works
    return healthy if _write(folder / _COUNT_FILE, msgspec.structs.replace(checks, healthy=healthy)) else 1


def forget_healthy(folder: Path) -> None:
    """Reset the count to 0; an earlier check under load does not count any more."""
    (folder / _COUNT_FILE).unlink(missing_ok=True)


def why_not_yet(settings: HookSettings, node: NodeRecord) -> str | None:
    """Why this drain stays although the node has been healthy for long enough; None if it may be undone."""
    if is_of_hardware(node.reason) and not _checks(settings.state, node).passed_load:
        return "a hardware fault: to return, it must pass a check under load: gpudoctor slurm load"
    returns = len(_returns(settings.state))
    if returns >= settings.undrains_a_day:
        return f"returned {returns} times in 24 h (GPUDOCTOR_UNDRAINS_A_DAY): a person must look"
    return None


def note_return(folder: Path) -> None:
    """Record that the node returned now, and that its drain is over."""
    _write(folder / _RETURNS_FILE, (*_returns(folder), time.time()))
    forget_healthy(folder)


def note_load(folder: Path, node: NodeRecord, *, passed: bool) -> bool:
    """Record the result of a check under load for the current drain; False if it cannot be saved."""
    return _write(folder / _COUNT_FILE, msgspec.structs.replace(_checks(folder, node), passed_load=passed))


def _checks(folder: Path, node: NodeRecord) -> _HealthyChecks:
    drain = f"{node.reason} {node.since}"
    checks = _read(folder / _COUNT_FILE, _HealthyChecks)
    return checks if checks is not None and checks.drain == drain else _HealthyChecks(drain)


def _returns(folder: Path) -> tuple[float, ...]:
    """When the node returned in the last 24 hours, Unix time."""
    now_s = time.time()
    return tuple(at for at in _read(folder / _RETURNS_FILE, tuple[float, ...]) or () if 0 <= now_s - at < _DAY_S)


def _read(file: Path, of: type[T]) -> T | None:
    try:
        return msgspec.json.decode(read_own_file(file, _BYTES_MAX), type=of)
    except (OSError, ValueError, RecursionError):  # msgspec raises UnicodeDecodeError too
        return None


def _write(file: Path, content: _HealthyChecks | tuple[float, ...]) -> bool:
    try:
        write_file(file, msgspec.json.encode(content).decode())
    except OutputError:
        return False
    return True
