"""The report of the last check of this machine: what it measured counts in the plan, and so do the faults in it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.exits import printable
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node
from gpudoctor.report.model import Report

MAX_BYTES = 64 * 2**20


def measurements_of(path: Path, node: Node) -> Measurements:
    """What the report in a file measured on this node. Raise UserError, naming the file, where it is not of this node.

    The facts stay those of now: the report needs none.
    """
    shown = printable(str(path))
    try:
        if not path.is_file():  # a FIFO would never end
            raise UserError(f"--report {shown}: {'not a file' if path.exists() else 'no such file'}")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"--report {shown}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"--report {shown}: more than {MAX_BYTES // 2**20} MiB: no report")
    try:
        report = msgspec.json.decode(data, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        way_out = "make one with gpudoctor check --level full --json -o FILE"
        raise UserError(
            f"--report {shown}: no report of gpudoctor ({printable(str(error))[:120]}): {way_out}"
        ) from None
    if report.error is not None:
        raise UserError(f"--report {shown}: that check could not do its work: {printable(report.error)[:200]}")
    if report.run.injected:
        how = ", ".join(map(printable, report.run.injected))[:200]
        raise UserError(f"--report {shown}: it was made to go wrong (--inject {how}): make one without")
    then = {gpu.uuid or gpu.bus_id for gpu in report.gpus}
    now = {known(gpu.uuid) or gpu.bus_id for gpu in node.gpus}
    if not then & now:
        raise UserError(f"--report {shown}: none of its {len(then)} GPUs is in this node: it is of another machine")
    return report.measurements
