"""Reads dumps of PyTorch's flight recorder, pickle or JSON, without running anything in them.

A pickle may name any function to call. Real dumps contain only dict, list, tuple, str, int, float, bool and None, so
every other object is refused: by opcode, name (`find_class`) and persistent id. Size, number of objects, depth and
indices are limited before anything is built; the caller reads in a child with limits of memory and time.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import re
from pathlib import PurePath
from typing import Any

import msgspec

from gpudoctor.diagnose.events import MOST_RANKS
from gpudoctor.text.output import printable

_MAX_BYTES = 256 << 20
_MAX_OBJECTS = 20_000_000
_MAX_CONTAINERS = 2_000_000  # in JSON, 64 to 232 bytes of memory each; an entry with its stack has about 40
_MAX_NAME = 80
_MAX_DEPTH = 64
_MAX_MEMO = 1 << 22
_MOST_SIZES = 1_000
_NAME = re.compile(
    r"(?:^|_)(?:dump|trace|rank|nccl_trace|comm_lib_trace)_?(?:rank_?)?(\d{1,6})(?:\.json|\.pkl|\.pickle)?$"
)
# opcodes that make an object or refer to one outside
_REFUSED = {
    *("GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD", "PERSID", "BINPERSID"),
    *("EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"),
}
_ENDS_A_MARK = ("TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS", "POP_MARK", "ADDITEMS", "FROZENSET")
# what damaged bytes make `pickle` and `json` raise, beside ValueError and LookupError
_DAMAGED = (pickle.UnpicklingError, EOFError, TypeError, AttributeError, RecursionError, MemoryError, OverflowError)


class DumpError(Exception):
    """The dump cannot be read; the message gives the reason."""


class RecordedCollective(msgspec.Struct, frozen=True):
    """One entry. `finished`: completed or retired (gloo retires finished work and may leave its state unchanged)."""

    group: tuple[str, tuple[int, ...]]
    group_name: str
    seq: int
    name: str
    sizes: str
    finished: bool
    p2p: bool


class Dump(msgspec.Struct, frozen=True):
    """One rank's recorder. `enqueued`: the last number in each group, by its name and members."""

    rank: int
    groups: dict[str, tuple[int, ...]]
    entries: tuple[RecordedCollective, ...]
    enqueued: dict[tuple[str, tuple[int, ...]], int]
    file: int = 0


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise DumpError(f"holds {module}.{name}, which no flight recorder writes: not read")

    def persistent_load(self, pid: Any) -> Any:
        raise DumpError("holds a reference to outside, which no flight recorder writes: not read")


def looks_like_dump(head: bytes) -> bool:
    """Whether a file begins like a dump: a pickle of protocol 2 or newer, or its JSON."""
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    return head.lstrip()[:1] == b"{" and any(
        word in head for word in (b'"pg_config"', b'"pg_status"', b'"nccl_version"', b'"entries"')
    )


def rank_in_name(name: str) -> int | None:
    """The rank at the end of the file's name.

    >>> rank_in_name("fr/nccl_trace_rank_12"), rank_in_name("_dump_3"), rank_in_name("notes.txt")
    (12, 3, None)
    """
    found = _NAME.search(PurePath(name).name)
    return int(found[1]) if found else None


def read_dump(data: bytes, name: str, file: int = 0) -> Dump:
    """The dump of the rank in the file's name. Raises DumpError with a message of one line, whatever the bytes are."""
    rank = rank_in_name(name)
    if rank is None:
        raise DumpError("a flight recorder dump whose name ends in no rank")
    try:
        content = _from_json(data) if data.lstrip()[:1] == b"{" else _unpickled(data)
    except DumpError:
        raise
    except (*_DAMAGED, ValueError, LookupError, ImportError) as error:
        raise DumpError(f"a damaged flight recorder dump ({type(error).__name__})") from None
    if not isinstance(content, dict) or ("entries" not in content and "pg_status" not in content):
        raise DumpError("no flight recorder dump: no entries")
    try:
        return _dump(content, rank, file)
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
        raise DumpError(f"a flight recorder dump of a form that is not known ({type(error).__name__})") from None


