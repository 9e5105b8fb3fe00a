"""Split a transcript, i.e. any text that people paste, into blocks by the tool that printed them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.lines import unescaped, unprefixed, without_terminal
from gpudoctor.facts.captures.reader import Block, TextReader
from gpudoctor.facts.captures.reported_failures import tells_of_a_fault

PIECE_LINES = 20_000  # per piece of a log
MAX_BLOCK_LINES = 500_000
MAX_BLOCK_CHARACTERS = 1 << 26
MAX_ASIDE_LINE = 1000  # characters
MAX_UNKNOWN_CHARACTERS = 1 << 24
_MOST_REMEMBERED, _LONGEST_REMEMBERED = 10_000, 1000
_HIDES = ("", " ", "\t", ">", "-")  # first characters of blank, indented and quoted lines and of grep's gap
_ONE_DIGIT = str.maketrans("123456789", "000000000")
_MOST_RANGES, _MOST_HARD = 1000, 3

# a line that begins with one of these names is a command, also after root's prompt ("# dmesg") or without a prompt
_PROGRAMS = (
    r"(?:sudo +(?:-\w+ +)*)?(?:[\w./~-]*/)?(?:nvidia-[a-z-]+|dmesg|journalctl|lspci|lsmod|modinfo|modprobe|insmod|rmmod"
    r"|dkms|systemctl|uname|cat|grep|egrep|zgrep|awk|sed|ls|lsb_release|mokutil|df|free|ulimit|docker|podman|kubectl"
    r"|crictl|nvidia-container-cli|sinfo|scontrol|srun|ibstat|ibstatus|ibv_devinfo|ip|ethtool|mst|mlxlink|numactl|env"
    r"|export|python3?|dcgmi|nvcc|gpudoctor|ssh|exit|top|htop|ps|apt|apt-get|yum|dnf|tail|head|watch|echo|time|which"
    r"|update-initramfs|reboot|lsof|fuser|nsys|torchrun|nvtop|for|while|sh|bash|cd|curl|wget|pip3?|conda|ldconfig)"
)
_PROMPT = re.compile(
    # [user@host dir]$ cmd    user@host:~/dir$ cmd    (venv) root@host[/]# cmd    host:~ # cmd
    r"(?:\([\w.+-]{1,60}\) ?){0,3}"
    r"(?:\[[\w.@: ~/+-]{1,120}\] ?[$#%>]|[\w.-]{1,64}@[\w.-]{1,120}[\w.@:~/\[\]() +-]{0,200}?[$#%>❯»]"
    r"|[\w.-]{1,64}:[~/][\w./~-]{0,120} ?[$#>]|(?:ba)?sh-\d\.\d+[$#]|PS [A-Z]:\\[^>]{0,200}>|[A-Z]:\\[^>]{0,200}>"
    r"|[~/][\w./~-]{0,120} ?[$#%❯>]|[➜❯ᐅλ][^$#]{0,60}|[$%]|>>>)"
    r"(?: (?P<command>.{0,2000})|(?P<close>[a-z./][^ ].{0,2000})?)$"
)
_ROOT = re.compile(rf"(?:#|\+{{1,3}}|>|PS>) ?(?P<command>{_PROGRAMS}\b.{{0,2000}})$")
_BARE = re.compile(rf"(?P<command>(?:sudo +)?{_PROGRAMS}(?: +[-|/\w.*'\"=,:$~]+){{0,40}} *)$")
_FENCE = re.compile(
    r"[ \t]{0,8}(?:`{3,}|~{3,})[\w +.-]{0,40}$|[ \t]{0,8}</?(?:details|summary|pre|code|br)\b.{0,200}>$"
)
_MARKUP = re.compile(r"\s{0,80}<(?:\?xml|!DOCTYPE|nvidia_smi_log)")  # a page's source would have "&lt;"
_GREP_GAP = "--"  # between the matches of grep -A: the tool's text continues after it
# also matches the border of a table that is not open yet
_RULER = re.compile(r"[ \t]*(?:[-_=*#~.]{3,}|(?:[-*_] ){2,}[-*_]|[─━═]{3,}|\+[-=+]{10,})[ \t]*$")
# a heading between two runs of a ruler: "==> dmesg.txt <==" of head and tail, "===== nvidia-smi =====", "## dmesg"
_HEADING = re.compile(
    r"[ \t]*(?:==> (?P<file>\S.{0,200}) <==|(?:[=*#_-]{3,}|#{1,6}) *(?P<title>\S.{0,80}?):? *(?:[=*#_-]{3,}|#{0,6}))$"
)


class Passed(msgspec.Struct):
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

        >>> Passed(4, [(2, 2), (5, 7)]).words()
        '4 lines were not recognised: 2, 5-7'
        """
        named = [f"{first}" if first == last else f"{first}-{last}" for first, last in self.ranges[:most]]
        if sum(last - first + 1 for first, last in self.ranges[:most]) < self.count:
            named.append("...")
        lines = "1 line was" if self.count == 1 else f"{self.count} lines were"
        return f"{lines} not recognised: {', '.join(named)}"


