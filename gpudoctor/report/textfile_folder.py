"""Whether node_exporter will see the metrics that were written with `-o`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePath

from gpudoctor.facts.system.node_exporter import NodeExporter


def why_not_read(file: Path, exporters: Sequence[NodeExporter]) -> str | None:
    """One line if node_exporter runs and does not read that file; None if it does, or if none runs."""
    if not exporters:
        return None
    folder = os.path.realpath(file.parent)
    read = [place for exporter in exporters for place in exporter.folders]
    who = f"node_exporter (process {exporters[0].pid})"
    if not read:
        return f"{who} reads no folder: start it with --collector.textfile.directory={folder} for it to see {file}"
    if not any(PurePath(folder).match(os.path.realpath(place)) for place in read):
        folders = ", ".join(place[:200] for place in read[:3])
        return f"{who} reads {folders}: it does not see {file}; write there, or give it this folder"
    if file.suffix != ".prom":
        return f"{who} reads files that end in .prom: it does not see {file}"
    return None
