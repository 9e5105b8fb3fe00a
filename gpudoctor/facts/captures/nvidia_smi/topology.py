"""`nvidia-smi topo -m` and `topo -p2p`: the connection between each pair of GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.captures import ABSENT, SourceError
from gpudoctor.facts.captures.nvidia_smi.query_dump import numbered
from gpudoctor.facts.captures.reader import Block, Part, text_reader
from gpudoctor.facts.model.gpu import UNKNOWN_BUS, Gpu, GpuPair, P2pStatus, PathKind
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Driver, Node

_NAME = "nvidia-smi topo"
_GPU = re.compile(r"GPU(\d{1,4})")
_NIC = r"NIC\d{1,3}|(?:mlx|bnxt|irdma|efa|rdma|roce|hfi|ib)\w{0,30}_?\d{1,3}"
_DEVICE = re.compile(rf"GPU\d{{1,4}}|{_NIC}")
_COLUMN = re.compile(rf"GPU\d{{0,4}}|{_NIC}|CPU|NUMA|Affinity|ID")
_HEADER_CELL = re.compile(rf"GPU\d{{1,4}}|{_NIC}|(?:CPU|NUMA) Affinity|GPU NUMA ID|\S+")
_ROW = re.compile(rf"\s*(?:{_DEVICE.pattern})[ \t]+(?:X|OK|CNS|GNS|TNS|NS|DR|U|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|N/A)\b")
_BEGIN_OF_ROW = re.compile(r"\s*GPU\d{1,4}[ \t](?:.{0,200}[ \t])?X(?:[ \t]|$)")
_LEGEND = re.compile(
    r"\s*(?:NIC )?Legend:|[ \t]+(?:X|SYS|SOC|NODE|PHB|PXB|PIX|PSB|NV#|OK|CNS|GNS|TNS|NS|DR|U) +=|\s*NIC\d+: "
)
_P2P_CELL = re.compile(r"\s(?:OK|CNS|GNS|TNS|NS|DR|U)(?:\s|$)", re.MULTILINE)
_CPUS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
# SOC: the word of drivers before 384 for SYS
_PATHS: dict[str, PathKind] = {kind: kind for kind in get_args(PathKind)} | {"SOC": "SYS"}
_P2P: dict[str, P2pStatus] = {status: status for status in get_args(P2pStatus)}
_WRITES = re.compile(r"p2p(?:_?status)?[-_ =]?w|write", re.IGNORECASE)
# `topo -p2p` (or --p2pstatus) with n (NVLink), a (atomics) or p (prop) prints the same words for other capabilities
_NO_ACCESS = re.compile(r"p2p(?:_?status)?[-_ =]{1,3}[nap]\b", re.IGNORECASE)
_NO_SUPPORT = Missing("nvidia-smi says N/A", "unsupported")

Pair = tuple[int, int]
_Rows = dict[int, tuple[list[str], int]]  # each GPU's cells, with their line number


class Topology(msgspec.Struct, frozen=True):
    """The matrix of `topo -m`: the GPUs in its columns with their affinity, pairs with `path` or `nvlinks`.

    Rows may be cut off, which `notes` report.
    """

    pairs: tuple[GpuPair, ...]
    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()


def parse_topology(text: str) -> Topology:
    """Read `topo -m`. NIC columns are ignored. Raise SourceError if the matrix is broken."""
    columns, rows, notes = _matrix(text)
    pairs: dict[Pair, GpuPair] = {}
    for gpu, other, cell, line in _cells(columns, rows):
        pair = _pair(gpu, other, cell, line)
        if pairs.setdefault((pair.a, pair.b), pair) != pair:
            raise SourceError(f"line {line}: GPU{pair.a} and GPU{pair.b} differ from one row to the other")
    gpus = {int(found[1]): _gpu(int(found[1]), {}) for found in map(_GPU.fullmatch, columns) if found is not None}
    gpus |= {index: _gpu(index, dict(zip(columns, cells, strict=False))) for index, (cells, _) in rows.items()}
    return Topology(tuple(pairs[key] for key in sorted(pairs)), tuple(gpus.values()), notes)


def parse_p2p(text: str) -> dict[Pair, P2pStatus]:
    """Read `topo -p2p r` (or w): the status of each pair, the worse one if the directions differ.

    The dump does not show which of the two it is; the caller must know. Raise SourceError if the matrix is broken.
    """
    columns, rows, _ = _matrix(text)
    found: dict[Pair, P2pStatus] = {}
    for gpu, other, cell, line in _cells(columns, rows):
        if cell not in _P2P:
            raise SourceError(f"line {line}: {cell[:20]!r} is no peer-to-peer status")
        key = (min(gpu, other), max(gpu, other))
        if found.get(key, "OK") == "OK":
            found[key] = _P2P[cell]
    return found


def _cells(columns: list[str], rows: _Rows) -> Iterator[tuple[int, int, str, int]]:
    """Yield the GPUs of row and column, the cell and its line number, without the diagonal and the NICs."""
    for gpu, (cells, line) in rows.items():
        for column, cell in zip(columns, cells, strict=False):
            if cell != "X" and (other := _GPU.fullmatch(column)) is not None:
                yield gpu, int(other[1]), cell, line


def _begins(line: str) -> bool:
    """Whether this is the header line of topo -m or -p2p, with tabs or blanks between the columns."""
    parts = line.split()
    return bool(parts) and _GPU.fullmatch(parts[0]) is not None and all(_COLUMN.fullmatch(word) for word in parts)


def _matrix(text: str) -> tuple[list[str], _Rows, tuple[str, ...]]:
    """Column names, each GPU row's cells with its line number, and notes on rows that are cut off.

    Cells are separated by any run of blanks: pasting turns tabs into blanks, and two tabs in a row are only alignment.
    The columns after the devices are identified by the form of their content.
    """
    columns: list[str] = []
    devices = 0
    rows: _Rows = {}
    notes: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not columns:
            if _begins(line):
                columns = _HEADER_CELL.findall(line)
                devices = sum(_DEVICE.fullmatch(column) is not None for column in columns)
            continue
        cells = line.split()
        name = _GPU.fullmatch(cells[0]) if cells else None
        if name is not None and not _begins(line):
            gpu = int(name.group(1))
            if gpu in rows:
                raise SourceError(f"line {number}: GPU{gpu} has two rows: more than one matrix in one file?")
            if len(cells) <= devices:
                notes.append(f"cut off at line {number}: the row of GPU{gpu} ends early")
                continue
            rows[gpu] = ([*cells[1 : devices + 1], *_placed(cells[devices + 1 :], columns[devices:])], number)
        elif cells and cells[0].startswith("Legend"):
            break
    shown = [int(m.group(1)) for m in map(_GPU.fullmatch, columns) if m is not None]
    if not shown:
        raise SourceError("no line names the columns GPU0, GPU1, ...")
    if len(set(shown)) < len(shown):
        raise SourceError("a GPU has two columns: not the matrix of one machine")
    absent = sorted(set(shown) - set(rows))
    if absent and not notes:
        notes.append(f"cut off: {len(shown)} GPU columns, but no row for GPU{absent[0]}")
    return columns, rows, tuple(notes)


def _placed(cells: list[str], columns: list[str]) -> list[str]:
    """The cells of the columns after the devices; "" for an empty one."""
    if len(cells) == len(columns):
        return cells
    made = []
    rest = list(cells)
    for column in columns:
        fits = bool(rest) and (column != "CPU Affinity" or _CPUS.fullmatch(rest[0]) is not None or rest[0] == "N/A")
        made.append(rest.pop(0) if fits else "")
    return made


def _pair(a: int, b: int, cell: str, line: int) -> GpuPair:
    a, b = min(a, b), max(a, b)
    if cell.startswith("NV") and cell[2:].isdecimal():
        return GpuPair(a, b, nvlinks=int(cell[2:4]))
    if cell in _PATHS:
        return GpuPair(a, b, path=_PATHS[cell], nvlinks=0)
    if cell == "N/A":
        return GpuPair(a, b, path=_NO_SUPPORT, nvlinks=_NO_SUPPORT)
    raise SourceError(f"line {line}: {cell[:20]!r} is no connection between GPUs")


def _gpu(index: int, cells: dict[str, str]) -> Gpu:
    if not cells:
        return Gpu(index, f"{UNKNOWN_BUS}{index}")
    cpus = cells.get("CPU Affinity", "")
    numa = cells.get("NUMA Affinity", "")
    # "N/A": there is only one node; "0-1": near several nodes. Neither identifies the GPU's node
    node = int(numa[:6]) if numa.isdecimal() else None if numa == "N/A" else ABSENT
    affinity = cpus if _CPUS.fullmatch(cpus) else ABSENT
    return Gpu(index, f"{UNKNOWN_BUS}{index}", cpu_affinity=affinity, numa_node=node)


@text_reader(
    _NAME, _begins, lambda line: _ROW.match(line) or _LEGEND.match(line), restarts=_begins, row=_BEGIN_OF_ROW.match
)
def read_topology(block: Block) -> Part:
    text = block.text
    if "Status Ok" not in text and not _P2P_CELL.search(text):
        topology = parse_topology(text)
        return Part(topology=topology, smi=(numbered(topology.gpus, _NAME, Driver()),))
    # the matrix itself does not show whether it is about reads or writes
    shown_by = block.command if "p2p" in block.command else block.file
    if _NO_ACCESS.search(shown_by):
        return Part(notes=("nvidia-smi topo -p2p: neither for reads (r) nor for writes (w), and not used",))
    direction = "p2p_write" if _WRITES.search(shown_by) else "p2p_read"
    statuses = parse_p2p(text)
    pairs = tuple(replace(GpuPair(a, b), **{direction: status}) for (a, b), status in statuses.items())
    gpus = tuple(_gpu(index, {}) for index in sorted({index for pair in statuses for index in pair}))
    return Part(Node(pairs=pairs), smi=(numbered(gpus, _NAME, Driver()),))