def _from_json(data: bytes) -> object:
    if data.count(b"{") + data.count(b"[") > _MAX_CONTAINERS:
        raise DumpError("too many objects")
    return json.loads(data)


def _unpickled(data: bytes) -> object:
    if len(data) > _MAX_BYTES:
        raise DumpError(f"larger than {_MAX_BYTES >> 20} MiB")
    depth = 0
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if opcode.name in _REFUSED:
            named = f" {printable(argument[:_MAX_NAME])}" if isinstance(argument, str) else ""
            raise DumpError(f"makes an object ({opcode.name}{named}), as no flight recorder does: not read")
        if count > _MAX_OBJECTS:
            raise DumpError("too many objects")
        depth += (opcode.name == "MARK") - (opcode.name in _ENDS_A_MARK)
        if depth > _MAX_DEPTH:
            raise DumpError("nested too deeply")
        # the reader makes room for as many objects as the index says
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and isinstance(argument, int) and argument > _MAX_MEMO:
            raise DumpError("holds an index of absurd size")
        if opcode.name in ("LONG4", "LONG1", "LONG") and isinstance(argument, int) and argument.bit_length() > 256:
            raise DumpError("holds a number of absurd size")
    return _Plain(io.BytesIO(data)).load()


def _dump(content: dict[str, Any], rank: int, file: int) -> Dump:
    groups: dict[str, tuple[int, ...]] = {}
    config = content.get("pg_config") or {}
    for key, group in config.items() if isinstance(config, dict) else ():
        name = _word(group.get("name", key)) or "0"
        groups[name] = _members(group.get("ranks"))
    entries: list[RecordedCollective] = []
    names: dict[int, str] = {}
    for entry in content.get("entries") or ():
        recorded = _recorded(entry, groups)
        names[int(entry.get("pg_id") or 0)] = recorded.group[0]
        entries.append(recorded)
    enqueued: dict[tuple[str, tuple[int, ...]], int] = {}
    reported = content.get("pg_status") or {}
    for key, counts in reported.items() if isinstance(reported, dict) else ():
        name = names.get(int(key), "0" if int(key) == 0 and "0" in groups else "")
        if name:
            enqueued[name, groups.get(name, ())] = _number(counts.get("last_enqueued_collective"))
    return Dump(rank, groups, tuple(entries), enqueued, file)


def _recorded(entry: dict[str, Any], groups: dict[str, tuple[int, ...]]) -> RecordedCollective:
    process_group = entry.get("process_group") or ("0", "")
    name = _word(process_group[0]) or "0"
    return RecordedCollective(
        group=(name, groups.get(name, ())),
        group_name=_word(process_group[1]) or name,
        seq=int((entry.get("p2p_seq_id") if entry.get("is_p2p") else entry.get("collective_seq_id")) or 0),
        name=_word(entry.get("profiling_name")),
        sizes=_sizes(entry.get("input_sizes", "")),
        finished=bool(entry.get("retired")) or entry.get("state") == "completed",
        p2p=bool(entry.get("is_p2p")),
    )


def _word(value: object) -> str:
    """Text or a number as text; nothing for a container, whose text may be of any length."""
    return str(value)[:1000] if isinstance(value, (str, int, float)) else ""


def _sizes(shapes: object) -> str:
    """Lists of numbers as text; containers that share their parts could be endless."""
    if not isinstance(shapes, (list, tuple)):
        return _word(shapes)
    each = [
        "[" + ", ".join(map(_word, shape[:_MOST_SIZES])) + "]" if isinstance(shape, (list, tuple)) else _word(shape)
        for shape in shapes[:_MOST_SIZES]
    ]
    return "[" + ", ".join(each) + "]"


def _members(ranks: object) -> tuple[int, ...]:
    if isinstance(ranks, str):
        ranks = re.findall(r"\d+", ranks[:1_000_000])
    members = tuple(int(rank) for rank in ranks) if isinstance(ranks, (list, tuple)) else ()
    if any(rank >= MOST_RANKS for rank in members):
        raise ValueError("a rank of absurd size")
    return members


def _number(value: object) -> int:
    try:
        return int(_word(value))
    except ValueError:
        return 0
