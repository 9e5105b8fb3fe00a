"""JSON that is safe to print on a terminal."""

from __future__ import annotations

import re

import msgspec

from gpudoctor.lazy import lazy_imports, lazy_pattern

with lazy_imports():
    import json

# a negated range: a positive one over all Unicode planes takes 10 ms to compile at every start
_ABOVE_ASCII = lazy_pattern(r"[^\x00-\x7e]")


def json_line(struct: msgspec.Struct) -> str:
    """The struct as one line of JSON, ending in a newline."""
    try:
        return terminal_safe(msgspec.json.encode(struct)).decode() + "\n"
    except UnicodeEncodeError:  # a name that is not UTF-8 (lone surrogates); the standard library escapes it
        return json.dumps(msgspec.to_builtins(struct)) + "\n"


def json_document(data: object) -> str:
    """Any data as JSON with an indentation of two spaces, ending in a newline."""
    try:
        return terminal_safe(msgspec.json.format(msgspec.json.encode(data), indent=2)).decode() + "\n"
    except UnicodeEncodeError:  # as in `json_line`
        return json.dumps(msgspec.to_builtins(data), indent=2) + "\n"


def terminal_safe(data: bytes) -> bytes:
    r"""The same document with every unprintable character escaped.

    JSON itself escapes only characters below U+0020, but U+009B starts a terminal escape sequence as ESC [ does, and
    U+202E reverses the direction of the text that follows.

    >>> terminal_safe('"a\x9b2J \u202e \x7f \xe9"'.encode())
    b'"a\\u009b2J \\u202e \\u007f \xc3\xa9"'
    """
    if data.isascii() and b"\x7f" not in data:
        return data
    return _ABOVE_ASCII.sub(_escaped, data.decode()).encode()


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))
