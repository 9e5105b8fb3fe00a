"""Counts consecutive passed health checks of a node that gpudoctor drained: it is undrained after several."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpudoctor.report.output_files import OutputError, write_file
from gpudoctor.slurm.node_records import NodeRecord

_FILE = "undrain.json"


class _HealthyChecks(msgspec.Struct, frozen=True):
    """`drain` is the reason and time of one drain: the count of another drain starts at 0."""

    drain: str
    healthy: int


def count_healthy(folder: Path, node: NodeRecord) -> int:
    """Add one passed health check to the current drain of `node` and return the count. A lost file counts as 0."""
    drain = f"{node.reason} {node.since}"
    try:
        kept = msgspec.json.decode((folder / _FILE).read_bytes(), type=_HealthyChecks)
    except (OSError, ValueError):  # msgspec raises UnicodeDecodeError too
        kept = _HealthyChecks(drain, 0)
    healthy = kept.healthy + 1 if kept.drain == drain else 1
    try:
        write_file(folder / _FILE, msgspec.json.encode(_HealthyChecks(drain, healthy)).decode())
    except OutputError:
        return 1  # the count cannot be saved and so cannot grow; with GPUDOCTOR_UNDRAIN_AFTER=1 undraining still works
    return healthy


def forget_healthy(folder: Path) -> None:
    """Reset the count to 0."""
    (folder / _FILE).unlink(missing_ok=True)
