"""`nvidia-smi topo -m` and `topo -p2p`: how each two GPUs reach each other."""

from __future__ import annotations

import re
from typing import get_args

import msgspec

from gpudoctor.facts.captures import ABSENT, SourceError
from gpudoctor.facts.model.gpu import GpuPair, P2pStatus, PathKind
from gpudoctor.facts.model.missing import Missing

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU(\d{1,4})")
_CPUS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
_PATHS: tuple[PathKind, ...] = get_args(PathKind)
_P2P: tuple[P2pStatus, ...] = get_args(P2pStatus)
_NO_SUPPORT = Missing("nvidia-smi says N/A", "unsupported")

Pair = tuple[int, int]


class GpuAffinity(msgspec.Struct, frozen=True):
    """Where a GPU sits, by the last columns of `topo -m`."""

    cpu_affinity: str | Missing = ABSENT
    numa_node: int | Missing | None = ABSENT


class Topology(msgspec.Struct, frozen=True):
    """The matrix of `topo -m`: pairs with `path` or `nvlinks`, and each GPU's place."""

    pairs: tuple[GpuPair, ...]
    places: dict[int, GpuAffinity]


def parse_topology(text: str) -> Topology:
    """Read `topo -m`. NIC columns are passed over. Raise SourceError where the matrix is broken."""
    columns, rows = _matrix(text)
    pairs: dict[Pair, GpuPair] = {}
    places: dict[int, GpuAffinity] = {}
    for gpu, (cells, line) in rows.items():
        for column, cell in zip(columns, cells, strict=False):
            other = _GPU.fullmatch(column)
            if other is None or cell == "X":
                continue
            pair = _pair(gpu, int(other.group(1)), cell, line)
            before = pairs.setdefault((pair.a, pair.b), pair)
            if before != pair:
                raise SourceError(f"line {line}: GPU{pair.a} and GPU{pair.b} differ from one row to the other")
        places[gpu] = _place(dict(zip(columns, cells, strict=False)))
    return Topology(tuple(pairs[key] for key in sorted(pairs)), places)


def parse_p2p(text: str) -> dict[Pair, P2pStatus]:
    """Read `topo -p2p r` (or w): a status for each pair, the worse where the directions differ.

    The dump does not say which of the two it is; the caller must know.
    """
    columns, rows = _matrix(text)
    found: dict[Pair, P2pStatus] = {}
    for gpu, (cells, line) in rows.items():
        for column, cell in zip(columns, cells, strict=False):
            other = _GPU.fullmatch(column)
            if other is None or cell == "X":
                continue
            status = next((word for word in _P2P if word == cell), None)
            if status is None:
                raise SourceError(f"line {line}: {cell[:20]!r} is no peer-to-peer status")
            key = (min(gpu, int(other.group(1))), max(gpu, int(other.group(1))))
            if found.get(key, "OK") == "OK":
                found[key] = status
    return found


def _matrix(text: str) -> tuple[list[str], dict[int, tuple[list[str], int]]]:
    """Column names, and each GPU row's cells with its line number."""
    columns: list[str] | None = None
    rows: dict[int, tuple[list[str], int]] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = _ESCAPE.sub("", raw)
        cells = [cell.strip() for cell in line.split("\t")]
        if columns is None:
            if "GPU0" in cells or any(_GPU.fullmatch(cell) for cell in cells[1:2]):
                columns = cells[1:]
            continue
        name = _GPU.fullmatch(cells[0])
        if name is not None:
            gpu = int(name.group(1))
            if gpu in rows:
                raise SourceError(f"line {number}: GPU{gpu} has two rows: more than one matrix in one file?")
            rows[gpu] = (cells[1:], number)
        elif cells[0].startswith("Legend"):
            break
    shown = [int(m.group(1)) for m in map(_GPU.fullmatch, columns or []) if m is not None]
    if not shown:
        raise SourceError("no line names the columns GPU0, GPU1, ... (are the tabs lost?)")
    absent = sorted(set(shown) - set(rows))
    if absent:
        raise SourceError(f"cut off: {len(shown)} GPU columns, but no row for GPU{absent[0]}")
    short = next((gpu for gpu in shown if len(rows[gpu][0]) < len(shown)), None)
    if short is not None:
        raise SourceError(f"cut off at line {rows[short][1]}: the row of GPU{short} ends early")
    return columns or [], rows


def _pair(a: int, b: int, cell: str, line: int) -> GpuPair:
    a, b = min(a, b), max(a, b)
    if cell.startswith("NV") and cell[2:].isdecimal():
        return GpuPair(a, b, path=ABSENT, nvlinks=int(cell[2:4]), p2p_read=ABSENT, p2p_write=ABSENT)
    path = next((kind for kind in _PATHS if kind == cell), None)
    if path is None and cell != "N/A":
        raise SourceError(f"line {line}: {cell[:20]!r} is no connection between GPUs")
    return GpuPair(
        a, b, path=path or _NO_SUPPORT, nvlinks=0 if path else _NO_SUPPORT, p2p_read=ABSENT, p2p_write=ABSENT
    )


def _place(cells: dict[str, str]) -> GpuAffinity:
    cpus = cells.get("CPU Affinity", "")
    numa = cells.get("NUMA Affinity", "")
    node: int | Missing | None = ABSENT
    if numa.isdecimal():
        node = int(numa[:6])
    elif numa:
        # "N/A": one node only; "0-1": near several. Neither names the GPU's node
        node = None if numa == "N/A" else ABSENT
    return GpuAffinity(cpus if _CPUS.fullmatch(cpus) else ABSENT, node)
