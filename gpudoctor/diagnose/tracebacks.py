"""Python tracebacks, whole or cut, interleaved by several writers: the exception, its origin and its meaning.

Also torchelastic's error.json, which a rank under @record writes before it ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec

from gpudoctor.diagnose.events import TROUBLE, Event, clipped
from gpudoctor.diagnose.patterns.catalogue import error_event
from gpudoctor.diagnose.patterns.exceptions import CHAINED, EXCEPTION, exception_event
from gpudoctor.diagnose.patterns.job_facts import is_of_a_job
from gpudoctor.statements.classes import kind_of
from gpudoctor.statements.prefixes import with_short_numbers

_BEGIN = re.compile(r"Traceback \(most recent call last\):?(?: \(RANK (?P<rank>\d{1,6})\))?")
_FRAME = re.compile(
    r'\s*(?:\|\s*)?File "(?P<file>[^"]{1,400})", line (?P<line>\d+)\b(?! in )(?:, in (?P<function>.{1,120}))?'
    r'|\s{2,}File "[^"]{1,400}$'  # a terminal broke the path
)
# without a traceback before it, only a name like an exception's counts
_NAMED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout)$")
# a class; the standard library has only these in lower case. `self.comm: ncclComm_t = f(` is a statement;
# `INFO: ` begins a logger's line that got between
_CLASS = re.compile(
    r"^(?!(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|NVRM)$)(?:.*\.)?_?(?:[A-Z]\w*|error|timeout|gaierror|herror)$"
)
# the last line of a frame, or the marks below it, when the head is missing
_CUT = re.compile(r"\s{4,}(?:raise\s|[\^~]+\s*$)|\s*│ ❱ +\d+ │")
# torch puts `[rank3]: ` before the lines of an uncaught exception
_UNCAUGHT = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): \S")
# the margin of an exception group
_GROUPED = re.compile(r"^ {0,40}\| ")
# printed by Python for exceptions that end nothing
_IGNORED = ("Exception ignored in", "--- Logging error ---")
_OF_A_LOGGER = ("Message: ", "Arguments: (")
_NO_MESSAGE = re.compile(
    r"[$#>] |\W{0,4}(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b"
)  # a prompt, a logger
# where a whole traceback is indented: in torchrun's table, or by whoever caught the exception and tells of it
_MARGIN = re.compile(r"(?P<margin>\s{1,12})(?P<field>traceback ?: )?Traceback \(most recent")
# what a logger puts before words that report no failure; alone it is the level of a line's prefix
_NO_FAILURE = re.compile(r"[DIWV]$|.{0,200}\b(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|Warning)\b")
_RAISES = re.compile(r"raise ((?:\w+\.)*[A-Z]\w*)\($")
_RERAISED = re.compile(r"Caught \w+ in (?:DataLoader worker process|replica|pin memory thread)")
_LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python3|lib64/python3|<frozen|/opt/conda/lib|/torch/|/bin/[\w-]+$"
)
_INSTALLED = re.compile(r"(?:site|dist)-packages/(?P<package>[\w./-]*)")
# of what starts and drives the program: an exception raised here, with no frame of the program, is not the program's
_LAUNCHER = re.compile(
    r"(?:torch/distributed|deepspeed|accelerate|ray|lightning\w*|pytorch_lightning|horovod|submitit)/"
)
# of torch.distributed, and the backward pass, in which DDP and FSDP reduce gradients
_COLLECTIVES = {
    "all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "all_gather_object", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier",
    "broadcast_object_list", "gather", "scatter", "send", "recv", "_engine_run_backward"
}  # fmt: skip
_OF_A_PROGRAM = re.compile(r"[\w.\[\]-]{1,80}: ")
_MOST_FRAMES = 400
_MOST_OPEN = 512


class _Open(msgspec.Struct):
    """A traceback whose exception line has not been read yet.

    `clocked`: the line that raises has a time; `quoted`: the program caught the exception and tells of it; `mild`: in a
    line that reports no failure.
    """

    line: int
    text: str
    rank: int | None = None
    user_frame: str = ""
    in_launcher: bool = False
    collective: str = ""
    functions: set[str] = set()
    frames: int = 0
    chained: bool = False
    ignored: bool = False
    raised: int = 0
    raised_text: str = ""
    clocked: bool = False
    behind_raise: str = ""
    margin: str = ""
    quoted: bool = False
    mild: bool = False


def _is_below_frame(trace: _Open, number: int, text: str, *, clocked: bool) -> bool:
    """Whether the line is the source of a frame; keeps the one that raises."""
    if not (_is_source(text) or trace.frames > _MOST_FRAMES):
        return False
    if text.lstrip().startswith(("raise ", "assert ")):
        trace.raised, trace.raised_text, trace.clocked = number, text.strip(), clocked
    return True


def _exception(text: str, *, frames: int) -> re.Match[str] | None:
    """The exception in the last line of a traceback with so many frames; None if the line is none."""
    found = EXCEPTION.match(text)
    if found is None or " " in found["type"] or not _CLASS.search(found["type"]):
        return None
    if _NAMED.match(found["type"]):
        return found
    bare = not found["message"] and text != found["type"]
    return None if frames == 0 or bare else found


def _lacks_head(text: str, *, labelled: bool) -> bool:
    """Whether it is the line right before an exception, or a labelled one itself, of which no frame was seen."""
    return _CUT.match(text) is not None or (labelled and _UNCAUGHT.match(text) is not None)


def _is_source(text: str) -> bool:
    """Whether a line below a frame is its source, marks below that, or empty: the exception is still to come."""
    return not text.strip() or text[0] in " \t|+^~"


def _is_of_another(text: str) -> bool:
    """Whether a line behind a `raise` is a prompt, a logger's or one of the job, and not the message."""
    return is_of_a_job(text) or _NO_MESSAGE.match(text) is not None


