"""Split a source of any size into lines in bounded memory, and strip what terminals, mails and other tools add."""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import BinaryIO

from gpudoctor.facts.captures import BUS_ID, SourceError

CHUNK_BYTES = 1 << 20
_NAMES_A_GPU = re.compile(rf"{BUS_ID}|\bGPU-[0-9a-f]{{8}}|\b(?:NVIDIA|Tesla|GeForce|Quadro) ")
_NUMBERS, _LEAST_COMMAS = re.compile(r"[0-9a-fA-F]+"), 4
_LINES_A_LOOK = 1000  # lines read between two looks at the clock
MAX_LINE = 1 << 23  # characters: a name in a dump may be megabytes long, and is clipped by its reader

# blanks that web pages, chats and word processors write instead of a space, and marks without a width
_ODD_BLANKS = {
    **dict.fromkeys((0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000), " "),
    **dict.fromkeys((0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF), None),
}
# colours and cursor movements (ECMA-48 CSI), window titles (OSC), and the choice of a character set
_TERMINAL = re.compile(r"\x1b(?:\[[0-9;?]{0,40}[ -/]?[@-~]|\][^\x07\x1b]{0,300}(?:\x07|\x1b\\)?|[()][A-Z0-9])")
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|nbsp|#0?39|#x27);")
_PANE = re.compile(r"(?<=[|+])\s*[│┃]$")  # the border of a terminal's pane, right of a table
# prefixes that mails, forums, editors and other programs add; _STAMP is from kubectl, docker logs or ts
_QUOTE = re.compile(r"(?:[ \t]{0,3}>){1,8}[ \t]?")  # one mark per level of reply
_NUMBER = re.compile(r"[ \t]{0,8}\d{1,7}(?:[:|\t│→]| [|│]|  |$)[ \t]?")
_STAMP = re.compile(
    r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d)?\]?"
    r"(?: std(?:out|err) [FP])?[ \t]?|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d "
)
_ORIGIN = re.compile(
    r"\[pod/[^\]\s]{1,300}\](?: |$)|\[[\w.-]{1,64}\][: ] ?|[\w.-]{1,64} {0,64}\| ?|[\w.-]{1,64}: "
    r"|\[?\d{1,4}\]?(?:: |<stdout>:? ?)|\d{1,4}: "
)
_INDENT = re.compile(r"(?: {2,12}|\t)(?=\S)")  # a Markdown code block
_ADDED = re.compile(r"\+[ \t]{1,8}(?=[^\s+=-])")  # a line that a diff adds, but no border of a table
_PREFIXES = (_QUOTE, _NUMBER, _STAMP, _ORIGIN, _INDENT, _ADDED)
_MOST_PREFIXES = 3

# /proc/PID/environ: variables with a zero byte between them
_ENVIRON = re.compile(rb"[A-Za-z_]\w{0,80}=[^\0]{0,9999}\0")


def is_binary(head: bytes) -> bool:
    """Whether what begins so is no text: it has zero bytes that neither UTF-16 nor a dump of variables explains."""
    return b"\0" in head and not _is_wide(head) and not _ENVIRON.match(head)


def _is_wide(head: bytes) -> bool:
    return head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


class TimeLimit:
    """How long the reading of a source may take, from now on; without seconds there is no limit."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._begun_s = monotonic()

    @property
    def is_over(self) -> bool:
        return self.seconds is not None and monotonic() - self._begun_s > self.seconds

    def held(self, lines: Iterable[tuple[str, bool]]) -> Iterator[tuple[str, bool]]:
        """Yield the lines. Raise SourceError when the time is over: half of a text is not judged."""
        for number, line in enumerate(lines):
            if number % _LINES_A_LOOK == 0 and self.is_over:
                raise SourceError(
                    f"{number} lines of this text were read within --deadline {self.seconds:g}: "
                    "keep only those of one machine in it, or give more time"
                )
            yield line


NO_LIMIT = TimeLimit()


def lines_of(chunks: Iterable[bytes]) -> Iterator[tuple[str, bool]]:
    """Yield each line without its end, and whether it had one: only the last line may have none.

    Reads UTF-8, or UTF-16 with a byte-order mark (from PowerShell); invalid bytes are replaced. Only a line feed ends a
    line. A line is cut after 8 million characters. A zero byte is left out, or ends a line of /proc/PID/environ.
    """
    decoder: codecs.IncrementalDecoder | None = None
    rest = ""
    dropping = wide = False
    zero = b""  # a log contains zero bytes if the machine lost power while writing it
    for chunk in chunks:
        if decoder is None:
            wide = _is_wide(chunk)
            decoder = codecs.getincrementaldecoder("utf-16" if wide else "utf-8-sig")("replace")
            zero = b"\n" if _ENVIRON.match(chunk) else b""
        if not wide:
            chunk = chunk.replace(b"\0", zero)
        first, *more = plain_spaces(decoder.decode(chunk)).split("\n")
        if not dropping:
            rest += first
        for line in more:
            yield rest, True
            rest, dropping = line, False
        if len(rest) > MAX_LINE:
            rest, dropping = rest[:MAX_LINE], True
    if decoder is not None and (rest := rest + decoder.decode(b"", final=True)):
        yield rest, False


def lines_in_string(line: str) -> Iterator[str]:
    r"""Yield the lines that a string of JSON or the like in this line holds, as the text that it was.

    >>> list(lines_in_string(r'{"smi": "GPU 0: A\n\tLink 0\n"}'))
    ['GPU 0: A', '\tLink 0', '"}']
    """
    first, *rest = line.split("\\n")
    if rest:
        yield first[max(first.rfind('"'), first.rfind("'")) + 1 :]
        yield from (text.replace("\\t", "\t").removesuffix("\\r") for text in rest)


def form_of_row(line: str) -> str:
    """A row of many cells that names a GPU, without its numbers; "" for any other line."""
    return _NUMBERS.sub("0", line) if line.count(",") >= _LEAST_COMMAS and _NAMES_A_GPU.search(line) else ""


def chunks_of(head: bytes, stream: BinaryIO) -> Iterator[bytes]:
    """Yield the part of a stream that was already read, then the rest in chunks."""
    yield head
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def plain_spaces(text: str) -> str:
    """The text with a space for each blank of another kind, and without marks that have no width."""
    return text if text.isascii() else text.translate(_ODD_BLANKS)


def unescaped(line: str) -> str:
    """The line with the signs that a web page's source writes as entities (&lt;inactive&gt;)."""
    return _ENTITY.sub(lambda found: plain_spaces(html.unescape(found[0])), line) if "&" in line else line


def without_terminal(line: str) -> str:
    """The line without colours, window titles and trailing blanks; only the last of texts printed over each other."""
    if "\x1b" in line:
        line = _TERMINAL.sub("", line)
    line = line.rstrip()
    if line[-1:] in ("│", "┃"):
        line = _PANE.sub("", line)
    return line.rpartition("\r")[2] if "\r" in line else line


def unprefixed(line: str) -> Iterator[str]:
    """Yield what the line may be without a quote mark, line number, timestamp or container name before it.

    >>> list(unprefixed("> 12: [ 1.5] NVRM: loading"))
    ['12: [ 1.5] NVRM: loading', '[ 1.5] NVRM: loading']
    """
    if indent := _INDENT.match(line):  # first: "    01:00.0 VGA" begins with a PCI address, not with a line number
        yield line[indent.end() :]
    for _ in range(_MOST_PREFIXES):
        for prefix in _PREFIXES:
            found = prefix.match(line)
            if found:
                line = line[found.end() :]
                yield line
                break
        else:
            return
