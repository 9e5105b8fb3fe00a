"""How launchers report the end of a process: torchrun's agent and table, srun, mpirun, DeepSpeed, torch's spawn."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from signal import Signals, strsignal, valid_signals
from typing import Any

import msgspec

from gpudoctor.diagnose.events import Event
from gpudoctor.statements.catalogue import by_needle
from gpudoctor.statements.prefixes import seconds_in_year

SIGNALS = {each.name: each.value for each in Signals}
# the C library's words for them, which shells and srun print too
_SIGNAL_WORDS = {text.lower(): -number for number in sorted(valid_signals()) if (text := strsignal(number))}
# and those of its translations whose speakers paste them most
_TRANSLATED = {
    **dict.fromkeys(("已杀死", "強制結束", "強制終了", "죽었음", "Убито"), -9),
    **dict.fromkeys(("段错误", "程式記憶體區段錯誤", "세그멘테이션 오류", "Ошибка сегментирования"), -11),
    **dict.fromkeys(("已放弃", "Аварийный останов"), -6),
}  # fmt: skip
_SIGNAL_WORDS |= {text.lower(): code for text, code in _TRANSLATED.items()}
_DIED = (
    "|".join(_TRANSLATED)
    + r"|Killed|Segmentation fault|Bus error|Aborted|Illegal instruction|Floating point exception|Trace/breakpoint trap|Bad system call"
)
_ENDED = rf"{_DIED}|Terminated|Hangup|Interrupt"
_GROUP_FAILED = re.compile(r"Worker group (?:FAILED|UNHEALTHY)\. \d+/\d+ attempts left")
_PART_OF_A_JOB = re.compile(
    r"(?i)srun|torchrun|mpirun|deepspeed|accelerate|launch|python|train|rank|worker|process|container|pod\b|job|task"
)
_RUNS_A_JOB = re.compile(
    r"[^>|]{0,300}?(?:\b(?:python[\d.]{0,6}|torchrun|srun|mpirun|mpiexec|deepspeed|accelerate|horovodrun)\b|(?:train|launch|run)\w{0,40}(?:\.sh|\.py)\b)"
)
_BLOCK = re.compile(r"\s*\[\d+\]:\s*$")
_FIELD = re.compile(r"\s*(?P<name>time|host|rank|exitcode|error_file|traceback)\s*: ?(?P<value>.*)")
_TABLE_RANK = re.compile(r"(\d{1,6}) \(local_rank: (\d{1,6})\)")
_TABLE_CODE = re.compile(r"(-?\d+) \(pid: (\d+)\)")

_Read = Callable[["re.Match[str]"], list[Event]]


class LauncherPattern(msgspec.Struct, frozen=True):
    """A pattern and what reads the events of its matches; `needle`: see `LinePattern`."""

    needle: str
    regex: re.Pattern[str]
    read: _Read


def read_launcher(text: str) -> list[Event]:
    """Ends of processes, closing signals and restarts that a launcher reports in one line."""
    return next((row.read(found) for row in _rows_for(text) if (found := row.regex.search(text))), [])


def _said(found: re.Match[str], name: str) -> str | None:
    groups = found.groupdict()
    return groups.get(name) or groups.get(f"{name}2")


def _number(found: re.Match[str], name: str) -> int | None:
    value = _said(found, name)
    return int(value) if value is not None else None


def _ended(by: str, found: re.Match[str], *, default_code: int = 1) -> list[Event]:
    """How processes ended, as `by` reports it ("own": the program itself); nothing for one that ended well."""
    how, signal, number = _said(found, "how"), _said(found, "signal"), _number(found, "code")
    if signal is not None:
        code = -int(signal) if signal.isdecimal() else -SIGNALS.get(signal, 9)
    elif number is not None or how:
        code = _SIGNAL_WORDS[how.lower()] if number is None and how else number or 0
    else:
        code = default_code  # MPI_ABORT without its code, Paddle
    if not code:
        return []
    place = {name: _number(found, name) for name in ("rank", "local_rank", "pid")}
    strength = 3 if by == "own" else 2
    if ranks := _said(found, "ranks"):
        exits = [_exit(code, by, rank=rank) for rank in map(int, re.findall(r"\d{1,6}", ranks)[:4096])]
        exits[0].detail["world"] = int(found["world"])
        return exits
    tasks = expanded(found["tasks"]) if "tasks" in found.groupdict() else [None]
    return [_exit(code, by, task=task, host=_said(found, "host"), strength=strength, **place) for task in tasks]


def _of_a_shell(found: re.Match[str]) -> list[Event]:
    helper = found["job"] and found["command"] and not _RUNS_A_JOB.match(found["command"])  # in the background
    return [] if helper else _ended("shell", found)


def _polled(found: re.Match[str]) -> list[Event]:
    event = _exit(int(found["code"]), "deepspeed")
    return [event] if int(found["code"]) < 0 else [Event(role="wrapper", what="launcher_exit", detail=event.detail)]


def _closed(what: str, found: re.Match[str]) -> list[Event]:
    return [Event(role="closed", what=what, pid=_number(found, "pid"))]


def _process(found: re.Match[str]) -> list[Event]:
    return [Event(role="fact", what="process", local_rank=_number(found, "local_rank"), pid=_number(found, "pid"))]


def _restarted(found: re.Match[str]) -> list[Event]:
    number = found["count"] or found["other"]
    restart = Event(role="fact", what="restart")
    failed = [Event(role="wrapper", what="launcher_exit")] if _GROUP_FAILED.search(found.string) else []
    return [] if number == "0" else [restart, *failed]


def _wrapper(what: str, _: re.Match[str]) -> list[Event]:
    return [Event(role="wrapper", what=what)]


def _pod(_: re.Match[str]) -> list[Event]:
    return [Event(role="wrapper", what="launcher_exit", detail={"vague": 1, "pod": 1})]


def _of_a_helper(found: re.Match[str]) -> list[Event]:
    if found[0].startswith("returned status"):  # HTTP's
        return []
    helper = 0 if _PART_OF_A_JOB.search(found.string) else 1
    return [Event(role="wrapper", what="launcher_exit", detail={"vague": 1, "helper": helper})]


# in the order in which they are tried; groups: code, signal (its name or number), how (a shell's word), rank, pid, host,
# tasks; a second name for the same ends in 2
LAUNCHER_ROWS = tuple(LauncherPattern(needle, re.compile(text), read) for needle, text, read in (
    ("exitcode: ", r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local_rank>\d{1,6}) \(pid: (?P<pid>\d+)\)", partial(_ended, "agent")),
    ("closing signal|killing subprocess", r"Sending process (?P<pid>\d+) closing signal (?P<signal>SIG\w+)|Killing subprocess (?P<pid2>\d+)", partial(_closed, "closed")),
    ("forcefully exiting via", r"Unable to shutdown process (?P<pid>\d+) via \S+ forcefully exiting via|forcefully exiting via .{0,20}process (?P<pid2>\d+)", partial(_closed, "forced")),
    ("srun: error: ", rf"srun: error: (?P<host>[\w.-]+): tasks? (?P<tasks>[\d,\-]+): (?:(?P<how>{_ENDED})|Exited with exit code (?P<code>\d+))", partial(_ended, "srun")),
    ("_job_complete: ", r"_job_complete: JobId=\S+ (?:WTERMSIG (?P<signal>\d{1,2})|WEXITSTATUS (?P<code>\d{1,3}))\b", partial(_ended, "slurmctld")),
    ("exited ", r"^Exited (?:with exit code (?P<code>\d{1,3})|(?:with signal termination:|by signal) (?P<signal>\d{1,2}))\.?$", partial(_ended, "lsf")),
    ("noticed that process rank", r"noticed that process rank (?P<rank>\d+) with PID \S+ on node (?P<host>[\w.-]+) exited on signal (?P<signal>\d+)", partial(_ended, "mpirun")),
    # the box of MPICH's and Intel's mpiexec about the process that ended the job
    ("running at", r"=\s+(?:RANK (?P<rank>\d{1,6}) )?PID (?P<pid>\d{1,10}) RUNNING AT (?:\w+@)?(?P<host>[\w.-]{1,253}) .{0,80}?(?:EXIT CODE: (?P<code>[1-9]\d{0,2})\b|KILLED BY SIGNAL: (?P<signal>\d{1,2})\b)", partial(_ended, "mpirun")),
    # Open MPI prints the code on the next line
    ("mpi_abort was invoked", r"MPI_ABORT was invoked on rank (?P<rank>\d+) in communicator(?:.{0,80}?errorcode (?P<code>\d+))?", partial(_ended, "mpirun")),
    # Composer
    ("crashed with exit code|exited with code", r"Rank (?P<rank>\d+) crashed with exit code (?P<code>-?\d+)|Global rank (?P<rank2>\d+) \(PID (?P<pid>\d+)\) exited with code (?P<code2>-?\d+)", partial(_ended, "spawn")),
    ("terminated with", r"process (?P<rank>\d+) terminated with (?:signal (?P<signal>SIG\w+)|exit code (?P<code>\d+))", partial(_ended, "spawn")),
    ("spawned with command: ", r"process (?P<pid>\d+) spawned with command: .{0,2000}--local_rank=(?P<local_rank>\d+)", _process),
    # what a shell prints when its command dies; a core is also dumped right behind what the command had written
    (_ENDED.lower(), rf"\w+ ?\d+[:：] +(?P<pid>\d+) (?P<how>{_ENDED})\b|(?P<how2>(?i:{_DIED})) \(core dumped\)$", partial(_ended, "shell")),
    (_ENDED.lower(), rf"^(?:(?P<job>\[\d+\])(?:\s*[+-])?\s+(?:(?P<pid>\d{{2,10}})\s+)?|\w{{0,6}}sh: )?(?P<how>(?i:{_DIED}|Terminated))(?: *[(（][^()]{{5,40}}[)）])?(?:\s{{2,}}(?P<command>\S.*))?$", _of_a_shell),
    # Paddle
    ("the trainer process with rank=", r"Out of all (?P<world>\d{1,6}) trainers, the trainer process with rank=\[(?P<ranks>\d[\d, ]{0,4000})\] was aborted", partial(_ended, "spawn")),
    ("container rank ", r"\A(?:Container rank (?P<rank>\d{1,6}) status failed cmd .{0,4000} code (?P<code>-?[1-9]\d{0,2}) log )", partial(_ended, "spawn")),
    (_DIED.lower(), rf"\A(?:\[(?P<host>[\w.-]{{1,253}}):(?P<pid>\d{{1,10}})\] )?(?:Fatal Python error: |!+ |.{{0,400}}\bSignal: (?=[^()]{{1,40}} \(\d+\)))(?P<how>{_DIED})\b", partial(_ended, "own")),
    # UCX's handler of fatal signals
    ("caught signal", r"\A(?:\[(?P<host>[\w.-]{1,253}):(?P<pid>\d{1,10}) *:\d+:\d+\] Caught signal (?P<signal>\d{1,2}) \()", partial(_ended, "own")),
    ("exit with status code", r"\A(?:Process (?P<rank>\d{1,6}) exit with status code (?P<code>[1-9]\d{0,2})\.)", partial(_ended, "horovod")),
    ("crashloopbackoff|back-off restarting failed container|error ", r"\bCrashLoopBackOff\b|Back-off restarting failed container|(?<=  )\d+/\d+ +(?:\w+:)?Error +\d", _pod),
    # glibc's words before it aborts
    ("*** error in |(): |corruption|corrupted |smashing detected|overflow detected", r"^(?:\*\*\* Error in \S+: |\*\*\* )?(?:(?:free|\w{0,20}alloc\w{0,20}|munmap_chunk|mremap_chunk)\(\): (?:[a-z]+ )+|double free or corruption|corrupted (?:size vs|double-linked|unsorted)|(?:stack smashing|buffer overflow) detected)", partial(_ended, "own", default_code=-SIGNALS["SIGABRT"])),
    # glog's and abseil's handlers of fatal signals
    ("*** sig", r"\*\*\* (?P<signal>SIG(?:SEGV|ABRT|BUS|FPE|ILL)) (?:\(@0x[0-9a-f]+\) )?received (?:at time=|by PID )", partial(_ended, "own")),
    # torch.distributed.launch up to 1.8 names the last command that it started, whichever process died
    ("died with <signals.", r"CalledProcessError: Command .{1,4000} died with <Signals\.(?P<signal>SIG\w+): \d+>", partial(_ended, "launch")),
    ("child process with pid", r"Child process with PID (?P<pid>\d+) terminated with code (?P<code>-?\d+)\. Forcefully", partial(_ended, "lightning")),
    # the code of the process that it happened to poll first
    ("exits with return code", r"exits with return code = (?P<code>-?\d+)", _polled),
    ("exit code:|exitcode", r"[Ee]xit [Cc]ode:\s+(?P<code>\d+)|exitCode\W{1,4}(?P<code2>\d+)", partial(_ended, "container")),
    ("will restart worker group|torchelastic_restart_count|restart_count=|requeuing jobid", r"will restart worker group|TORCHELASTIC_RESTART_COUNT\W{1,4}(?P<count>\d+)|restart_count=(?P<other>\d+)|Requeuing JobId", _restarted),
    ("failed (non-zero exit code|torchelastic.worker.status.failed", r"\*\*\* (?:JOB|STEP) \S+ (?:ON \S+ )?FAILED \(non-zero exit code|\"torchelastic\.worker\.status\.FAILED\"", partial(_wrapper, "launcher_exit")),
    ("terminate called", r"terminate called (?:after throwing|without an active|recursively)", partial(_wrapper, "cpp_terminate")),
    ("childfailederror", r"ChildFailedError", partial(_wrapper, "child_failed")),
    # 128 and the number of the signal, as shells and containers report it
    (" with code| with status| with exit ", r"(?:terminated|exited|failed|completed|died)(?: \w+ly)? with (?:exit )?(?:code|status):? ?\(?(?P<code>13[4-9]|143)\b", partial(_ended, "container")),
    # the job, one of its processes, or any helper: `which nvcc` at the start, an upload at the end
    ("exited with|returned", r"(?:exited with|returned)(?: non-?zero)?(?: exit)? (?:code|status) -?[1-9]\d*\b", _of_a_helper),
))  # fmt: skip
_rows_for = by_needle(LAUNCHER_ROWS)


class ElasticTable:
    """Reads torchrun's table of failures line by line; `rank` is that of the current block."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}
        self._inside = self._whole = False
        self.root = False
        self.rank: int | None = None

    def read(self, text: str) -> Event | None:
        """The exit that a block describes, at its line with the exit code."""
        if text.startswith("Root Cause (first"):
            self.root, self._inside = True, True
        elif text.startswith("Failures:"):
            self.root, self._inside, self._whole = False, True, True
        elif text.startswith(("====", "Traceback (most")):
            self.rank = None
        elif _BLOCK.match(text):
            self._fields, self._inside, self.rank = {}, True, None
        elif (field := _FIELD.match(text)) and (self._inside or _TABLE_RANK.fullmatch(field["value"].strip())):
            self._inside = True  # even if the head was cut off: no other line has a rank of this form
            self._fields[field["name"]] = field["value"].strip()
            if field["name"] == "rank" and (rank := _TABLE_RANK.match(field["value"].strip())):
                self.rank = int(rank[1])
            if field["name"] == "exitcode":
                return self._event()
        return None

    def _event(self) -> Event | None:
        rank = _TABLE_RANK.match(self._fields.get("rank", ""))
        code = _TABLE_CODE.match(self._fields.get("exitcode", ""))
        if rank is None or code is None:
            return None
        event = _exit(int(code[1]), "table", rank=int(rank[1]), local_rank=int(rank[2]), pid=int(code[2]))
        event.host = self._fields.get("host") or None
        event.detail["root"] = int(self.root)
        if not self._whole:  # the table begins in the middle: other failures may be missing
            event.detail["cut"] = 1
        stamp = self._fields.get("time", "")
        if re.match(r"\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d", stamp):
            event.time_s = seconds_in_year(int(stamp[5:7]), int(stamp[8:10]), stamp[11:19])
        return event


def expanded(tasks: str) -> list[int]:
    """The task numbers of one of Slurm's lists, at most 4096.

    >>> expanded("0-2,5")
    [0, 1, 2, 5]
    """
    numbers: list[int] = []
    for part in tasks.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            numbers += range(int(first), min(int(last) if last.isdecimal() else int(first), int(first) + 4096) + 1)
    return numbers[:4096]


def _exit(code: int, by: str, *, strength: int = 2, **place: Any) -> Event:
    """The end of a process; `place`: fields of Event that say whose."""
    if 128 < code < 160:  # a shell reports signal n as 128 + n
        code = -(code - 128)
    return Event(role="exit", what="exit", strength=strength, detail={"code": code, "by": by}, **place)
