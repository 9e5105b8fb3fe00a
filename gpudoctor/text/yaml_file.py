"""Reads YAML files of users: plain data only, bounded before it is built, with the line in every error."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import yaml

from gpudoctor.errors import UserError
from gpudoctor.lazy import lazy_pattern

MAX_BYTES = 1 << 20
_DEEPEST = 32  # a configuration nests 5 levels
_MOST_EVENTS = 20_000  # the printed configuration has under a thousand
_LONGEST_SCALAR = 4096
_LARGEST_NUMBER = 1e15
_LONGEST_SHOWN = 200
_DEV_NULL = os.makedev(1, 3)
_TOP = ("the top level",)
_BUS_ID = lazy_pattern(r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")

T = TypeVar("T")
KeyPath = tuple["str | int", ...]  # ("suppress", 0, "until")


class YamlFileError(UserError):
    """The file cannot be used; the message is one line that starts with its path."""


class UnknownKeyError(YamlFileError):
    """A key at `key_path` that this version does not know."""

    def __init__(self, message: str, key_path: KeyPath) -> None:
        super().__init__(message)
        self.key_path = key_path


class YamlFile(NamedTuple):
    """The content of a file: `data` as plain Python values, and the line (from 1) of every key_path in it."""

    path: Path
    data: Any
    lines: dict[KeyPath, int]

    def error(self, key_path: KeyPath, problem: str) -> YamlFileError:
        """An error that names the file, the key, and the line of the deepest part of `key_path` that exists."""
        present = key_path
        while present and present not in self.lines:
            present = present[:-1]
        return _error(self.path, self.lines.get(present, 1), key_path or _TOP, problem)

    def without(self, key_path: KeyPath) -> YamlFile:
        """The file without what is at a key_path; the items of a list that follow keep their lines."""
        *parent, last = key_path
        lines = self.lines
        if isinstance(last, int):
            lines = {
                _moved_up(at, tuple(parent), last): line
                for at, line in lines.items()
                if at[: len(key_path)] != key_path
            }
        return YamlFile(self.path, _removed(self.data, key_path), lines)

    def convert(self, data: Any, to: type[T], hint: Callable[[KeyPath, str], str] = lambda parent, key: "") -> T:
        """Convert `data`, which is `self.data` or derived from it, to the type `to`.

        Raise YamlFileError, UnknownKeyError among them.

        `hint(parent, key)` is appended to the message "unknown key".
        """
        try:
            return msgspec.convert(data, to)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `$")
            key_path = _named(data, path, to)
            if "unknown field" in message:
                key = message.split("`")[1]
                error_ = self.error((*key_path, key), f"unknown key{hint(key_path, key[:_LONGEST_SHOWN])}")
                raise UnknownKeyError(str(error_), (*key_path, key)) from None
            raise self.error(key_path, message) from None


def read_yaml(path: str | os.PathLike[str]) -> YamlFile:
    """The file as plain data: mappings with unique text keys, lists, text, dates, and numbers from 0 to 1e15.

    Opens only a regular file (or /dev/null) of at most 1 MiB. Aliases, tags and deep nesting are refused while the text
    is scanned, before any value is built. Raise YamlFileError.
    """
    path = Path(path)
    text = _text(path)
    if not text.strip():
        return YamlFile(path, None, {})
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    lines: dict[KeyPath, int] = {}
    try:
        _scan(path, text, loader)
        tree = yaml.compose(text, Loader=loader)
        data = None if tree is None else _Builder(path, lines, yaml.constructor.SafeConstructor()).value(tree, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        # libyaml has a limit of its own, which it may reach before the event at which _scan would stop
        deep = "nesting depth" in str(error.problem)
        why = f"nested deeper than {_DEEPEST} levels" if deep else f"not valid YAML: {error.problem or 'broken'}"
        raise _error(path, mark.line + 1 if mark else None, (), why) from None
    except yaml.reader.ReaderError as error:
        raise _error(path, text.count("\n", 0, error.position) + 1, (), f"not valid YAML: {error.reason}") from None
    return YamlFile(path, data, lines)


def _text(path: Path) -> str:
    try:
        # stat before open: opening a pipe may block without limit, and a device never ends
        info = path.stat()
        if stat.S_ISCHR(info.st_mode) and info.st_rdev == _DEV_NULL:
            return ""
        if not stat.S_ISREG(info.st_mode):
            raise YamlFileError(f"{path}: not a regular file (a folder, pipe or device)")
        raw = b""
        if info.st_size <= MAX_BYTES:
            with path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        if max(info.st_size, len(raw)) > MAX_BYTES:
            raise YamlFileError(f"{path}: larger than 1 MiB: neither a configuration nor a profile")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise YamlFileError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise YamlFileError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except ValueError:
        raise YamlFileError(f"{path}: not the name of a file") from None


def _scan(path: Path, text: str, loader: Any) -> None:
    """Refuse anything but small, plain data from the event stream: building it could exhaust memory or the stack."""
    directive = re.search(r"^%TAG", text, re.MULTILINE)
    if directive:
        # PyYAML compares each directive with all before it: seconds for 1 MiB of them
        raise _error(path, text.count("\n", 0, directive.start()) + 1, (), "YAML tags are not allowed here")
    depth = 0
    event: Any
    for count, event in enumerate(yaml.parse(text, Loader=loader)):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise _error(path, line, (), "YAML aliases are not allowed here: write the value out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if getattr(event, "tag", None) is not None:
            raise _error(path, line, (), f"YAML tags are not allowed here: {event.tag}")
        if depth > _DEEPEST:
            raise _error(path, line, (), f"nested deeper than {_DEEPEST} levels")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > _LONGEST_SCALAR:
            raise _error(path, line, (), f"a value of more than {_LONGEST_SCALAR} characters")
        if count > _MOST_EVENTS:
            raise _error(path, line, (), "too many values")


class _Builder(NamedTuple):
    """Builds values from nodes. Plain loading would accept duplicate keys (the last wins) and NaN."""

    path: Path
    lines: dict[KeyPath, int]
    constructor: Any

    def value(self, node: Any, key_path: KeyPath) -> Any:
        """The value of a node; records its places in `lines`."""
        self.lines.setdefault(key_path, node.start_mark.line + 1)
        if node.id == "sequence":
            return [self.value(item, (*key_path, number)) for number, item in enumerate(node.value)]
        return self._mapping(node, key_path) if node.id == "mapping" else self._scalar(node, key_path)

    def _mapping(self, node: Any, key_path: KeyPath) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if key_node.tag != "tag:yaml.org,2002:str":
                problem = (
                    f"the key {key} must be text: put it in quotes" if key_node.id == "scalar" else "a key is text"
                )
                raise _error(self.path, line, key_path or _TOP, problem)
            within = (*key_path, key)
            if key in built:
                raise _error(self.path, line, within, f"this key is there twice, first in line {self.lines[within]}")
            self.lines[within] = line
            built[key] = self.value(value_node, within)
        return built

    def _scalar(self, node: Any, key_path: KeyPath) -> Any:
        line, shown = node.start_mark.line + 1, node.value[:40]
        if _BUS_ID.fullmatch(node.value):
            return node.value  # to YAML 1.1, 12:00.0 is a number to the base 60
        try:
            value = self.constructor.construct_object(node)
        except (ValueError, OverflowError) as error:
            # it looks like a number or date to YAML: 2027-13-45, 10001 digits
            raise _error(self.path, line, key_path, f"{shown} is no number or date that can be: {error}") from None
        # this form of the comparison also refuses NaN
        if isinstance(value, (int, float)) and not 0 <= value <= _LARGEST_NUMBER:
            raise _error(self.path, line, key_path, f"{shown}: a number from 0 to {_LARGEST_NUMBER:g} is wanted")
        return value


def _error(path: Path, line: int | None, key_path: KeyPath, problem: str) -> YamlFileError:
    where = f"{path}, line {line}" if line else str(path)
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{_shown(part)}" for part in key_path).lstrip(".")
    return YamlFileError(": ".join(part for part in (where, key, _shown(problem)) if part))


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_SHOWN else f"{line[: _LONGEST_SHOWN - 4]} ..."


def _named(data: Any, path: str, to: Any) -> KeyPath:
    """msgspec's error path as a key_path. msgspec prints `[...]` for any mapping key: the one that is wrong alone."""
    key_path: KeyPath = ()
    here = data
    for field, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        part: str | int = field or (int(index) if index.isdigit() else "")
        if index == "...":
            part = next(key for key in here if _wrong_path(_with(data, key_path, {key: here[key]}), to) == path)
        key_path = (*key_path, part)
        here = here[part]
    return key_path


def _wrong_path(data: Any, to: Any) -> str | None:
    try:
        msgspec.convert(data, to)
    except msgspec.ValidationError as error:
        return str(error).partition(" - at `$")[2]
    return None


def _removed(data: Any, key_path: KeyPath) -> Any:
    copy = data.copy()
    if len(key_path) == 1:
        del copy[key_path[0]]
    else:
        copy[key_path[0]] = _removed(data[key_path[0]], key_path[1:])
    return copy


def _moved_up(at: KeyPath, parent: KeyPath, removed: int) -> KeyPath:
    key_path = len(parent)
    number = at[key_path] if len(at) > key_path and at[:key_path] == parent else None
    return (*parent, number - 1, *at[key_path + 1 :]) if isinstance(number, int) and number > removed else at


def _with(data: Any, key_path: KeyPath, value: Any) -> Any:
    """A copy of `data` with `value` at a key_path."""
    if not key_path:
        return value
    copy = data.copy()
    copy[key_path[0]] = _with(data[key_path[0]], key_path[1:], value)
    return copy
