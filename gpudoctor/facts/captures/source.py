"""Finds out what `--node SOURCE` names, by content, and gives its Node."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from gpudoctor.facts.captures import SourceError, printable
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.node import Node

__all__ = ["Loaded", "SourceError", "load_source"]


_NO_FILE = (None, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class Loaded(msgspec.Struct, frozen=True):
    """What a source gives: the node, and a report's measurements where it is one."""

    node: Node
    measurements: Measurements | None = None


def load_source(name: str, *, stdin: BinaryIO | None = None, environ: Mapping[str, str] | None = None) -> Loaded:
    """The node that `name` stands for.

    In this order: `-` is stdin; an existing file is facts (JSON, YAML), a report, a stream of
    `gpudoctor watch` (its first facts), a dump of a vendor tool or a bug report, packed with gzip
    or not, or a bundle of `gpudoctor bundle`; an existing directory is one of dumps;
    else it is the name of a packaged simulated node, which takes CUDA_*, NCCL_* and SLURM_* from
    `environ` (not given: this process's own), so that a setting can be tried on it.
    Raise SourceError, one line that names the file and the place, for what cannot be read.
    """
    try:
        return _load(name, stdin, environ)
    except SourceError as error:
        raise SourceError(printable(str(error))) from None


def _load(name: str, stdin: BinaryIO | None, environ: Mapping[str, str] | None) -> Loaded:
    if not name:
        raise SourceError("the source is an empty name: give a file, a directory, a simulated node, or - for stdin")
    if name == "-":
        stream = stdin or (sys.stdin.buffer if sys.stdin else None)
        if stream is None:
            raise SourceError("standard input is closed")
        return _named("standard input", _from_stream(stream))
    try:
        mode = Path(name).stat().st_mode
    except (OSError, ValueError) as error:
        said = None if getattr(error, "errno", None) in _NO_FILE else getattr(error, "strerror", None)
        if said and not _is_node(name):
            raise SourceError(f"{name}: {said.lower()}") from None
        return Loaded(_simulated(name, os.environ if environ is None else environ))
    if stat.S_ISDIR(mode):
        from gpudoctor.facts.captures.directory import node_from_directory

        return Loaded(node_from_directory(name))
    from gpudoctor.facts.captures.opened import read_file
    from gpudoctor.facts.stream.recording import is_stream_file, node_of_file

    if is_stream_file(name):
        return _named(printable(Path(name).name), Loaded(node_of_file(name)))
    try:
        data = read_file(name)
    except SourceError as error:
        raise SourceError(f"{name}: {error}") from None
    return _named(printable(Path(name).name), _from_bytes(data, name))


def _is_node(name: str) -> bool:
    from gpudoctor.facts.simulated.load import node_names

    return name in node_names()


def _simulated(name: str, environ: Mapping[str, str]) -> Node:
    from gpudoctor.facts.simulated.load import load_node, node_names

    names = node_names()
    if name in names:
        return load_node(name, environ)
    if os.sep in name or name.startswith("~"):
        raise SourceError(f"{name[:300]}: no such file or directory")
    from difflib import get_close_matches

    near = get_close_matches(name[:100], names, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}?" if near else "`gpudoctor nodes` lists the simulated nodes"
    raise SourceError(f"{name[:100]}: no such file, and no simulated node of that name; {hint}")


def _from_stream(stream: BinaryIO) -> Loaded:
    from gpudoctor.facts.captures.opened import read_stream

    try:
        data = read_stream(stream)
    except OSError as error:
        raise SourceError(f"standard input: cannot be read: {error.strerror or error}") from None
    except ValueError:  # Python's word for a stream that was closed
        raise SourceError("standard input is closed") from None
    except SourceError as error:
        raise SourceError(f"standard input: {error}") from None
    return _from_bytes(data, "standard input")


def _from_bytes(data: bytes, name: str) -> Loaded:
    from gpudoctor.facts.captures.facts_file import is_yaml_facts, load_json, load_yaml
    from gpudoctor.facts.captures.opened import head_text
    from gpudoctor.facts.captures.recognise import HEAD_BYTES, recognise

    if data[257:262] == b"ustar":
        from gpudoctor.facts.captures.bundle import load_bundle

        try:
            return Loaded(*load_bundle(data))
        except SourceError as error:
            raise SourceError(f"{name}: {error}") from None
    head = head_text(data)
    if head.lstrip().startswith("{"):
        from gpudoctor.facts.stream.recording import is_stream, node_of_stream

        if is_stream(data[:HEAD_BYTES]):
            return Loaded(node_of_stream(data, name))
    try:
        if head.lstrip().startswith("{"):
            return Loaded(*load_json(data))
        kind = recognise(head)
        if kind is None:
            if is_yaml_facts(head):
                return Loaded(*load_yaml(data))
            raise SourceError(_unrecognised(data, head))
    except SourceError as error:
        raise SourceError(f"{name}: {error}") from None
    from gpudoctor.facts.captures.directory import node_from_dump

    return Loaded(node_from_dump(data, kind, name))


def _unrecognised(data: bytes, head: str) -> str:
    if "\0" in head:
        return "binary data, no dump"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"neither a known dump nor UTF-8 text (byte {error.start})"
    if head.lstrip().startswith("<"):
        return "XML, but not of nvidia-smi -q -x"
    return "not recognised: neither facts, a report, nor a dump (nvidia-smi -q [-x], topo -m, nvlink, lspci, dmesg ...)"


def _named(name: str, loaded: Loaded) -> Loaded:
    """Say which file the facts were read from. Captures and simulated nodes stay what they are."""
    source = loaded.node.source
    if source.kind in ("capture", "simulated"):
        return loaded
    source = msgspec.structs.replace(source, kind="facts", name=name)
    return Loaded(msgspec.structs.replace(loaded.node, source=source), loaded.measurements)
