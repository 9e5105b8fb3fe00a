"""Which lines of a log are pieces of one: of a long message of torch, a launcher's sentence, a box of MPICH."""

from __future__ import annotations

import re

import msgspec

from gpudoctor.diagnose.patterns.watchdog import CONTINUES, DECIDES
from gpudoctor.statements.prefixes import Origin

_MOST_PIECES = 9
_BEGINS_ANEW = (
    "Exception raised",
    "frame #",
    "terminate called",
    "Traceback",
    "  File",
    "srun:",
    "slurmstepd",
    "CUDA kernel errors",
)
_BOX = "=   "  # MPICH's and Intel's mpiexec: "=   PID 77 RUNNING AT n7"
_SHORTEST_SENTENCE = 32  # characters: prose of launchers, not a word or two of a program
_OPEN = re.compile(r"[a-z,]\s*$")
_ENDED = re.compile(r"[.:!?](?:$|\s+[A-Z])")
_TERMINAL = 50  # characters: a longer piece was cut at a width, in the middle of a word or not


class StrippedLine(msgspec.Struct):
    """A line without its prefixes, and as it was."""

    number: int
    origin: Origin
    text: str
    raw: str
    last: int = 0  # of the pieces that it was wrapped into
    framed: bool = False  # right below a rule of dashes: a launcher's message to people begins


class HeldLine(msgspec.Struct):
    """A line that may go on; its number becomes that of the piece with the words that matter."""

    line: StrippedLine
    first: int
    last: int

    def takes(self, line: StrippedLine) -> bool:
        """Whether the line is the next piece, and was added."""
        text, origin, before = line.text, line.origin, self.line.text
        labelled = origin.rank is not None or origin.source is not None or origin.local_rank is not None
        if labelled or line.number != self.last + 1 or line.number >= self.first + _MOST_PIECES:
            return False
        if before.rstrip().endswith(".") or not text or "NCCL " in text[:200] or text.startswith(_BEGINS_ANEW):
            return False
        boxed = before.startswith(_BOX)
        in_prose = boxed or not self.line.framed or (text[:1].islower() and _is_open(before))
        if boxed != text.startswith(_BOX) or not in_prose:
            return False
        if DECIDES.search(text) and not DECIDES.search(before):
            self.line.number = line.number
        more = f" {text.strip()}" if boxed or self.line.framed or len(before) < _TERMINAL else text
        self.line.text, self.line.raw = before + more, self.line.raw + more
        self.last = self.line.last = line.number
        return True


def may_go_on(line: StrippedLine) -> bool:
    """Whether the line may be the first of several pieces."""
    if "ProcessGroupNCCL" in (line.origin.source or "") and CONTINUES.search(line.text):
        return True
    return line.text.startswith(_BOX) or (line.framed and _is_open(line.text))


def _is_open(text: str) -> bool:
    """Whether a sentence of people ends in its middle."""
    return len(text) >= _SHORTEST_SENTENCE and _OPEN.search(text) is not None and _ENDED.search(text) is None