class Tracebacks:
    """The tracebacks of one file; at most one is open for each writer."""

    def __init__(self) -> None:
        self._open: dict[object, _Open] = {}
        self._last: dict[object, Event] = {}
        self._chain: set[object] = set()
        self._ignored: set[object] = set()
        self._logged: tuple[int, object, int | None] | None = None
        self._unfinished: tuple[object, int, Event] | None = None
        self._mild = -1  # the last line whose level is below an error's

    def read(
        self,
        stream: object,
        number: int,
        text: str,
        writer: int | None = None,
        *,
        labelled: bool = False,
        level: str | None = None,
        clocked: bool = False,
        in_table: bool = False,
    ) -> tuple[bool, Event | None]:
        """Whether the line belongs to a traceback, and the exception if the traceback ends with this line.

        `writer`: the rank in the line's own label; `labelled`: whether a label names the rank or host that writes;
        `level`: that of the line's prefix; `clocked`: whether it has a time; `in_table`: whether torchrun's table tells
        of a rank.
        """
        text = _GROUPED.sub("", text)
        self._go_on((stream, level), number, text)
        if self._introduces(stream, text):
            return True, None
        if begin := _BEGIN.search(text):
            self._begin(stream, number, text, begin, writer, in_table=in_table)
            return True, None
        if _NO_FAILURE.match(level or text):
            self._mild = number
        trace = self._open.get(stream)
        margin = trace.margin if trace is not None else ""
        of_another, text = not text.startswith(margin), text.removeprefix(margin)
        if frame := _FRAME.match(text):
            if trace is None:
                trace = self._open[stream] = self._taken_over(number) or _Open(number, text)
            self._frame(trace, frame)
            return True, None
        if trace is None and _lacks_head(text, labelled=labelled):
            trace = self._open[stream] = _Open(number, text)
        if trace is None:
            return False, None
        if _is_below_frame(trace, number, text, clocked=clocked):
            return True, None
        # without prefixes, another writer's lines may come between
        if of_another or _exception(text, frames=trace.frames) is None:
            by_another = labelled or level or clocked != trace.clocked or _is_of_another(text)
            if number == trace.raised + 1 and not by_another:
                trace.behind_raise = text.strip()
            return False, None
        del self._open[stream]
        event = self._event(stream, trace, text)
        self._unfinished = ((stream, level), number, event) if text.rstrip().endswith(":") else None
        return True, event

    def _introduces(self, stream: object, text: str) -> bool:
        """Whether the line says what the next traceback of the stream is, or ends the words of a logger's one."""
        if text.lstrip().startswith(_IGNORED):
            self._ignored.add(stream)
        elif text.lstrip().startswith(CHAINED) and not _BEGIN.search(text):
            self._chain.add(stream)
        elif text.startswith(_OF_A_LOGGER):  # the rest of a "--- Logging error ---", which ends nothing
            self._open.pop(stream, None)
        else:
            return False
        return True

    def _go_on(self, writer: object, number: int, text: str) -> None:
        """Add the line to the message of an exception right above that ends in a colon.

        A line that is an error itself is what an exception without a message tells of.
        """
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is None or unfinished[:2] != (writer, number - 1) or not text.strip() or _BEGIN.search(text):
            return
        event = unfinished[2]
        if _exception(text.strip(), frames=0):
            return
        if known := error_event(text):
            if known.role == "cause" and known.strength >= 3 and event.what == "user_exception":
                _tell(event, known, text)
            return
        event.detail["message"] = clipped(f"{event.word('message') or ''} {text.strip()}")
        self._unfinished = (writer, number, event) if text.rstrip().endswith(":") else None

    def _begin(
        self, stream: object, number: int, text: str, begin: re.Match[str], writer: int | None, *, in_table: bool
    ) -> None:
        if len(self._open) >= _MOST_OPEN:
            self._open.clear()
        rank = int(begin["rank"]) if begin["rank"] else None
        chained, ignored = stream in self._chain, stream in self._ignored
        indented = _MARGIN.match(text)
        trace = self._open[stream] = _Open(number, text, rank, chained=chained, ignored=ignored)
        if indented is not None:
            trace.margin = indented["margin"]
            trace.quoted = not (in_table or indented["field"])
            trace.mild = self._mild == number - 1
        self._logged = (number, stream, writer) if begin.start() else None
        self._chain.discard(stream)
        self._ignored.discard(stream)

    def without_end(self) -> Iterator[Event]:
        """Of each traceback whose exception was not read: what it raised, if a line behind `raise TYPE(` tells, else
        the line at which it began.
        """
        for trace in self._open.values():
            if trace.ignored:
                continue
            event = Event(role="said", what="wrapper", detail={"form": "exception"}, line=trace.line, text=trace.text)
            if trace.behind_raise and (name := _RAISES.match(trace.raised_text)):
                message = f"{name[1]}: {trace.behind_raise}"
                event = self._event(None, trace, message)
                event.line, event.text = trace.raised + 1, trace.behind_raise
                if event.role in TROUBLE:  # the line may be another writer's
                    _only_say(event, message, kind_of(message))
            yield event

    def _taken_over(self, number: int) -> _Open | None:
        """The traceback that a logger's line began if its other lines have no label: `[... TP2] ... Traceback`."""
        if self._logged is None or self._logged[0] != number - 1:
            return None
        _, stream, writer = self._logged
        trace = self._open.pop(stream, None)
        if trace is not None and trace.rank is None:
            trace.rank = writer
        return trace

    def _frame(self, trace: _Open, frame: re.Match[str]) -> None:
        trace.frames += 1
        if frame["function"]:
            trace.functions.add(frame["function"])
            if frame["function"] in _COLLECTIVES:
                trace.collective = frame["function"]
        if frame["file"] and not _LIBRARY.search(frame["file"]):
            trace.user_frame = f"{frame['file']}:{frame['line']}"
        elif installed := _INSTALLED.search(frame["file"] or ""):
            trace.in_launcher = _LAUNCHER.match(installed["package"]) is not None

    def _event(self, stream: object, trace: _Open, text: str) -> Event:
        event = exception_event(text, trace.functions)
        if trace.rank is not None:
            event.rank = trace.rank
        if trace.user_frame:
            event.detail["frame"] = trace.user_frame
        elif trace.in_launcher and event.what == "user_exception" and event.role == "cause":
            event.what, event.strength = "failed_saying", 2
        event.detail["traceback"] = 1
        if trace.raised:
            event.detail["raised"], event.detail["raised_text"] = trace.raised, clipped(trace.raised_text)
        if trace.ignored and event.role != "ending":
            event.role, event.what = "fact", "ignored"
            return event
        if trace.quoted and event.role != "ending":
            _only_say(event, text, "wrapper" if trace.mild else kind_of(text))
            return event
        if trace.collective:
            event.detail["collective"] = trace.collective
        if event.what == "user_exception" and _RERAISED.search(text):
            event.role = "wrapper"  # the exception itself follows after "Original Traceback"
        first = self._last.get(stream) if trace.chained else None
        plain = "user_exception"
        if first and event.role == first.role == "cause" and (first.what != plain or event.what == plain):
            event.role = "wrapper"  # it came while the first was handled
        self._last[stream] = event
        return event


