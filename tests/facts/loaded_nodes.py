"""Nodes as `--node SOURCE` loads them."""

from __future__ import annotations

import io
from pathlib import Path

from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.model.node import Node


def node_of(path: Path) -> Node:
    """That of a file or directory."""
    return load_source(str(path)).node


def pasted(text: str | bytes) -> Node:
    """That of a text on standard input."""
    return load_source("-", stdin=io.BytesIO(text.encode() if isinstance(text, str) else text)).node
