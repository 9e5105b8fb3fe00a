"""How launchers report the end of a process: torchrun's agent and table, srun, mpirun, DeepSpeed, torch's spawn."""

from __future__ import annotations

import re

from gpudoctor.diagnose.events import Event
from gpudoctor.statements.prefixes import seconds_in_year

SIGNALS = {
    "SIGHUP": 1,
    "SIGINT": 2,
    "SIGQUIT": 3,
    "SIGILL": 4,
    "SIGTRAP": 5,
    "SIGABRT": 6,
    "SIGBUS": 7,
    "SIGFPE": 8,
    "SIGKILL": 9,
    "SIGSEGV": 11,
    "SIGPIPE": 13,
    "SIGTERM": 15,
    "SIGXCPU": 24,
}
_SRUN_WORDS = {
    "Killed": -9,
    "Terminated": -15,
    "Aborted": -6,
    "Segmentation fault": -11,
    "Bus error": -7,
    "Interrupt": -2,
    "Hangup": -1,
    "Floating point exception": -8,
    "Illegal instruction": -4,
}
_AGENT = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local_rank>\d{1,6}) \(pid: (?P<pid>\d+)\)")
_CLOSING = re.compile(
    r"Sending process (?P<pid>\d+) closing signal (?P<signal>SIG\w+)|Killing subprocess (?P<killed>\d+)"
)
# torchrun's agent; a group that is only enlarged or made smaller restarts too, without these words
_GROUP_FAILED = re.compile(r"Worker group (?:FAILED|UNHEALTHY)\. \d+/\d+ attempts left")
_FAILED_STEP = re.compile(r"\*\*\* (?:JOB|STEP) \S+ (?:ON \S+ )?FAILED \(non-zero exit code")
_FORCED = re.compile(
    r"Unable to shutdown process (?P<pid>\d+) via \S+ forcefully exiting via|forcefully exiting via .{0,20}process (?P<other>\d+)"
)
_RESTART = re.compile(
    r"will restart worker group|TORCHELASTIC_RESTART_COUNT\W{1,4}(?P<count>\d+)|restart_count=(?P<other>\d+)|Requeuing JobId"
)
_SRUN = re.compile(
    r"srun: error: (?P<host>[\w.-]+): tasks? (?P<tasks>[\d,\-]+): (?P<how>Killed|Terminated|Aborted|Segmentation fault|Bus error"
    r"|Interrupt|Hangup|Floating point exception|Illegal instruction|Exited with exit code (?P<code>\d+))"
)
_MPIRUN = re.compile(
    r"noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<host>[\w.-]+) exited on signal (?P<signal>\d+)"
)
# Open MPI prints the code on the next line
_ABORT = re.compile(r"MPI_ABORT was invoked on rank (?P<rank>\d+) in communicator(?:.{0,80}?errorcode (?P<code>\d+))?")
_HYDRA = re.compile(
    r"=\s+(?:RANK (?P<rank>\d{1,6}) )?PID (?P<pid>\d{1,10}) RUNNING AT (?:\w+@)?(?P<host>[\w.-]{1,253})"
)
_HYDRA_CODE = re.compile(r"=\s+(?:EXIT CODE: (?P<code>[1-9]\d{0,2})\b|KILLED BY SIGNAL: (?P<signal>\d{1,2})\b)")
_COMPOSER = re.compile(
    r"Rank (?P<rank>\d+) crashed with exit code (?P<code>-?\d+)|Global rank (?P<global>\d+) \(PID (?P<pid>\d+)\) exited with code (?P<other>-?\d+)"
)
# the job, one of its processes, or any helper: `which nvcc` at the start, an upload at the end
# 128 and the number of the signal, as shells and containers report it
_SIGNALLED = re.compile(
    r"(?:terminated|exited|failed|completed|died) with (?:exit )?(?:code|status):? ?\(?(?P<code>13[4-9]|143)\b"
)
_SIGNAL = re.compile(r"\bSignal: (?P<how>Segmentation fault|Bus error|Aborted) \(\d+\)")
_EXITED = re.compile(r"(?:exited with|returned)(?: non-?zero)?(?: exit)? (?:code|status) -?[1-9]\d*\b")
_PART_OF_A_JOB = re.compile(
    r"(?i)srun|torchrun|mpirun|deepspeed|accelerate|launch|python|train|rank|worker|process|container|pod\b|job|task"
)
_TERMINATE = re.compile(r"terminate called (?:after throwing|without an active|recursively)")
_SPAWN = re.compile(r"process (?P<rank>\d+) terminated with (?:signal (?P<signal>SIG\w+)|exit code (?P<code>\d+))")
_SPAWNED = re.compile(r"process (?P<pid>\d+) spawned with command: .{0,2000}--local_rank=(?P<local_rank>\d+)")
_LIGHTNING = re.compile(r"Child process with PID (?P<pid>\d+) terminated with code (?P<code>-?\d+)\. Forcefully")
_DEEPSPEED = re.compile(r"exits with return code = (?P<code>-?\d+)")
# torch.distributed.launch up to 1.8 names the last command that it started, whichever process died
_LAUNCH = re.compile(r"CalledProcessError: Command .{1,4000} died with <Signals\.(?P<signal>SIG\w+): \d+>")
_POD = re.compile(r"[Ee]xit [Cc]ode:\s+(?P<code>\d+)|exitCode\W{1,4}(?P<json>\d+)")
_SHELL = re.compile(r"line \d+: +(?P<pid>\d+) (?P<how>Killed|Segmentation fault|Bus error|Aborted|Terminated)\b")
# what a shell prints when its command dies
_SHELL_SAYS = re.compile(
    r"^(?:(?P<job>\[\d+\])(?:\s*[+-])?\s+(?:(?P<pid>\d{2,10})\s+)?|zsh: )?(?P<how>[Kk]illed|[Ss]egmentation fault|[Bb]us error|[Aa]borted"
    r"|Terminated|[Ii]llegal instruction|[Ff]loating point exception)(?: +\(core dumped\))?(?:\s{2,}(?P<command>\S.*))?$"
)
# up to where its output goes
_RUNS_A_JOB = re.compile(
    r"[^>|]*?(?:\b(?:python[\d.]*|torchrun|srun|mpirun|mpiexec|deepspeed|accelerate|horovodrun)\b|(?:train|launch|run)\w*(?:\.sh|\.py)\b)"
)
# Paddle
_TRAINERS = re.compile(
    r"Out of all (?P<world>\d{1,6}) trainers, the trainer process with rank=\[(?P<ranks>\d[\d, ]{0,4000})\] was aborted"
)
_CONTAINER = re.compile(
    r"Container rank (?P<rank>\d{1,6}) status failed cmd .{0,4000} code (?P<code>-?[1-9]\d{0,2}) log "
)
_FAULT = re.compile(
    r"(?:\[(?P<host>[\w.-]{1,253}):(?P<pid>\d{1,10})\] )?(?:Fatal Python error: |!+ |\*\*\* Process received signal|Signal: )"
    r"(?P<how>Segmentation fault|Bus error|Aborted)"
)
# glibc's words before it aborts
_HEAP = re.compile(
    r"^(?:(?:free|malloc|realloc|munmap_chunk|mremap_chunk|malloc_consolidate)\(\): (?:invalid |corrupted |memory corruption|double free detected"
    r"|too many chunks detected|unaligned |unsorted double|(?:small|large)bin double|mismatching next)|double free or corruption"
    r"|corrupted (?:size vs|double-linked|unsorted)|\*\*\* stack smashing detected)"
)
_HOROVOD = re.compile(r"Process (?P<rank>\d{1,6}) exit with status code (?P<code>[1-9]\d{0,2})\.")
_PODS = re.compile(r"\bCrashLoopBackOff\b|Back-off restarting failed container|(?<=  )\d+/\d+ +(?:\w+:)?Error +\d")
# UCX's handler of fatal signals
_UCX = re.compile(r"\[(?P<host>[\w.-]{1,253}):(?P<pid>\d{1,10}) *:\d+:\d+\] Caught signal (?P<signal>\d{1,2}) \(")
# glog's and abseil's handlers of fatal signals
_HANDLER = re.compile(
    r"\*\*\* (?P<signal>SIG(?:SEGV|ABRT|BUS|FPE|ILL)) (?:\(@0x[0-9a-f]+\) )?received (?:at time=|by PID )"
)
_BLOCK = re.compile(r"\s*\[\d+\]:\s*$")
_FIELD = re.compile(r"\s*(?P<name>time|host|rank|exitcode|error_file|traceback)\s*: ?(?P<value>.*)")
_TABLE_RANK = re.compile(r"(\d{1,6}) \(local_rank: (\d{1,6})\)")
_TABLE_CODE = re.compile(r"(-?\d+) \(pid: (\d+)\)")


