"""Split a transcript, i.e. any text that people paste, into blocks by the tool that printed them.

Each line is classified first, by what is open and what it may begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.boundaries import (
    BARE,
    ELSEWHERE,
    FENCE,
    GREP_GAP,
    HEADING,
    HOST,
    LEFT_OUT,
    MARKUP,
    PLAIN_WORDS,
    PROMPT,
    ROOT,
    RULER,
)
from gpudoctor.facts.captures.lines import form_of_row, lines_in_string, unescaped, unprefixed, without_terminal
from gpudoctor.facts.captures.reader import Block, NoRow, TextReader
from gpudoctor.facts.captures.text_statements import TextStatements
from gpudoctor.statements.catalogue import ONE_DIGIT

PIECE_LINES = 20_000  # per piece of a log
MAX_BLOCK_LINES = 500_000
MAX_BLOCK_CHARACTERS = 1 << 26
MAX_ASIDE_LINE = 1000  # characters
MAX_UNKNOWN_CHARACTERS = 1 << 24
# so many characters of a line show whose text it begins: a CSV header of all 200 fields of nvidia-smi has 8,000
_LONGEST_BEGINNING = 1 << 16
_LEAST_COUNTED = 32  # for an empty line too: millions of them take as long as as many others
_MOST_REMEMBERED, _LONGEST_REMEMBERED = 10_000, 1000
_HIDES = ("", " ", "\t", ">", "-")  # first characters of blank, indented and quoted lines and of grep's gap
_MOST_RANGES = 1000
_MOST_NO_ROWS = 16
_OF_KERNEL = "NVRM: "


class Unrecognised(msgspec.Struct):
    """Numbers of the lines that no reader took, as up to a thousand ranges; further ones are only counted."""

    count: int = 0
    ranges: list[tuple[int, int]] = []

    def add(self, number: int) -> None:
        self.count += 1
        if self.ranges and self.ranges[-1][1] == number - 1:
            self.ranges[-1] = (self.ranges[-1][0], number)
        elif len(self.ranges) < _MOST_RANGES:
            self.ranges.append((number, number))

    def words(self, most: int = 8) -> str:
        """The line numbers as a sentence for a note.

        >>> Unrecognised(4, [(2, 2), (5, 7)]).words()
        '4 lines were not recognised: 2, 5-7'
        """
        named = [f"{first}" if first == last else f"{first}-{last}" for first, last in self.ranges[:most]]
        if sum(last - first + 1 for first, last in self.ranges[:most]) < self.count:
            named.append("...")
        lines = "1 line was" if self.count == 1 else f"{self.count} lines were"
        return f"{lines} not recognised: {', '.join(named)}"


class _Line(msgspec.Struct):
    """A line and what is done with it: `text` without what was added before it, `whole` with it; `reader` whose it is.

    `command`: see `Block`.
    `step` is a method of the transcript: what a line is, is what follows from it.
    """

    step: Callable[[_Line, int], None]
    text: str
    whole: str = ""
    reader: TextReader | None = None
    command: str = ""


class Transcript:
    """Splits lines into blocks and passes each complete block, with its reader, to `take`.

    A line that no reader takes does not end a block, so prose in the middle of a dump changes nothing. A prompt, a
    ruler, a fence, or the first line of another tool's text ends it.
    What no reader takes, headings included, is offered to `statements`.
    """

    def __init__(
        self, readers: Iterable[TextReader], take: Callable[[TextReader, Block], None], file: str = ""
    ) -> None:
        self._readers = tuple(readers)
        self._of_gpus = [reader for reader in self._readers if reader.name.startswith(("nvidia-smi", "dcgmi"))]
        self._take = take
        self._file = file
        self._reader: TextReader | None = None
        self._block = Block([])
        self._characters = 0
        self._blank = self._by_command = False
        self._beside = False  # whether the line before is in the block
        self._command = ""
        # the lines of each reader that is `interleaved`, until the next boundary
        self._asides: dict[TextReader, Block] = {}
        self._margin = ""  # the blanks before the first line of a block, as before code in Markdown
        # forms of lines that no reader took: programs repeat lines that differ only in digits (an Xid's number counts)
        self._unknown: set[tuple[TextReader | None, str]] = set()
        self._last_line = 0
        self.unrecognised = Unrecognised()
        self.lines_over_limit = 0
        self.hosts: set[str | None] = set()  # whose prompts there are; None: a command went elsewhere
        self._row_above = ""  # the form of the last row of a list of devices
        # first lines that hold what is not read: rows below their list, and a tool's text in a string
        self.row_below: NoRow | None = None
        self.in_string: NoRow | None = None
        self.statements = TextStatements(file)
        self.blocks = 0

    def read(self, lines: Iterable[tuple[str, bool]]) -> None:
        """Read all lines, each with whether it had a line end, and close the last block.

        Raise SourceError if the first 16 million characters contain nothing that is recognised.
        """
        characters = 0
        for number, (raw, ended) in enumerate(lines, 1):
            line = self._classified(self._cleaned(raw))
            line.step(line, number)
            characters += max(len(raw), _LEAST_COUNTED)
            if characters > MAX_UNKNOWN_CHARACTERS and not self._has_anything:
                raise SourceError(
                    f"nothing recognised in its first {number} lines: give the part about the node "
                    "(grep -iE 'gpu|xid' FILE | gpudoctor check --node -); the log of a job: gpudoctor diagnose FILE"
                )
            if not ended and self._reader is not None:
                self._block.whole_end = self._last_line != number
        self.statements.end()
        self._close_all()

    @property
    def _has_anything(self) -> bool:
        return bool(self.blocks or self._reader is not None or self._asides or self.statements.has_any)

    def _cleaned(self, raw: str) -> str:
        """The line without colours, a page's entities and the margin of a quoted block."""
        line = without_terminal(raw)
        if self._reader is None or self._reader.until is None:  # not inside XML
            line = line if MARKUP.match(line) else unescaped(line)
        if self._margin and line:
            if line.startswith(self._margin):
                return line[len(self._margin) :]
            if not line.isspace():
                self._margin = ""
        return line

    def _classified(self, line: str) -> _Line:
        reader = self._reader
        # a short cut for the many lines of a log; the code below would have the same result
        if reader is not None and reader.in_pieces and line[:1] not in _HIDES and reader.begins(line):
            return _Line(self._continue, line)
        if self._may_hide_rows:
            if LEFT_OUT.match(line):
                return _Line(self._note_no_row, line)
        elif self._was_unknown_before(line):
            return _Line(self._pass, line)
        if not line or line.isspace():
            return _Line(self._skip, line)
        if reader is not None and reader.until is not None:
            if reader.until(line):
                return _Line(self._end, line)
            if line.lstrip()[:1] == "<" or self._begun_by(line) is None:
                return _Line(self._continue, line)
        if line == GREP_GAP:
            return _Line(self._continue if reader is not None else self._skip, line)
        return self._behind_prefixes(line) or self._as_it_is(line)

    def _was_unknown_before(self, line: str) -> bool:
        short = len(line) < _LONGEST_REMEMBERED and not self._by_command
        return short and (self._reader, line.translate(ONE_DIGIT)) in self._unknown

    @property
    def _may_hide_rows(self) -> bool:
        """Whether the next line stands right below a row of a list of devices."""
        return self._beside and self._reader is not None and self._reader.row is not None

    def _behind_prefixes(self, line: str) -> _Line | None:
        """The line as itself or without what mails, editors and other programs put before it; None if unknown."""
        # a mail's quote mark hides what the line is; other prefixes may belong to the tool's text
        for inner in (*([line] if line[0] != ">" else []), *unprefixed(line)):
            if not inner or inner.isspace():
                return _Line(self._skip, inner)
            if found := self._of_reader(inner) or self._boundary(inner):
                found.whole = line
                return found
        return None

    def _as_it_is(self, line: str) -> _Line:
        """A line that no form is known of: it may still belong to a command above, or to a reader that looks last."""
        if self._by_command and self._reader is not None:
            return _Line(self._continue, line)
        maybe = next((r for r in self._readers if r.may_be is not None and r.may_be(line)), None)
        if maybe is not None:
            return _Line(self._begin if maybe is not self._reader else self._continue, line, line, maybe)
        if (own := self._reader) is not None and own.row is not None and self._beside and own.row(line):
            return _Line(self._note_no_row, line)
        return (self._boundary(line) if line[0] == ">" else None) or _Line(self._pass_and_remember, line, line)

    def _of_reader(self, line: str) -> _Line | None:
        """What the line is to the open block, or to a reader whose text it begins; None if it is neither's."""
        reader = self._reader
        if reader is not None and reader.in_pieces and reader.begins(line):
            return _Line(self._continue, line)
        goes_on = reader is not None and bool(reader.goes_on(line))
        in_text = goes_on and reader is not None and not reader.in_pieces
        # an indented line belongs to the open block, except in a log, where any line may follow
        if in_text and not self._blank and line[0] in " \t|":
            return _Line(self._continue, line)
        begun = self._begun_by(line)
        if begun is None:
            return _Line(self._continue, line) if goes_on else None
        if begun.interleaved:
            # `systemctl status` ends with lines of the journal
            if in_text:
                return _Line(self._continue, line)
            return _Line(self._put_aside, line, reader=begun)
        again = begun.restarts is not None and begun.restarts(line)
        return _Line(self._begin if begun is not reader or again else self._continue, line, reader=begun)

    def _begun_by(self, line: str) -> TextReader | None:
        """The reader whose text this line begins: the open one if it matches, otherwise the first match."""
        line = line[:_LONGEST_BEGINNING]  # XML may be one line of megabytes
        if self._reader is not None and self._reader.begins(line):
            return self._reader
        return next((reader for reader in self._readers if reader.begins(line)), None)

    def _boundary(self, line: str) -> _Line | None:
        """What the line is if it stands between texts: a prompt with its command, a fence, a ruler or a heading."""
        found = PROMPT.match(line) or ROOT.match(line) or BARE.match(line)
        if found is not None:
            groups = found.groupdict()
            command = (groups.get("command") or groups.get("attached") or "").strip()
            # the kernel writes to a console behind its prompt
            by_kernel = (begun := self._begun_by(command)) is not None and begun.in_pieces
            return (self._of_reader(command) if by_kernel else None) or _Line(self._note_command, line, command=command)
        if FENCE.match(line) or RULER.match(line):
            return _Line(self._divide, line)
        if (heading := HEADING.match(line)) is None:
            return None
        return _Line(self._head, line, command=heading["file"] or heading["title"] or "")

    # what is done with a line

    def _continue(self, line: _Line, number: int) -> None:
        block, reader = self._block, self._reader
        if reader is not None and len(block.lines) >= PIECE_LINES and reader.in_pieces and reader.begins(line.text):
            self._open(reader, number)
            block = self._block
            block.goes_on_from = True
        self._characters += len(line.text)
        if len(block.lines) >= MAX_BLOCK_LINES or self._characters > MAX_BLOCK_CHARACTERS:
            self.lines_over_limit += 1
            return
        if not block.lines:
            block.first_line = number
        elif self._blank:
            block.lines.append("")
        self._blank = False
        self._beside = True
        block.lines.append(line.text)
        if reader is not None and reader.row is not None and (at := line.text.find(_OF_KERNEL)) > 0:
            self.statements.offer(line.text[at:], number)  # written into the line by somebody else
        self._last_line = number

    def _end(self, line: _Line, number: int) -> None:
        self._continue(line, number)
        self._close()

    def _begin(self, line: _Line, number: int) -> None:
        if line.reader is not None:
            self._open(line.reader, number)
        self._continue(line, number)
        before = line.whole[: -len(line.text)]
        if before and before.isspace():
            self._margin = before

    def _put_aside(self, line: _Line, number: int) -> None:
        if (reader := line.reader) is None:
            return
        if self._reader is not None and not self._reader.in_pieces:
            self._close()
        block = self._asides.setdefault(reader, Block([], number, self._command, self._file))
        if len(block.lines) >= 2 * PIECE_LINES:
            del block.lines[:PIECE_LINES]  # the last lines show the state
            self.lines_over_limit += PIECE_LINES
        block.lines.append(line.text[:MAX_ASIDE_LINE])

    def _note_no_row(self, line: _Line, number: int) -> None:
        if len(self._block.no_rows) < _MOST_NO_ROWS:
            self._block.no_rows.append(NoRow(number, line.text.strip(), len(self._block.lines)))
        self._pass(line, number)
        if (found := self._boundary(line.text)) is not None and found.step in (self._divide, self._head):
            self._close_all()

    def _note_command(self, line: _Line, number: int) -> None:
        self._close_all()
        self._command = line.command
        if PLAIN_WORDS.match(line.text):
            self.statements.offer_command(line.text, number)
        if ELSEWHERE.search(f"{line.command} "):
            self.hosts.add(None)
        if (prompt := HOST.match(line.text)) and len(self.hosts) < 2:
            self.hosts.add(prompt[1])
        for reader in self._readers:
            if self._command and reader.after is not None and reader.after(self._command):
                self._open(reader, 0)
                self._by_command = True
                return

    def _divide(self, line: _Line, number: int) -> None:
        self._close_all()

    def _head(self, line: _Line, number: int) -> None:
        self._close_all()
        self._command = line.command
        self.statements.offer(line.whole, number)

    def _skip(self, line: _Line, number: int) -> None:
        self._blank = True
        self._beside = False

    def _pass(self, line: _Line, number: int) -> None:
        self._beside = False
        self._look_for_unread(line.text, number)
        self.unrecognised.add(number)
        self.statements.offer(line.text, number)

    def _look_for_unread(self, text: str, number: int) -> None:
        if self._row_above and self.row_below is None and form_of_row(text) == self._row_above:
            self.row_below = NoRow(number, text.strip(), 0)
        if "\\n" in text and self.in_string is None:
            lines = lines_in_string(text[:_LONGEST_BEGINNING])
            begun = next((reader for line in lines for reader in self._of_gpus if reader.begins(line)), None)
            self.in_string = NoRow(number, begun.name, 0) if begun is not None else None

    def _pass_and_remember(self, line: _Line, number: int) -> None:
        self._pass(line, number)
        small = len(line.text) < _LONGEST_REMEMBERED and len(self._unknown) < _MOST_REMEMBERED
        if small and "Xid" not in line.text:
            self._unknown.add((self._reader, line.text.translate(ONE_DIGIT)))

    def _open(self, reader: TextReader, number: int) -> None:
        self._close()
        self._reader = reader
        self._block = Block([], number, self._command, self._file)
        self._characters = 0
        self._last_line = 0

    def _close_all(self) -> None:
        self._close()
        asides, self._asides = self._asides, {}
        self.blocks += len(asides)
        for reader, block in asides.items():
            self._take(reader, block)

    def _close(self) -> None:
        reader, block = self._reader, self._block
        self._reader, self._block = None, Block([])
        self._blank = self._by_command = self._beside = False
        if reader is not None and block.lines:
            self._row_above = form_of_row(block.lines[-1]) if reader.row is not None else ""
            self.blocks += 1
            self._take(reader, block)