class Transcript:
    """Splits lines into blocks and passes each complete block, with its reader, to `take`.

    A line that no reader takes does not end a block, so prose in the middle of a dump changes nothing, and neither
    does a line that is a text of its own. A prompt, a ruler, a fence, or the first line of another tool's text ends it.
    """

    def __init__(
        self, readers: Iterable[TextReader], take: Callable[[TextReader, Block], None], file: str = ""
    ) -> None:
        self._readers = tuple(readers)
        self._take = take
        self._file = file
        self._reader: TextReader | None = None
        self._block = Block([])
        self._characters = 0
        self._blank = self._by_command = False
        self._command = ""
        # the lines of each reader that is `interleaved` or `alone`, until the next boundary
        self._asides: dict[TextReader, Block] = {}
        self._margin = ""  # the blanks before the first line of a block, as before code in Markdown
        # forms of lines that no reader took: programs repeat lines that differ only in digits (an Xid's number counts)
        self._unknown: set[tuple[TextReader | None, str]] = set()
        self.passed, self.too_long = Passed(), Passed()
        self.hard: list[str] = []  # those of them that tell of a broken GPU
        self.blocks = 0

    def read(self, lines: Iterable[tuple[str, bool]]) -> None:
        """Read all lines, each with whether it had a line end, and close the last block.

        Raise SourceError if the first 16 million characters contain nothing that is recognised.
        """
        characters = 0
        for number, (raw, ended) in enumerate(lines, 1):
            self._line(raw, number)
            characters += len(raw)
            if characters > MAX_UNKNOWN_CHARACTERS and not self.blocks and self._reader is None and not self._asides:
                raise SourceError("nothing recognised in its first 16 MiB: not a dump that gpudoctor reads")
            if not ended and self._reader is not None:
                self._block.whole_end = self._last_line != number
        self._close_all()

    def _line(self, raw: str, number: int) -> None:
        line = without_terminal(raw)
        if self._reader is None or self._reader.until is None:  # not inside XML
            line = line if _MARKUP.match(line) else unescaped(line)
        if self._margin and line:
            if line.startswith(self._margin):
                line = line[len(self._margin) :]
            elif not line.isspace():
                self._margin = ""
        # a short cut for the many lines of a log; the code below would have the same result
        if self._reader is not None and self._reader.in_pieces and line[:1] not in _HIDES and self._reader.begins(line):
            self._keep(line, number)
            return
        look = (self._reader, line.translate(_ONE_DIGIT)) if len(line) < _LONGEST_REMEMBERED else None
        if look in self._unknown and not self._by_command:
            self.passed.add(number)
            return
        if not line or line.isspace():
            self._blank = True
            return
        reader = self._reader
        if reader is not None and reader.until is not None:
            if reader.until(line):
                self._keep(line, number)
                self._close()
                return
            if line.lstrip()[:1] == "<" or self._begun_by(line) is None:
                self._keep(line, number)
                return
        if line == _GREP_GAP:
            if reader is not None:
                self._keep(line, number)
            return
        # a mail's quote mark hides what the line is; other prefixes may belong to the tool's text
        if line[0] != ">" and (self._offer(line, number) or self._boundary(line)):
            return
        for inner in unprefixed(line):
            if not inner or inner.isspace():
                self._blank = True
                return
            opened = self._reader
            if self._offer(inner, number):
                before = line[: -len(inner)]
                if before.isspace() and self._reader is not opened:
                    self._margin = before
                return
            if self._boundary(inner):
                return
        if self._by_command and self._reader is not None:
            self._keep(line, number)
        elif (maybe := next((r for r in self._readers if r.may_be is not None and r.may_be(line)), None)) is not None:
            if maybe.alone:
                self._keep_aside(maybe, line, number)
                return
            if maybe is not self._reader:
                self._open(maybe, number)
            self._keep(line, number)
        elif line[0] == ">" and self._boundary(line):
            return
        else:
            self.passed.add(number)
            if len(self.hard) < _MOST_HARD and tells_of_a_fault(line):
                self.hard.append(line.strip()[:300])
            if look is not None and len(self._unknown) < _MOST_REMEMBERED and "Xid" not in line:
                self._unknown.add(look)

    def _offer(self, line: str, number: int) -> bool:
        """Whether the line was taken, by the open block or by a new one that it begins."""
        reader = self._reader
        if reader is not None and reader.in_pieces and reader.begins(line):
            self._keep(line, number)
            return True
        goes_on = reader is not None and reader.goes_on(line)
        # an indented line belongs to the open block, except in a log, where any line may follow
        if reader is not None and goes_on and not self._blank and line[0] in " \t|" and not reader.in_pieces:
            self._keep(line, number)
            return True
        begun = self._begun_by(line)
        if begun is not None and begun.alone:
            self._keep_aside(begun, line, number)
            return True
        if begun is not None and begun.interleaved:
            # `systemctl status` ends with lines of the journal
            if reader is not None and goes_on and not reader.in_pieces:
                self._keep(line, number)
                return True
            if reader is not None and not reader.in_pieces:
                self._close()
            self._keep_aside(begun, line, number)
            return True
        if begun is not None and (begun is not reader or (begun.restarts is not None and begun.restarts(line))):
            self._open(begun, number)
        elif begun is None and not goes_on:
            return False
        self._keep(line, number)
        return True

    def _begun_by(self, line: str) -> TextReader | None:
        """The reader whose text this line begins: the open one if it matches, otherwise the first match."""
        if self._reader is not None and self._reader.begins(line):
            return self._reader
        return next((reader for reader in self._readers if reader.begins(line)), None)

    def _boundary(self, line: str) -> bool:
        found = _PROMPT.match(line) or _ROOT.match(line) or _BARE.match(line)
        if found is not None:
            groups = found.groupdict()
            self._close_all()
            self._command = (groups.get("command") or groups.get("close") or "").strip()
            for reader in self._readers:
                if self._command and reader.after is not None and reader.after(self._command):
                    self._open(reader, 0)
                    self._by_command = True
                    break
            return True
        if _FENCE.match(line) or _RULER.match(line):
            self._close_all()
            return True
        heading = _HEADING.match(line)
        if heading is not None:
            self._close_all()
            self._command = heading["file"] or heading["title"] or ""
            return True
        return False

    def _open(self, reader: TextReader, number: int) -> None:
        self._close()
        self._reader = reader
        self._block = Block([], number, self._command, self._file)
        self._characters = 0
        self._last_line = 0

    def _keep(self, line: str, number: int) -> None:
        block, reader = self._block, self._reader
        if reader is not None and len(block.lines) >= PIECE_LINES and reader.in_pieces and reader.begins(line):
            self._open(reader, number)
            block = self._block
            block.goes_on_from = True
        self._characters += len(line)
        if len(block.lines) >= MAX_BLOCK_LINES or self._characters > MAX_BLOCK_CHARACTERS:
            self.too_long.add(number)
            return
        if not block.lines:
            block.first_line = number
        elif self._blank:
            block.lines.append("")
        self._blank = False
        block.lines.append(line)
        self._last_line = number

    def _keep_aside(self, reader: TextReader, line: str, number: int) -> None:
        block = self._asides.setdefault(reader, Block([], number, self._command, self._file))
        if len(block.lines) >= 2 * PIECE_LINES:
            if reader.alone:
                self._take_aside(reader)
                block = self._asides[reader] = Block([], number, self._command, self._file)
            else:  # the last lines show the state
                del block.lines[:PIECE_LINES]
                self.too_long.count += PIECE_LINES
        block.lines.append(line[:MAX_ASIDE_LINE])

    def _close_all(self) -> None:
        self._close()
        for reader in tuple(self._asides):
            self._take_aside(reader)

    def _take_aside(self, reader: TextReader) -> None:
        self.blocks += 1
        self._take(reader, self._asides.pop(reader))

    def _close(self) -> None:
        reader, block = self._reader, self._block
        self._reader, self._block = None, Block([])
        self._blank = self._by_command = False
        if reader is not None and block.lines:
            self.blocks += 1
            self._take(reader, block)
