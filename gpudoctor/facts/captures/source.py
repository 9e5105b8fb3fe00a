"""Find out by content what `--node SOURCE` names, and load its Node."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from gpudoctor.errors import nearest_names
from gpudoctor.facts.captures import Loaded, NotUnderstoodError, SourceError, naming, printable
from gpudoctor.facts.model.node import Node
from gpudoctor.lazy import lazy_imports
from gpudoctor.text.standard_input import standard_input

with lazy_imports():
    from gpudoctor.facts.captures import archives, directory, facts_file, kernel_logs, lines, not_understood, opened
    from gpudoctor.facts.simulated import load as simulated_nodes
    from gpudoctor.facts.stream import recording

__all__ = ["Loaded", "NotUnderstoodError", "SourceError", "load_source"]

_PASTE = "paste what the machine printed, with prompts and all (nvidia-smi -q, topo -m, dmesg, lspci -vvv ...)"
_PASTE_INSTEAD = (
    "paste what the machine prints: nvidia-smi -q, nvidia-smi topo -m, dmesg, lspci -vvv, ibstat ...; "
    "the log of a job: gpudoctor diagnose FILE"
)
_STDIN = "standard input"
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_DEEPEST_JSON = 500
_NO_FILE = (None, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def load_source(
    name: str,
    *,
    stdin: BinaryIO | None = None,
    environ: Mapping[str, str] | None = None,
    deadline_s: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Loaded:
    """Load the node that `name` stands for.

    Tried in this order: `-` is stdin; an existing file is facts (JSON, YAML), a report, a stream of `gpudoctor watch`
    (its first facts) or any text with tool output, gzipped or not, a bundle of `gpudoctor bundle`, or an archive of
    texts; an existing directory contains texts; anything else is the name of a packaged simulated node, which takes
    CUDA_*, FI_*, NCCL_* and SLURM_* variables from `environ` (default: this process's environment), so that a setting
    can be tried on it. `deadline_s` limits the reading of texts, which may be anything, and `progress` gets a line for
    each file of a directory.
    Raise SourceError, one line with the file and the position, if it cannot be read: NotUnderstoodError for a
    text about a node of which no reader knows a word.
    """
    if not name:
        raise SourceError("the source is an empty name: give a file, a directory, a simulated node, or - for stdin")
    if name == "-":
        stream = stdin or standard_input(_PASTE)
        if stream is None:
            raise SourceError("standard input is closed")
        return _named(_STDIN, _from_stdin(stream, deadline_s))
    try:
        mode = Path(name).stat().st_mode
    except (OSError, ValueError) as error:
        reported = None if getattr(error, "errno", None) in _NO_FILE else getattr(error, "strerror", None)
        if reported and name not in simulated_nodes.node_names():
            raise SourceError(f"{name}: {reported.lower()}") from None
        return Loaded(_simulated(name, os.environ if environ is None else environ))
    with naming(name):
        if stat.S_ISDIR(mode):
            return Loaded(directory.node_from_directory(name, deadline_s, progress))
        shown = printable(Path(name).name)
        if recording.is_stream_file(name):
            return _named(shown, Loaded(recording.node_of_file(name)))
        if not stat.S_ISREG(mode):
            raise SourceError("not a regular file (a pipe or device): use - to read from stdin")
        size = opened.size_of_file(name)
        with opened.open_plain(name) as file:
            return _named(shown, _from_stream(file, name, deadline_s, size))


def _simulated(name: str, environ: Mapping[str, str]) -> Node:
    names = simulated_nodes.node_names()
    if name in names:
        return simulated_nodes.load_node(name, environ)
    if name.startswith("ssh:"):
        piped = f"ssh {name[4:100]} gpudoctor facts | gpudoctor check --node -"
        raise SourceError(f"{name[:100]}: only tui reads over ssh; here: {piped}")
    if os.sep in name or name.startswith("~"):
        raise SourceError(f"{name[:300]}: no such file or directory")
    # a cloud's own name, as aws-p4d, has a word of ours and not the spelling
    first = f"{name[:100].partition('-')[0]}-"
    alike = [each for each in names if each.startswith(first)]
    near = nearest_names(name[:100], names, 3, 0.7) or alike[:3] or nearest_names(name[:100], names, 3, 0.4)
    hint = f"did you mean {', '.join(near)}?" if near else "`gpudoctor nodes` lists the simulated nodes"
    raise SourceError(f"{name[:100]}: no such file, and no simulated node of that name; {hint}")


def _from_stdin(stream: BinaryIO, deadline_s: float | None) -> Loaded:
    try:
        with naming(_STDIN):
            return _from_stream(stream, _STDIN, deadline_s)
    except ValueError as error:  # raised by a closed stream
        if isinstance(error, SourceError) or not stream.closed:
            raise
        raise SourceError("standard input is closed") from None


def _from_stream(stream: BinaryIO, name: str, deadline_s: float | None, size: int = 0) -> Loaded:
    """Read archives and gpudoctor's formats as a whole; any other text line by line, whatever its size."""
    limit = lines.TimeLimit(deadline_s)
    head = opened.read_head(stream)
    if head.startswith(opened.GZIP):
        stream, size = io.BytesIO(opened.read_stream(stream, size, head)), 0
        head = opened.read_head(stream)
    if archives.is_tar(head) or head.startswith(archives.ZIP):
        data = opened.read_stream(stream, size, head)
        if archives.is_tar(data) and archives.is_bundle(data):
            return archives.load_bundle(data)
        return Loaded(directory.node_from_archive(archives.texts_in(data), name, limit))
    text = opened.head_text(head).lstrip()
    if text.startswith("{") and not kernel_logs.is_kernel_line(text.partition("\n")[0].rstrip("\r")):
        return _of_json(opened.read_stream(stream, size, head), text, name, limit)
    if facts_file.is_yaml_facts(text):
        return _of_file(name, facts_file.load_yaml(opened.read_stream(stream, size, head)))
    if not head.strip():
        raise SourceError("there is nothing in it")
    if lines.is_binary(head):
        raise SourceError("binary data, no dump")
    node = directory.node_from_text(head, stream, name, limit)
    if node is not None:
        return Loaded(node)
    if reason := _other_format(head, text):
        raise SourceError(reason)
    if quoted := not_understood.words_about_a_node(text):
        raise NotUnderstoodError(
            f"not recognised: nothing in it is understood; {_PASTE_INSTEAD}", directory.node_of_words(quoted, name)
        )
    raise SourceError(f"not recognised: it says nothing of a node; {_PASTE_INSTEAD}")


def _of_json(data: bytes, head: str, name: str, limit: lines.TimeLimit) -> Loaded:
    """Facts, a report or a stream; or JSON in the lines of a log: if no reader knows it, it was meant as facts."""
    if _nested_too_deeply(head):
        raise SourceError("nested too deeply")
    if recording.is_stream(data[: opened.HEAD_BYTES]):
        return Loaded(recording.node_of_stream(data, name))
    own = b'"gpudoctor.' in data[: opened.HEAD_BYTES]
    node = None if own else directory.node_from_text(data, io.BytesIO(), name, limit)
    return Loaded(node) if node else _of_file(name, facts_file.load_json(data))


def _nested_too_deeply(head: str) -> bool:
    """Whether the beginning of a text in braces opens more brackets than any document: no line of it need be read.

    A line that begins with a brace begins another document, as in a log whose lines are JSON, cut off or not.
    """
    documents = (_STRING.sub("", document) for document in head.split("\n{"))
    return any(
        bare.count("{") + bare.count("[") - bare.count("}") - bare.count("]") > _DEEPEST_JSON for bare in documents
    )


def _of_file(name: str, loaded: Loaded) -> Loaded:
    """A simulated node in a file may be edited: it stays simulated, but is no longer the node of its name."""
    if loaded.node.source.kind != "simulated" or name == _STDIN:
        return loaded
    return _with_source(loaded, name=printable(Path(name).name))


def _other_format(data: bytes, head: str) -> str:
    """What a text in which no reader finds anything seems to be instead; "" if it is plain text."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"neither a known dump nor UTF-8 text (byte {error.start})"
    if head.lstrip().startswith("<"):
        return "XML, but not of nvidia-smi -q -x"
    if facts_file.lacks_schema(head):
        return (
            f"if these are facts in YAML, they lack the line `schema: {facts_file.FACTS}`; see docs/simulated-nodes.md"
        )
    return ""


def _named(name: str, loaded: Loaded) -> Loaded:
    """Record which file the facts were read from, unless they are of a capture or a simulated node."""
    if loaded.node.source.kind in ("capture", "simulated"):
        return loaded
    return _with_source(loaded, kind="facts", name=name)


def _with_source(loaded: Loaded, **changes: str) -> Loaded:
    return replace(loaded, node=replace(loaded.node, source=replace(loaded.node.source, **changes)))
