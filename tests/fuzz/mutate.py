"""Good inputs made bad: cut, lines doubled or swapped or lost, bytes flipped, garbage, numbers out of all bounds."""

from __future__ import annotations

import re
from collections.abc import Callable

from hypothesis import strategies as st

GARBAGE = (
    *(b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\x1b]0;x\x07", b"\n", b"\t", b"\r\n", b" : ", b"-", b"[N/A]", b"ERR!"),
    *(b"GPU is lost", b"<", b"</gpu>", b"&x;", b"<!ENTITY x 'y'>", b"{", b"[", b"]", b'"', b"\\ud800", b"!!python/x"),
    *(b"*a", b"null", b"true", b"[" * 2000, b'{"a":' * 500, b"9" * 5000, "٣".encode(), "\u2028".encode()),
    *(b"GPU0\tGPU1", b"GPU 7: X (UUID: GPU-1)", b"Link 99: 1 GB/s", b"_" * 24, b"NVRM: Xid (PCI:0000:05:00): 79, x"),
)
NUMBERS = (
    *(b"0", b"-1", b"255", b"4294967295", b"4294967296", b"18446744073709551615", b"99999999999999999999999"),
    *(b"1e999", b"-0.0", b"NaN", b"1.5", b"1e-320", b"9" * 4400, b"0x10", b"007"),
)
# whole lines that may stand between others wherever people copy from
LINES = (
    *(
        b"and now it works again on the other node\n",
        b"root@node7:~# nvidia-smi\n",
        b"```\n",
        b"\n",
        b"\0\n",
        b"\xff\n",
    ),
    *(b"thanks for any help!\n", b"> quoted\n", b"[12345.678] usb 1-1: new device\n", b"+-----------------+\n"),
    *(b"Thu Nov 26 10:00:00 2026\n", b"No devices were found\n", b"GPU 0: OK\n", b"everything passes: 0 errors\n"),
)
_NUMBER = re.compile(rb"\d+")

Step = tuple[str, int, int, int]


def _place(content: bytearray, share: int) -> int:
    return share * len(content) >> 16


def _cut(content: bytearray, a: int, b: int, c: int) -> None:
    del content[_place(content, a) :]


def _flip(content: bytearray, a: int, b: int, c: int) -> None:
    if content:
        content[_place(content, a)] ^= 1 << b % 8


def _insert(content: bytearray, a: int, b: int, c: int) -> None:
    at = _place(content, a)
    content[at : at + b % 8] = GARBAGE[c % len(GARBAGE)]


def _number(content: bytearray, a: int, b: int, c: int) -> None:
    # the next number from here on: searching for all of them costs more than the parser
    found = _NUMBER.search(content, _place(content, a))
    if found:
        content[found.start() : found.end()] = NUMBERS[c % len(NUMBERS)]


def _lines(change: Callable[[list[bytes], int, int], None]) -> Callable[[bytearray, int, int, int], None]:
    def step(content: bytearray, a: int, b: int, c: int) -> None:
        lines = bytes(content).splitlines(keepends=True)
        if lines:
            change(lines, a * len(lines) >> 16, b * len(lines) >> 16)
            content[:] = b"".join(lines)

    return step


def _twice(lines: list[bytes], a: int, b: int) -> None:
    lines.insert(b, lines[a])


def _swap(lines: list[bytes], a: int, b: int) -> None:
    lines[a], lines[b] = lines[b], lines[a]


def _lose(lines: list[bytes], a: int, b: int) -> None:
    del lines[min(a, b) : max(a, b) + 1]


def _block_twice(lines: list[bytes], a: int, b: int) -> None:
    lines[a:a] = lines[min(a, b) : max(a, b) + 1]


STEPS: dict[str, Callable[[bytearray, int, int, int], None]] = {
    "cut": _cut,
    "flip": _flip,
    "insert": _insert,
    "number": _number,
    "number again": _number,
    "line twice": _lines(_twice),
    "lines swapped": _lines(_swap),
    "lines lost": _lines(_lose),
    "block twice": _lines(_block_twice),
}


def steps_of(*names: str, most: int) -> st.SearchStrategy[list[Step]]:
    """One to `most` of these steps, anywhere."""
    step = st.tuples(st.sampled_from(names), st.integers(0, 65535), st.integers(0, 65535), st.integers(0, 255))
    return st.lists(step, min_size=1, max_size=most)


steps = steps_of(*sorted(STEPS), most=5)


def mutated(seed: bytes, what: list[Step]) -> bytes:
    """The seed after these steps."""
    content = bytearray(seed)
    for name, a, b, c in what:
        STEPS[name](content, a, b, c)
    return bytes(content)
