"""How many health checks in a row a node that we drained has passed: it comes back after several."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpudoctor.report.output_files import OutputError, write_file
from gpudoctor.slurm.node_records import NodeRecord

_FILE = "undrain.json"


class _HealthyChecks(msgspec.Struct, frozen=True):
    """`drain` names one drain, with its moment: another one begins at 0."""

    drain: str
    healthy: int


def count_healthy(folder: Path, node: NodeRecord) -> int:
    """Count one more healthy check of the drain that `node` has; give the number. A file that is lost counts as 0."""
    drain = f"{node.reason} {node.since}"
    try:
        kept = msgspec.json.decode((folder / _FILE).read_bytes(), type=_HealthyChecks)
    except (OSError, msgspec.DecodeError):
        kept = _HealthyChecks(drain, 0)
    healthy = kept.healthy + 1 if kept.drain == drain else 1
    try:
        write_file(folder / _FILE, msgspec.json.encode(_HealthyChecks(drain, healthy)).decode())
    except OutputError:
        return 1  # what cannot be kept cannot grow: with a hold-down of 1 the node still comes back
    return healthy


def forget_healthy(folder: Path) -> None:
    """Begin at 0 again."""
    (folder / _FILE).unlink(missing_ok=True)