def read_launcher(text: str) -> list[Event]:
    """Ends of processes, closing signals and restarts that a launcher reports in one line."""
    if found := _AGENT.search(text):
        return [_exit(int(found["code"]), "agent", local_rank=int(found["local_rank"]), pid=int(found["pid"]))]
    if found := _CLOSING.search(text):
        return [Event(role="closed", what="closed", pid=int(found["pid"] or found["killed"]))]
    if found := _FORCED.search(text):
        return [Event(role="closed", what="forced", pid=int(found["pid"] or found["other"]))]
    if found := _SRUN.search(text):
        code = int(found["code"]) if found["code"] else _SRUN_WORDS[found["how"]]
        return [_exit(code, "srun", task=task, host=found["host"]) for task in expanded(found["tasks"])]
    if found := _MPIRUN.search(text):
        return [_exit(-int(found["signal"]), "mpirun", rank=int(found["rank"]), host=found["host"])]
    if found := _ABORT.search(text):
        return [_exit(int(found["code"] or 1) or 1, "mpirun", rank=int(found["rank"]))]
    if found := _COMPOSER.search(text):
        code, pid = int(found["code"] or found["other"]), int(found["pid"]) if found["pid"] else None
        return [_exit(code, "spawn", rank=int(found["rank"] or found["global"]), pid=pid)] if code else []
    if found := _SPAWN.search(text):
        code = -SIGNALS.get(found["signal"], 9) if found["signal"] else int(found["code"])
        return [_exit(code, "spawn", rank=int(found["rank"]))]
    if found := _SPAWNED.search(text):
        return [Event(role="fact", what="process", local_rank=int(found["local_rank"]), pid=int(found["pid"]))]
    if found := _SHELL.search(text):
        return [_exit(_SRUN_WORDS[found["how"]], "shell", pid=int(found["pid"]))]
    if found := _SHELL_SAYS.match(text):
        if found["job"] and found["command"] and not _RUNS_A_JOB.match(found["command"]):
            return []  # a helper in the background
        how = found["how"].capitalize()
        return [_exit(_SRUN_WORDS[how], "shell", pid=int(found["pid"]) if found["pid"] else None)]
    if "trainers" in text and (found := _TRAINERS.search(text)):
        aborted = [_exit(1, "spawn", rank=int(rank)) for rank in re.findall(r"\d{1,6}", found["ranks"])[:4096]]
        return [*aborted, Event(role="fact", what="world", detail={"world": int(found["world"])})]
    if found := _CONTAINER.match(text):
        return [_exit(int(found["code"]), "spawn", rank=int(found["rank"]))]
    if found := _FAULT.match(text):
        pid = int(found["pid"]) if found["pid"] else None
        return [_exit(_SRUN_WORDS[found["how"]], "own", strength=3, host=found["host"], pid=pid)]
    if found := _UCX.match(text):
        return [_exit(-int(found["signal"]), "own", strength=3, host=found["host"], pid=int(found["pid"]))]
    if found := _HOROVOD.match(text):
        return [_exit(int(found["code"]), "horovod", rank=int(found["rank"]))]
    if ("Error" in text or "ack" in text) and _PODS.search(text):
        return [Event(role="wrapper", what="launcher_exit", detail={"vague": 1, "pod": 1})]
    if _HEAP.match(text):
        return [_exit(-SIGNALS["SIGABRT"], "own", strength=3)]
    if found := _HANDLER.search(text):
        return [_exit(-SIGNALS[found["signal"]], "own", strength=3)]
    if found := _LAUNCH.search(text):
        return [_exit(-SIGNALS.get(found["signal"], 9), "launch")]
    if found := _LIGHTNING.search(text):
        return [_exit(int(found["code"]), "lightning", pid=int(found["pid"]))]
    if found := _DEEPSPEED.search(text):
        # the code of the process that it happened to poll first
        event = _exit(int(found["code"]), "deepspeed")
        return [event] if int(found["code"]) < 0 else [Event(role="wrapper", what="launcher_exit", detail=event.detail)]
    if (found := _POD.search(text)) and (code := int(found["code"] or found["json"])):
        return [_exit(-(code - 128) if 128 < code < 160 else code, "container")]
    if found := _RESTART.search(text):
        number = found["count"] or found["other"]
        restart = Event(role="fact", what="restart", detail={"count": int(number or 1)})
        failed = [Event(role="wrapper", what="launcher_exit")] if _GROUP_FAILED.search(text) else []
        return [] if number == "0" else [restart, *failed]
    if _FAILED_STEP.search(text):
        return [Event(role="wrapper", what="launcher_exit")]
    if "terminate called " in text and _TERMINATE.search(text):
        return [Event(role="wrapper", what="cpp_terminate")]
    if "ChildFailedError" in text:
        return [Event(role="wrapper", what="child_failed")]
    if found := _SIGNALLED.search(text):
        return [_exit(128 - int(found["code"]), "container")]
    if "Signal: " in text and (found := _SIGNAL.search(text)):
        return [_exit(_SRUN_WORDS[found["how"]], "own", strength=3)]
    if _EXITED.search(text):
        helper = 0 if _PART_OF_A_JOB.search(text) else 1
        return [Event(role="wrapper", what="launcher_exit", detail={"vague": 1, "helper": helper})]
    return []


class HydraReader:
    """Reads the box that MPICH's and Intel's mpiexec print about the process that ended the job."""

    def __init__(self) -> None:
        self._said: re.Match[str] | None = None

    def read(self, text: str) -> Event | None:
        """The exit, at the line with its code or signal."""
        if found := _HYDRA.match(text):
            self._said = found
        elif self._said is not None and (code := _HYDRA_CODE.match(text)):
            said, self._said = self._said, None
            number = int(code["code"]) if code["code"] else -int(code["signal"])
            rank = int(said["rank"]) if said["rank"] else None
            return _exit(number, "mpirun", rank=rank, pid=int(said["pid"]), host=said["host"])
        return None


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


def _exit(
    code: int,
    by: str,
    *,
    rank: int | None = None,
    local_rank: int | None = None,
    task: int | None = None,
    pid: int | None = None,
    host: str | None = None,
    strength: int = 2,
) -> Event:
    if code > 128 and code < 160:  # a shell reports signal n as 128 + n
        code = -(code - 128)
    return Event(
        role="exit",
        what="exit",
        rank=rank,
        local_rank=local_rank,
        task=task,
        pid=pid,
        host=host,
        strength=strength,
        detail={"code": code, "by": by},
    )