def _only_say(event: Event, text: str, what: str) -> None:
    """Make an exception of which it is not known that it ended anything a statement of this class."""
    event.role, event.what, event.names_rank = "said", what, False
    event.detail |= {"form": "exception", "severity": "error", "message": clipped(text.strip())}


def _tell(event: Event, known: Event, text: str) -> None:
    """Make an exception without a message one of the known error that the line below it tells; no launcher's line."""
    if not event.word("message") and not _OF_A_PROGRAM.match(text):
        event.what, event.names_rank = known.what, known.names_rank
        event.detail["message"] = clipped(text.strip())


def looks_like_error_file(head: bytes, name: str) -> bool:
    """Whether name and first bytes are those of an error.json."""
    return name.endswith("error.json") and head.lstrip()[:1] == b"{"


def read_error_file(data: bytes, file: int) -> Event | None:
    """The exception in the file; None if it contains none. The folder gives the rank."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    message = content.get("message") if isinstance(content, dict) else None
    stack = ""
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        stack = str(extra.get("py_callstack", "")) if isinstance(extra, dict) else ""
        message = message.get("message")
    if not isinstance(message, str) or not message.strip():
        return None
    traces = Tracebacks()
    event: Event | None = None
    for number, line in enumerate(with_short_numbers(stack).split("\n")[:2000]):
        _, reported = traces.read(None, number, line)
        event = reported or event
    if event is None:
        event = exception_event(with_short_numbers(message.split("\n")[0]))
    event.file, event.line, event.text = file, 1, message.split("\n")[0]
    return event
