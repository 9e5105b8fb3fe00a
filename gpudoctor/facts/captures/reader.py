"""The interface of a reader: which lines belong to its tool, and which facts a block of them contains."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from gpudoctor.facts.model.node import Node
from gpudoctor.facts.model.reported import Reported

if TYPE_CHECKING:  # these modules import this one
    from gpudoctor.facts.captures.host.lspci import PciTree
    from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump
    from gpudoctor.facts.captures.nvidia_smi.topology import Topology

_LONGEST_KEY = 45
Form = Callable[[str], object]
NO_MORE = r"(?!)"  # no further line


class NoRow(msgspec.Struct):
    """A line that may stand for rows of a list: its number and text, and how many lines of the block are above it."""

    number: int
    text: str
    above: int


class Block(msgspec.Struct):
    """Consecutive lines of one tool's output, without anything that surrounded them.

    Prompts, rulers, fences, quote marks, line numbers, colours and line ends are removed; indentation is kept.
    `first_line` is the first line's number in the source, from 1. `command` is the command at the prompt above, or the
    heading, which often is the command; "" if there was neither. `file` is the name of the source. `whole_end` is False
    if the source ends in the block's last line without a line end: a number there may lack its last digits.
    `goes_on_from`: this block continues the previous one. `no_rows`: the first lines among or below its lines that may
    stand for rows, see `TextReader.row`.
    """

    lines: list[str]
    first_line: int = 1
    command: str = ""
    file: str = ""
    whole_end: bool = True
    goes_on_from: bool = False
    no_rows: list[NoRow] = []

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    def matches(self, form: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """The match of each line that begins in this form."""
        return filter(None, map(form.match, self.lines))


class Part(msgspec.Struct):
    """The facts in one block. All parts of a source are joined into one node.

    `node` contains the facts that are in the text itself; every other leaf stays NOT_READ. If two parts have different
    values, one of them counts and a note reports it; lists of facts are joined by their required fields (the device
    and port of an `RdmaPort`, the bus id of a `PciDevice`). The other fields are for readers whose text must be
    joined to GPUs by index, bus id or UUID. `notes` are shown in the report; they do not contain the file's name.
    `reported`: the tool's own verdicts, which no other fact holds, and parts of the text that were not understood.
    """

    node: Node = Node()
    notes: tuple[str, ...] = ()
    reported: tuple[Reported, ...] = ()
    smi: tuple[SmiDump, ...] = ()
    topology: Topology | None = None
    pci_tree: PciTree | None = None


class TextReader(msgspec.Struct, frozen=True):
    """A reader for one kind of text. `name` is its usual name, used in notes ("lspci", "nvidia-smi -L").

    All functions return a true value for a match.

    - `begins(line)`: only this text has such a line, and it may be the first one. It is called for every line that no
      open block takes, so it must be cheap and must not match prose.
    - `goes_on(line)`: the line may follow in this text. A line that matches neither is skipped and counted as not
      recognised; it does not end the block. Blank lines inside a block are kept.
    - `read(block)`: the facts. It may raise SourceError with the position in the block only.
    - `after(command)`: the lines below a prompt with this command ("ulimit -a") belong to this reader even if none of
      them matches `begins`.
    - `restarts(line)`: the line can occur only once in such a text, so it begins a new block of the same reader.
    - `until(line)`: the block takes every line up to the first match, regardless of `goes_on`; a line that begins
      another reader's text and is not markup still ends it.
    - `may_be(line)`: called last, for a line that nothing else matches: it may belong to this text behind an unknown
      prefix.
    - `row(line)`: the text is a list of devices, and a line in this form is a row of it, even if it cannot be read. If
      such a line, or one that says that something is left out, stands right below a line of the text, it may hide a
      device, unless `is_whole(block, no_row)`: nothing can be missing there.
    - `interleaved`: other logs may contain its lines between their own (syslog). They are collected up to the next
      prompt, ruler or heading, and end no block that is read in pieces.
    - `in_pieces`: each line means the same alone as together (a log), so a long block is read in pieces.
    """

    name: str
    begins: Form
    goes_on: Form
    read: Callable[[Block], Part]
    after: Form | None = None
    restarts: Form | None = None
    until: Form | None = None
    may_be: Form | None = None
    row: Form | None = None
    is_whole: Callable[[Block, NoRow], bool] = lambda block, no_row: False
    in_pieces: bool = False
    interleaved: bool = False


def text_reader(
    name: str, begins: str | Form, goes_on: str | Form = NO_MORE, *, after: str = "", **options: Any
) -> Callable[[Callable[[Block], Part]], TextReader]:
    """Makes a reader of a function from a block to its facts, which the others of a text may call as `read`.

    Expressions match a line from its start; `after` is searched for in the command. `options` are the other fields of
    TextReader. `goes_on` need not match what begins the text.
    """

    def made(read: Callable[[Block], Part]) -> TextReader:
        return TextReader(
            name,
            re.compile(begins).match if isinstance(begins, str) else begins,
            re.compile(goes_on).match if isinstance(goes_on, str) else goes_on,
            read,
            after=re.compile(after).search if after else None,
            **options,
        )

    return made


def key_value(line: str) -> tuple[str, str] | None:
    """The key and the value of a line "key: value"; None for any other line.

    No regular expression for the value: a line may be megabytes of blanks.
    """
    key, colon, value = line.partition(":")
    key = key.strip()
    return (key, value.strip()) if colon and 0 < len(key) <= _LONGEST_KEY else None
