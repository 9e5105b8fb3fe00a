"""Strips the prefixes of a line, from the left and repeatedly, and keeps what they contain.

Launchers, schedulers, runtimes and loggers each put their own label before a line, often several at once:
`[default0]:[rank4]:[E817 01:45:40.18 ProcessGroupNCCL.cpp:607] ` has a LOCAL rank, a GLOBAL rank and a time.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from datetime import datetime, timedelta, timezone
from itertools import takewhile

import msgspec

LABEL_LINES = 200  # as many first lines of a file are shown to `labels_of`
_MOST_DIGITS = 18
_LONG_NUMBER = re.compile(rf"(\d{{{_MOST_DIGITS}}})\d+")
_MOST_PREFIXES = 9
_SECONDS_A_DAY = 86400
_MONTHS = {
    m: n for n, m in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1)
}
_TASK = re.compile(r" {0,5}(\d{1,6}): ?(?=\S|$)")
_HOST_LABEL = re.compile(r"([A-Za-z][\w.-]{1,80}|\d{1,3}(?:\.\d{1,3}){3}):(?: |$)")
_NO_HOSTS = re.compile(
    r"(?i)(?:srun|slurmstepd.*|warning|info|error|debug|critical|traceback|torchrun|mpirun|prterun|step|loss|epoch|iter\w*|"
    r"rank\d*|gpu\d*|nvrm|nvidia-nvswitch\d*|audit|note|usage|file|train|val|eval|nccl|kernel|python\d*|bash|sh|critical|fatal|std(?:out|err)|.*error|.*exception)"
)
_LEVEL_BEHIND = re.compile(r" ?\[?(?:(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL)\b|(?:warning|error|fatal):)")
_COLOURS = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_CAPITALS, _DIGITS = string.ascii_uppercase, string.digits
_WORD = "_" + string.ascii_letters + _DIGITS
# what it may begin with, and the expression; its groups are fields of `Origin`, or of `_take`
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (first, re.compile(text))
    for first, text in (
        # torch's C++ logger, Python's glog-like logger of torch
        ("[", rf"\[(?P<level>[IWEFV])(?P<mmdd>\d{{3,4}}) (?P<clock>{_TIME}) (?P<source>[\w.-]+:\d+)\] ?"),
        ("[", r"\[(?P<level>[IWEF]) (?P<source>[\w.-]+\.cpp:\d+)\] ?"),
        ("IWEFV", rf"(?P<level>[IWEFV])(?P<mmdd>\d{{4}}) (?P<clock>{_TIME}) +(?P<thread>\d+) (?P<source>[\w./-]+:\d+)\] ?"),
        ("[", r"\[rank: ?(?P<rank>\d{1,6})\] ?"),
        ("[", r"\[rank(?P<rank>\d{1,6})\]: ?"),
        ("[", r"\[(?:rank|Rank|RANK) ?(?P<group_rank>\d{1,6})\]:? ?"),
        ("[", r"\[(?!(?i:rank|pg|step|epoch)\d{1,5}\])[A-Za-z_]\w{0,30}?(?P<local_rank>\d{1,5})\]: ?"),
        ("[", r"\[\w{1,40}\|\d{1,5}\]: ?"),
        ("[", r"\[(?:\d{1,6},)?(?P<rank>\d{1,6})\]<std(?:out|err|diag)>: ?"),
        ("[", r"\[pod/(?P<host>[^/\]\s]{1,253})(?:/[^\]\s]{1,253})?\] ?"),
        ("(", r"\((?P<actor>[\w.<>]{1,60})(?: rank=(?P<rank>\d{1,6}))? pid=(?P<pid>\d{1,10})"
         r"(?:, ip=(?P<ip>[0-9a-fA-F.:]{3,45}))?\) ?"),
        # UCX
        ("[", r"(?:\[\d{1,12}\.\d{1,9}\] )?\[(?P<host>[\w.-]{1,253}):(?P<pid>\d{1,10}) *:\d{1,10}(?::\d{1,10})?\] +"
         r"(?P<source>\w{1,80}\.c:\d+) +"),
        # SkyPilot: this rank is the node's
        ("(", r"\((?P<label>[\w.-]{1,64}), rank=\d{1,6}, pid=\d{1,10}(?:, ip=(?P<ip>[0-9a-fA-F.:]{3,45}))?\) ?"),
        ("(", r"\((?P<actor>raylet|autoscaler|gcs_server)(?: ip=(?P<ip>[0-9a-fA-F.:]{3,45}))?\) ?"),
        ("DIWEC", rf"(?P<level_word>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<mmdd>\d\d-\d\d) (?P<clock>{_TIME}) "
         r"(?:\[[^\]]{1,80}|[\w./-]{1,80}:\d+)\] ?"),
        ("[", rf"\[(?P<date>\d{{4}}-\d\d-\d\d)[ T](?P<clock>{_TIME})(?: (?P<tp>(?:DP\d+ )?TP(?P<tprank>\d+)))?\] ?"),
        # srun -l labels each line of a task: where few lines have it, those of a traceback still show what it is
        (_DIGITS, r"(?P<task>\d{1,6}): (?=Traceback \(most recent|  File \"|    \S|(?:[a-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception|Interrupt): )"),
        (_DIGITS, rf"(?P<date>\d{{4}}[-/]\d\d[-/]\d\d)[ T_](?P<clock>{_TIME})(?:Z|[+-]\d\d:?\d\d)?,? ?"),
        ("s", r"std(?:out|err)(?: [FP]|:) "),
        ("[" + _CAPITALS, rf"(?:\[?(?:[A-Z][a-z]{{2}} )?(?P<month>[A-Z][a-z]{{2}}) +(?P<day>\d{{1,2}}) (?P<clock>{_TIME})"
         r"(?: \d{4})?(?:\]? |(?=\[\d{1,6}\]<std)))"
         r"(?:(?P<host>(?!kernel)[\w.-]{1,253}) (?:(?=kernel|slurm|srun)|(?P<program>[\w./-]{1,64})(?:\[(?P<program_pid>\d{1,10})\])?: ))?"),
        # the journal's other forms, behind a date of any form
        (_WORD, r"(?P<host>[A-Za-z][\w.-]{1,253}) (?P<program>[\w./@-]{1,64})\[(?P<program_pid>\d{1,10})\]: "),
        # grep over several files
        (_WORD + "./", r"(?P<log>[\w./-]{1,200}\.(?:log|out|err|txt))[:-]\d{1,9}[:-] ?"),
        (_WORD, r"(?P<stream_host>[\w.-]{1,253}) \[std(?:out|err)\] ?"),
        (_WORD, r"(?P<label>[\w.-]{1,64}) {0,40}\| "),
        (_WORD, r"(?P<label>[\w.-]{1,64}/\d{1,5}) (?=\[)"),
        (_WORD, r"(?P<host>[A-Za-z][\w.-]{1,80}|\d{1,3}(?:\.\d{1,3}){3}): (?=\[(?:rank|default)\d{1,6}\]:)"),
        (_DIGITS, r"\d{1,7}\.\d{1,3}s\t\d{1,8}\t"),
        ("-", r"- (?P<label>[\w.-]{1,64}) - (?P<level_word>DEBUG|INFO|WARNING|ERROR|CRITICAL) - (?=\[(?:rank|default)\d)"),
        ("[", r"\[\d{2,10}\] (?=\[)"),
        ("[IWEC", r"(?:\[(?P<level_word>INFO|WARNING|ERROR|DEBUG|CRITICAL)\]|(?P<level_mark>INFO|WARNING|ERROR|CRITICAL):) (?=\[|\()"),
    )
)  # fmt: skip
# by first letter, since most prefixes can begin with only one or two
_PREFIXES: dict[str, tuple[re.Pattern[str], ...]] = {
    letter: tuple(pattern for first, pattern in _PATTERNS if letter in first) for letter in "[(-./" + _WORD
}
_MARGIN = re.compile(r"[ \t>]{0,40}")
_INDENTED = re.compile(r"[ \t]+\[(?:rank|default|[IWEF]\d{3,4} )")  # a log that was quoted
_MARKS = re.compile(r"[ \t]{0,20}(?:>[ \t]?|#{1,6}[ \t]+|[*+-][ \t]+(?=[A-Za-z`*\[(]))")
_EMPHASIS = re.compile(r"(?<!\*)\*\*(?=[^\s*])([^*]{1,300})\*\*(?!\*)")
_CODE = re.compile(r"(?<!Assertion )`([^`]{1,400})`")
_FENCE = re.compile(r"[ \t]{0,20}(?:```|~~~)[\w+-]{0,20}[ \t]*$")


class Origin(msgspec.Struct):
    """Who wrote a line, and when, as far as its prefixes show. `time_s`: seconds within a year, without time zone."""

    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None
    host: str | None = None
    label: str | None = None
    pid: int | None = None
    ip: str | None = None
    gpu: str | None = None
    time_s: float | None = None
    source: str | None = None
    level: str | None = None
    thread: str | None = None
    level_word: str | None = None
    program: str | None = None
    program_pid: int | None = None

    @property
    def stream(self) -> object:
        """Equal for all lines of one writer."""
        return self.rank, self.local_rank, self.task, self.label, self.pid, self.host


class Labels(msgspec.Struct, frozen=True):
    """Labels recognised from many lines only: `3: ` of `srun -l`, `node17: ` of pdsh, the margin of a quoted log."""

    tasks: bool = False
    hosts: frozenset[str] = frozenset()
    margin: str = ""


NO_LABELS = Labels()


def with_short_numbers(line: str) -> str:
    """The line with every number cut to 18 digits: Python refuses to convert long ones, and JSON has 64 bits.

    >>> with_short_numbers("rank 12345678901234567890 of 8")
    'rank 123456789012345678 of 8'
    """
    return _LONG_NUMBER.sub(r"\1", line)


def labels_of(lines: list[str]) -> Labels:
    """The labels that most of the first lines of a file have."""
    margin = _margin(lines)
    read = [stripped(line.removeprefix(margin)) for line in lines]
    shown = [(origin, rest) for origin, text in read if (rest := text.strip("\r\n")).strip()]
    if not shown:
        return Labels()
    free = [(origin, line) for origin, line in shown if not line.startswith(("srun:", "slurmstepd", "srun "))]
    tasks = [line for origin, line in free if origin.task is not None or _TASK.match(line)]
    if free and len(tasks) >= 0.6 * len(free):
        return Labels(tasks=True, margin=margin)
    counts = Counter(host for origin, line in free if (host := _host_label(origin, line)))
    a_word = len(counts) == 1 and all(label.isalpha() and label[0].isupper() for label in counts)  # "Training: step 3"
    if sum(counts.values()) >= 0.6 * len(free) and len(free) >= 4 and min(counts.values()) >= 2 and not a_word:
        return Labels(hosts=frozenset(counts), margin=margin)
    return Labels(margin=margin)


def _host_label(origin: Origin, line: str) -> str | None:
    """The host that pdsh and its like write before a line, in front of what a logger prints."""
    found = _HOST_LABEL.match(line)
    if found is None or origin.source is not None or origin.level is not None:
        return None
    is_host = _LEVEL_BEHIND.match(line, found.end()) is None and not _NO_HOSTS.fullmatch(found[1])
    return found[1] if is_host else None


def _margin(lines: list[str]) -> str:
    """Blanks and quote marks that all lines begin with, as in a log that was quoted or indented as a whole."""
    begins = {_MARGIN.match(line)[0] for line in lines if line.strip(" \t\r\n>")}  # type: ignore[index]
    if not begins:
        return ""
    shortest, longest = min(begins), max(begins)
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(shortest, longest, strict=False))
    return "".join(letter for letter, _ in alike)


def stripped(line: str, labels: Labels = NO_LABELS) -> tuple[Origin, str]:
    """The line without its prefixes, and what they contained.

    >>> origin, text = stripped("[default0]:[rank4]:[E816 02:52:53.183 ProcessGroupNCCL.cpp:607] [Rank 4] Watchdog")
    >>> origin.local_rank, origin.rank, text
    (0, 4, 'Watchdog')
    """
    origin = Origin()
    if "\x1b" in line:
        line = _COLOURS.sub("", line)
    line = line.replace("\0", "")
    if "\\*" in line:  # as a page writes "***"
        line = line.replace("\\*\\*\\*", "***").replace("**\\*", "***")
    if line[:8] == '{"log":"' or line[:9] == '{"log": "':
        line = _docker_text(line)
    for _ in range(_MOST_PREFIXES):
        if line[:1] in " \t" and _INDENTED.match(line):
            line = line.lstrip(" \t")
        rest = _without_label(origin, line, labels)
        if rest is None:
            for pattern in _PREFIXES.get(line[:1], ()):
                if (found := pattern.match(line)) is not None:
                    _take(origin, found)
                    rest = line[found.end() :]
                    break
        if rest is None:
            break
        line = rest
    return origin, line


def unmarked(line: str) -> str:
    """The line without Markdown's marks: quotes, headings, bullets, back-ticks, emphasis; empty for a fence.

    >>> unmarked("## `GPU 3` has **fallen off** the bus"), unmarked("> - broken"), unmarked("```text")
    ('GPU 3 has fallen off the bus', 'broken', '')
    """
    if _FENCE.match(line):
        return ""
    for _ in range(4):
        found = _MARKS.match(line)
        if found is None:
            break
        line = line[found.end() :]
    return _EMPHASIS.sub(r"\1", _CODE.sub(r"\1", line)) if "`" in line or "**" in line else line


def _without_label(origin: Origin, line: str, labels: Labels) -> str | None:
    """The line after one of `labels`; None if it has none, or if that label was stripped already."""
    if labels.tasks and origin.task is None and (found := _TASK.match(line)):
        origin.task = int(found[1])
        return line[found.end() :]
    if labels.hosts and origin.host is None and (found := _HOST_LABEL.match(line)) and found[1] in labels.hosts:
        origin.host = found[1]
        return line[found.end() :]
    return None


# groups of the expressions, and what of a line's origin they are
_FIELDS = {name: name for name in ("ip", "source", "level", "level_word", "thread", "program", "label")}
_FIELDS |= {"level_mark": "level_word", "actor": "label"}
_NUMBERS = {name: name for name in ("pid", "program_pid", "task", "local_rank")} | {"tprank": "rank"}


def _take(origin: Origin, found: re.Match[str]) -> None:
    groups = {name: value for name, value in found.groupdict().items() if value is not None}
    if "rank" in groups:
        # `[rank0]:[rank12]:` comes from a changed template: the local rank, then torch's own label with the global rank
        if origin.rank is not None and origin.local_rank is None:
            origin.local_rank = origin.rank
        origin.rank = int(groups["rank"])
    elif origin.rank is None:
        # after torch's own label, `group_rank` is the rank in a process group, not in the job
        worker = re.fullmatch(r"Worker_TP(\d+)", groups.get("actor", ""))
        rank = worker[1] if worker else groups.get("group_rank")
        origin.rank = int(rank) if rank else None
    for name in groups.keys() & _FIELDS.keys():
        setattr(origin, _FIELDS[name], groups[name])
    for name in groups.keys() & _NUMBERS.keys():
        setattr(origin, _NUMBERS[name], int(groups[name]))
    host = groups.get("host") or groups.get("stream_host", "").rstrip(".").rpartition(".")[2]
    if host and not _NO_HOSTS.fullmatch(host):  # `stderr: [rank0]: `
        origin.host = host
    if "clock" in groups and origin.time_s is None:
        origin.time_s = _seconds(groups)


def _seconds(groups: dict[str, str]) -> float | None:
    date, mmdd, clock = groups.get("date"), groups.get("mmdd"), groups["clock"]
    if date:
        month, day = int(date[5:7]), int(date[8:10])
    elif mmdd:
        digits = mmdd.replace("-", "")
        month, day = int(digits[:-2]), int(digits[-2:])
    else:
        month, day = _MONTHS.get(groups.get("month", ""), 0), int(groups.get("day", 0))
    return seconds_in_year(month, day, clock)


def seconds_in_year(month: int, day: int, clock: str) -> float | None:
    """Seconds since the year began, counting 31 days a month: good for order; `seconds_between` gives distances."""
    try:
        hours, minutes, rest = clock.replace(",", ".").split(":")
        return (month * 31 + day) * _SECONDS_A_DAY + int(hours) * 3600 + int(minutes) * 60 + float(rest)
    except ValueError:
        return None


def seconds_between(earlier_s: float, later_s: float, year: int) -> float | None:
    """The distance of two times of `seconds_in_year` in this year; None if one has no date.

    >>> seconds_between(seconds_in_year(2, 28, "23:49:00"), seconds_in_year(3, 1, "00:01:00"), 2026)
    720.0
    """
    try:
        first, second = (_moment(each_s, year) for each_s in (earlier_s, later_s))
    except ValueError:
        return None
    return (second - first).total_seconds()


def _moment(time_s: float, year: int) -> datetime:
    """Raises ValueError if it is of no day of the year."""
    days, of_day_s = divmod(time_s, _SECONDS_A_DAY)
    month, day = divmod(int(days) - 1, 31)
    return datetime(year, month, day + 1, tzinfo=timezone.utc) + timedelta(seconds=of_day_s)


def _docker_text(line: str) -> str:
    try:
        entry = msgspec.json.decode(line)
    except (ValueError, RecursionError):  # also what was cut off, or is nested thousands of levels deep
        return line
    return entry["log"].rstrip("\n") if isinstance(entry, dict) and isinstance(entry.get("log"), str) else line
