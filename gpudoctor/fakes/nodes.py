"""The node that a test names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.load import apply_faults


def load(source: Node | str | Path, faults: Iterable[str] = ()) -> Node:
    """The facts of `source`, which is a `Node` or anything that `--node` takes, with faults of the fault kit applied.

    The caller's environment is not laid over a simulated node: a test gives the same everywhere.
    Raise UserError, one line, for a source that cannot be read and for a fault that is unknown or
    cannot happen there.
    """
    node = source if isinstance(source, Node) else load_source(str(source), environ={}).node
    return apply_faults(node, (faults,) if isinstance(faults, str) else faults)
