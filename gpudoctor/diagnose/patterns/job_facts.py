"""Facts in lines that no table of errors knows: ranks and GPUs, progress, the end, and what only looks like an error."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.diagnose.events import Event
from gpudoctor.statements.about import peer_in

NCCL = re.compile(
    r"(?:(?P<host>[\w.-]{1,253}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) (?:\[(?P<dev>\d{1,4})\] )?)?(?:[\d.]+ )?"
    r"(?:(?P<source>[\w/.+-]{1,120}:\d+)(?: \((?P<function>[\w:~<>]+)\))? )?NCCL (?P<level>INFO|WARN|CALL|TRACE) ?"
)
# after a prefix that is not known here
NCCL_BARE = re.compile(
    r"(?:(?P<host>[\w.-]{1,253}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) )?(?:\[(?P<dev>\d{1,4})\] )?"
    r"(?:(?P<source>[\w/.+-]{1,120}:\d+) )?(?P<function>)NCCL (?P<level>INFO|WARN) ?"
)
# before NCCL 2.3 its lines have no "NCCL"
NCCL_WITHOUT_NAME = re.compile(
    r"[\w.-]{1,253}:\d{1,10}:\d{1,10} \[\d{1,4}\] (?:[\w/.+-]+\.(?:cc|h|cu|c|cpp):\d+ )?(?=(?:INFO|WARN) )"
)
INIT = re.compile(
    r"ncclCommInit\w* comm 0x\w+ rank (?P<rank>\d+) nranks (?P<world>\d+) cudaDev (?P<dev>\d+)(?: nvmlDev (?P<nvml>\d+))?"
    r" busId (?P<bus>[0-9a-f]+)(?: commId (?P<comm>0x\w+))?"
)
INTERFACE = re.compile(r"NET/Socket ?: Using |Call to connect returned [^,]{1,60}, retrying")
RETRIES = re.compile(
    r"Call to connect returned [^,]{1,60}(?:timed out|refused|unreachable|No route)[^,]{0,60}, retrying(?! \((\d+)/\1\))"
)
LAST_RETRY = re.compile(r"connect returned [^,]{1,60}, retrying \((\d+)/\1\)")
# the program's NCCL call returned this code; the reason was not printed
RETURNED = re.compile(r"(?:^|/)(?:init|group)\.cc:\d+ -> (?P<code>[126])\b")
# what NCCL says of a connection: the rank that receives, or the one that sends
_OF_CONNECTION = re.compile(
    r"(?:Channel|Ring) \d+(?:/\d+)? : (?P<src>\d+)\[\w+\] -> (?P<dst>\d+)\[\w+\] (?:(?P<receives>\[receive\])|\[send\]|via)"
    r"|Failed to execute operation \w+ from rank (?P<rank>\d+)"
    r"|nccl-shm-(?:(?P<recv>recv)|send)-[0-9a-f]+-\d+-(?P<src2>\d+)-(?P<dst2>\d+)"
)
_GLOO = re.compile(r"\[Gloo\] Rank (?P<rank>\d{1,5}) is connected to (?P<peers>\d{1,5}) peer ranks\. Expected")
_WORLD = re.compile(r"(?i)\b(?:dist_)?world[ _]?size[\"']?\s?(?:=|:|is)?\s?(\d{1,6})\b")
# options and variables of launchers for more nodes than one, or a number that the text does not have
_NOT_ONE = r"(?![\"']?1[\"']?(?:[\s\\,;)]|$))\S"
_NODES = re.compile(
    rf"--n(?:nodes|um[_-]machines)[= ]{_NOT_ONE}|\bNNODES={_NOT_ONE}|#SBATCH (?:--nodes=|-N ?){_NOT_ONE}"
    rf"|\b(?:srun|sbatch|salloc) (?:.{{0,80}} )?-N ?{_NOT_ONE}|\bmax_nodes\s{{0,20}}: {_NOT_ONE}|--node[_-]rank[= ][1-9]"
)
_RANK_PID = re.compile(
    r"(?i)\brank[ =:]{0,3}(?P<rank>\d{1,6})(?:\s?(?:/|of)\s?(?P<world>\d{1,6}))?\b(?:.{0,40}?\bon (?:host )?(?P<host>[\w.-]{1,253}))?"
    r".{0,40}?\bpid[ =:]{0,3}(?P<pid>\d{2,10})\b"
)
# steps of the start: the words for it, its beginning and its end, of Lightning (rank 0 alone prints the end), torch's
# stores, torchrun and SGLang
_STARTS = tuple(
    (step, re.compile(begins), re.compile(ends))
    for step, begins, ends in (
        (
            "the start of the process group",
            r"(?i)\binitializing (?:ddp|distributed): GLOBAL_RANK: (?P<rank>\d{1,6}), MEMBER: \d{1,6}/(?P<world>\d{1,6})",
            r"(?i)all (?:ddp|distributed) processes registered|^distributed_backend=",
        ),
        (
            "torch's barrier over the store",
            r"Added key: store_based_barrier_key:(?P<group>\d{1,6}) to store for rank: (?P<rank>\d{1,6})"
            r"|Waiting in store based barrier to initialize process group for rank: (?P<rank2>\d{1,6}), key: \S+:(?P<group2>\d{1,6}) "
            r"\(world_size=(?P<world>\d{1,6}), worker_count=(?P<came>\d{1,6})",
            r"Completed store-based barrier for key:store_based_barrier_key:(?P<group>\d{1,6}) with (?P<world>\d{1,6}) nodes",
        ),
        ("torchrun's rendezvous", r"\] Rendezvous'ing worker group", r"\] Rendezvous complete for workers"),
        ("the start of torch.distributed", r"\bInit torch distributed begin", r"\bInit torch distributed ends"),
    )
)
# printed by a logger that sys.excepthook calls, or by torchelastic's error handler, as error.json holds it
UNCAUGHT = re.compile(
    r"(?:\brank=(?P<rank>\d{1,6})\b.{0,80})?\b[Uu]ncaught (?:exception:? )?(?P<exception>(?:\w+\.){0,12}\w*(?:Error|Exception): \S.*)"
    r'|^\s*"message": "(?P<held>[\w.]*(?:Error|Exception): [^"]*)",?\s*$'
)
FAILED_ON_RANK = re.compile(r"(?i)\b(?:failed|error|exception|executor)\b[^,;(]{0,40} on rank (\d{1,6})\b")
PREVIOUS_XID = re.compile(r"caused by previous Xid (?P<code>\d{1,3})\b")
PROBED = re.compile(r"NVRM: The NVIDIA GPU (?P<gpu>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")
DEVICE_NODE = re.compile(r"Device: (?P<gpu>\d+), node: (?P<host>[\w.-]+)")
GPU = re.compile(r"\bGPU (?P<gpu>\d{1,3})\b|\bdevice=?(?:cuda:)?(?P<device>\d{1,3})\b")
_PROGRESS = re.compile(
    r"(?i)(?:^|[\s\[|{,\"'(])(?<!\bjob )(?P<unit>global_?step|step|iter(?:ation)?|epoch|batch|it)s?[\"']?(?:[ :=#\[(]{0,6}| {7,12}(?=\d{1,10}/ {0,12}\d))(?P<number>\d{1,10})\b"
)
# what an epoch 0 goes on with: a count of it right behind, or the number of a step of whatever kind
_COUNT_BEHIND = re.compile(r"[\])]?[\s:,|-]{0,4}[\[(]?\s{0,6}(?P<within>0{0,9}[1-9]\d{0,9})\s?/\s{0,6}\d")
_STEP_BEHIND = re.compile(
    r"(?i)(?<![a-z_])(?:(?:global|micro|mini|local)[_ ]?)?(?:step|iter(?:ation)?|epoch|batch|it)s?[\"']?[ :=#\[(]{0,6}(?P<within>0{0,9}[1-9]\d{0,9})\b"
)
_FRACTION = re.compile(r"\.\d{0,12}[1-9]")
_WORDS_OF_A_START = ("initializing d", "registered", "barrier", "rendezvous", "init torch", "_backend=")
_WORDS_OF_AN_END = ("done", "0 ok", "finish", "complet", "succe", "reached", "exit", "train_runtime")
_RESUMED = re.compile(
    r"(?i)\b(?:resum(?:ed?|ing)|restor(?:ed?|ing)|load(?:ed|ing))\b.{0,60}\bcheckpoint|\bresum(?:ed|ing)\b.{0,40}\bfrom\b"
)
_DONE = re.compile(
    r"(?i)^\W*(?:done|finished|completed?)\b|^Successfully completed\.$|^\W*success(?:ful(?:ly)?)?\W*$|\b(?:train(?:ing)?|job|run|fit|epochs?)\b.{0,40}\b(?:finished|completed?|done|succeeded)\b"
    r"|\btrain_runtime[\"']?\s{0,24}[:=]|max_(?:steps|epochs|iters?|iterations)=\d+\W{0,3} reached\b|srun exit code 0\b|exit(?:ed with)? (?:code|status) 0\b|state=COMPLETED|# Out of bounds values : 0 OK"
)
# any script's last line
_ONE_WORD = re.compile(r"(?i)^\W*(?:done|finished|completed?|success(?:ful(?:ly)?)?)\W*$")
# before a word like "done": "Timed out waiting for job step to complete", "training was not finished"
_FAILED = re.compile(r"(?i)\b(?:error|exception|fail(?:ed|ure|s)?|timed out|timeout|abort(?:ed)?)\b")
# in the same clause: "model saved to x, training completed" is an end
_NEGATED = re.compile(
    r"(?i)\b(?:not|never|unable|cannot|could|waiting|until)\b|\bto (?:be )?(?:done|finish|complet|succeed|exit)"
)
_CLAUSE = re.compile(r".*[.,;:!|\])] ")
_EARLY = re.compile(
    r"(?i)(?<![\w-])early stopp(?:ing|ed)\b(?!\s*[=:]\s*(?:true|false|none|null|\d|[{<\[]))|stopp(?:ing|ed) early\b|data(?:set)? (?:is )?exhausted"
    r"|no more (?:data|batches)\b"
)
MISMATCH = re.compile(
    r"Rank (?P<a>\d+) is running (?:inconsistent )?collective: CollectiveFingerPrint\(SequenceNumber=(?P<seq>\d+), OpType=(?P<a_op>\w+)"
    r"(?:, TensorShape=\[(?P<a_shape>[\d, ]*)\])?.*?but Rank (?P<b>\d+) is running (?:inconsistent )?collective: "
    r"CollectiveFingerPrint\(SequenceNumber=(?P<b_seq>\d+),? ?OpType=(?P<b_op>\w+)(?:, TensorShape=\[(?P<b_shape>[\d, ]*)\])?"
)
# DeepSpeed's see_memory_usage
_RAM = re.compile(r"CPU Virtual Memory: +used = [\d.]+ GB, percent = (?P<pct>\d{1,3})(?:\.\d+)?%")
STEPD = re.compile(r"^slurmstepd-(?P<host>[\w.-]+?): ")
KERNEL = re.compile(r"NVRM: |AER: |PCIe Bus Error|oom-kill:|Killed process|segfault at|SXid")
# lines that only a job, what starts it or the machine below it prints
_OF_A_JOB = re.compile(
    r"^Sender: LSF System <|NCCL (?:INFO|WARN|version)|torch[./]distributed|torchelastic|ChildFailedError|ProcessGroup(?:NCCL|Gloo)|\[c10d\]|OMP_NUM_THREADS environment"
    r"|\[(?:rank|default)\d+\]:|\[\d+,\d+\]<std(?:out|err)>|\[(?:INFO|WARNING|ERROR)\] \[\w+\.py:\d+:\w+\]|(?i:deepspeed)[\w.]*[:\]]"
    r"|\b(?:mpirun|mpiexec|prterun) (?:noticed|detected|has exited)\b|MPI_ABORT was invoked on rank \d"
    r"|\b(?:srun|sbatch|salloc|slurmstepd[\w.-]*|mpirun|prterun|torchrun): |\bJobId=\d|(?i:\bworld[ _]size\b)|submitit (?:INFO|WARNING|ERROR)|\((?:raylet|\w+ pid=\d+|\w+ rank=\d+ pid=\d+)"
    r"|tensorflow/(?:core|compiler|stream_executor)/|(?:external/)?xla/\S+:\d+\]|jaxlib\.|(?:GPU|TPU) available: (?:True|False)|LOCAL_RANK: \d+ - CUDA_VISIBLE"
    r"|\*{5} (?:Running training|train metrics)|(?i:\biter(?:ation)?\W{1,12}\d+\s*/\s*\d+\s*[\]|:])|\btrain_runtime[\"']?\s{0,24}[:=]|\bNum (?:examples|Epochs) = \d|(?i:\b(?:accuracy|samples/s\w*|tokens/s\w*)\b[\"']?\s?[:=]\s?\d)|(?i:\b(?:step|iter(?:ation)?|epoch)\W{0,3}\d+\b.{0,80}\b(?:lr|ppl|perplexity)\W{0,3}\d)|\[batch=\d+/\d+\]|\bmax_(?:steps|epochs|iters?|iterations)=\d+\W{0,3} reached\b|^\[[IWEF] \w{1,60}\.cpp:\d+\]|# Avg bus bandwidth|# +(?:nThread|Using devices|Rank +\d)"
    r"|\b\d+ +\d+ +(?:float|half|double|bfloat16|u?int\d+|fp8\w*) +(?:none|sum|prod|max|min|avg)\b"
    r"|(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[?\w+\.py:\d+\]| \d+/\d+ +(?:Running|Pending|Completed|CrashLoopBackOff|Error|OOMKilled|Init:\S+|ContainerCreating) +\d|\bNVRM: |(?:level=info|INFO).{0,200}\b(?i:cuda|gpu|nccl|rank)\b|\d%\|.{0,200}\| *\d+/\d+ \["
)
# with or without the prefix of a journal; dmesg -T
OF_A_KERNEL = re.compile(
    r"^\[ *\d{1,8}\.\d{6}\] |^\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] |\bkernel: "
)
# a server that is ready, a bar of tqdm that has moved, a loss: work goes on, at a step that is not known
_WORK = re.compile(
    r"^\s*[1-9]\d*\s+(?:images|samples|examples|tokens)/sec: 0{0,3}\.?0*[1-9]"  # a count of steps and their rate
    # timers of Megatron and DeepSpeed; those of the start are not of steps
    r"|\btime \(ms\)(?= \| (?:forward|backward|step|optimizer))(?=.{0,200}: 0{0,6}\.?0*[1-9])(?: \| [\w-]{1,40}: \d{1,9}\.\d{1,4})+\s*$"
    r"|\bAvg generation throughput: 0{0,3}\.?0*[1-9][\d.]{0,12} tokens/s\b"
    r"|\[ *0{0,9}[1-9]\d*/\d+\]  eta: \d+:\d\d:\d\d  .{0,200}\b(?:time|data): \d|Application startup complete|\d%\|.{0,200}\| *0{0,9}[1-9]\d*/\d+ \[|(?i:\b(?:\w+_)?(?:loss|grad_norm|accuracy)\b(?:/\w+)*[\"']?\s?[:=]?\s?-?\d)"
)

# Lines with words of failure that report none. Sources: NCCL's src/plugin and src/misc (information about optional
# parts), torch's warnings at a clean end, Ray
_HARMLESS = re.compile(
    r"NET/Plugin ?: |Plugin load|Could not find: ?lib|Failed to find nccl\w+Plugin|Failed to find CUDA library"
    r"|Failed to find \w+Plugin|NET/IB : No device found|Failed to open libibverbs|NVLS multicast support is not available"
    r"|P2P plugin |fabric UUID 0\.0|Could not find real path of /sys/class/net|destroy_process_group\(\) was not called"
    r"|process group has NOT been destroyed|Guessing device ID|OMP_NUM_THREADS|leaked (?:semaphore|shared_memory) objects"
    r"|Missing hostname|CXI Service ID|FI_HMEM|PlacementGroupCleaner|TUNER/Plugin|PROFILER/Plugin|No plugin found"
    r"|NET/IB ?: .{0,80}async (?:\w+ )?event ?: ?(?!.{0,60}(?:error|fatal))"
    r"|switch_g_job_postfini|Graceful shutdown of backend failed|TORCH_NCCL_\w+ is deprecated|libibverbs: Warning"
    # of Open MPI's and UCX's reports of a crash, whose signal is told above
    r"|\*\*\* End of error message \*\*\*|\b0x[0-9a-f]{16} \S.{0,400}\)  \S{1,400}:\d+\s*$"
    r"|DeprecationWarning|FutureWarning|UserWarning: (?!CUDA init|.{0,80}is not compatible with the current)"
)


def is_done(text: str) -> bool:
    """Whether the line reports that the job completed.

    >>> is_done("Training finished after 3 epochs"), is_done("Waiting for the job to complete")
    (True, False)
    >>> is_done("could not save to /x; training to 9 epochs finished"), is_done("srun: error: job step complete")
    (True, False)
    """
    found = _DONE.search(text)
    if found is None or _FAILED.search(text, 0, found.end()):
        return False
    before = _CLAUSE.match(text, 0, found.start())
    return not _NEGATED.search(text, before.end() if before else 0, found.end())


def bus_id(hexed: str) -> str:
    """A PCI bus id in the usual form; NCCL prints it without punctuation and leading zeros.

    >>> bus_id("1a000"), bus_id("f000"), bus_id("1901000")
    ('0000:1a:00.0', '0000:0f:00.0', '0019:01:00.0')
    """
    digits = hexed.rjust(9, "0")
    return f"{digits[:-5].rjust(4, '0')[-4:]}:{digits[-5:-3]}:{digits[-3:-1]}.{digits[-1]}"


def rank_of_connection(message: str) -> int | None:
    """The rank of NCCL's communicator that prints a message on one of its connections.

    >>> rank_of_connection("Channel 00/0 : 3[2] -> 4[3] [receive] via NET/IB/0"), rank_of_connection("Using network IB")
    (4, None)
    """
    found = _OF_CONNECTION.search(message)
    if found is None:
        return None
    ends = (found["dst"], found["dst2"]) if found["receives"] or found["recv"] else (found["src"], found["src2"])
    return int(found["rank"] or ends[0] or ends[1])


def is_harmless(text: str) -> bool:
    """Whether the line is only information."""
    return _HARMLESS.search(text) is not None


def is_of_a_job(text: str) -> bool:
    """Whether only a job, its launcher, a benchmark of GPUs or a kernel prints such a line.

    >>> is_of_a_job("gpu01:77:78 [0] NCCL INFO Using network IB"), is_of_a_job("I would like to train on GPUs")
    (True, False)
    """
    return (_OF_A_JOB.search(text) or _WORK.search(text) or OF_A_KERNEL.search(text)) is not None


def read_facts(text: str) -> Iterator[Event]:
    """The events of a line that no table knows: steps of a start, members, progress, the end."""
    lowered = text.lower()
    if any(word in lowered for word in _WORDS_OF_A_START):
        yield from _start(text)
    if own := _place_or_size(text, lowered):
        yield own
        return
    yield from _extent(text, lowered)
    if any(word in lowered for word in ("stopp", "exhausted", "no more")) and _EARLY.search(text):
        yield Event(role="fact", what="early_stop")
    resumed = ("resum" in lowered or "checkpoint" in lowered) and _RESUMED.search(text) is not None
    if resumed:
        yield Event(role="fact", what="resumed")
    if any(word in lowered for word in _WORDS_OF_AN_END) and is_done(text):
        yield Event(role="done", what="done", detail={"one_word": 1} if _ONE_WORD.match(text) else {})
    elif progress := _progress(text):
        yield progress
    elif not resumed and _WORK.search(text):  # a bar of loading
        yield Event(role="fact", what="work")


def _extent(text: str, lowered: str) -> Iterator[Event]:
    """How many ranks there are, and that there are several nodes."""
    if "world" in lowered and (world := _WORLD.search(text)):
        yield Event(role="fact", what="world", detail={"world": int(world[1])})
    if any(word in lowered for word in ("node", "machines", " -n")) and _NODES.search(text):
        yield Event(role="fact", what="several_nodes")


def _progress(text: str) -> Event | None:
    """The first number of a step. "Starting at step 0" is no work; an epoch 0 is at its own step, `within`."""
    step = _PROGRESS.search(text)
    if step is None:
        return None
    detail: dict[str, str | int] = {"step": int(step["number"])}
    if step["unit"].lower() == "epoch":
        detail["unit"] = "epoch"
    if not detail["step"]:
        further = _COUNT_BEHIND.match(text, step.end()) or _STEP_BEHIND.search(text, step.end())
        if further:
            detail["within"] = int(further["within"])
        elif not _FRACTION.match(text, step.end()) and not _WORK.search(text):
            return None
    return Event(role="progress", what="progress", detail=detail)


def _place_or_size(text: str, lowered: str) -> Event | None:
    """Which rank a process is, or how full the memory is; such a line tells nothing else."""
    if "gloo" in lowered and (gloo := _GLOO.search(text)):
        return Event(role="fact", what="member", rank=int(gloo["rank"]), detail={"world": int(gloo["peers"]) + 1})
    if "virtual memory" in lowered and (ram := _RAM.search(text)):
        return Event(role="fact", what="ram", detail={"ram_pct": int(ram["pct"])})
    if lowered.lstrip().startswith(("peer host:", "remote host:")) and (peer := peer_in(text)):
        return Event(role="fact", what="peer", detail={"peer": peer})
    if "pid" in lowered and (named := _RANK_PID.search(text)):
        detail: dict[str, str | int] = {"world": int(named["world"])} if named["world"] else {}
        rank, pid = int(named["rank"]), int(named["pid"])
        return Event(role="fact", what="process", rank=rank, pid=pid, host=named["host"], detail=detail)
    return None


def _start(text: str) -> Iterator[Event]:
    for step, begins, ends in _STARTS:
        for what, pattern in (("begins", begins), ("begun", ends)):
            if found := pattern.search(text):
                groups = {name.rstrip("2"): value for name, value in found.groupdict().items() if value}
                detail: dict[str, str | int] = {"step": step}
                detail |= {name: int(groups[name]) for name in ("world", "came") if name in groups}
                if "group" in groups:
                    detail["group"] = groups["group"]
                if "process group" in step:
                    detail["rank_0_ends"] = 1
                rank = int(groups["rank"]) if "rank" in groups else None
                yield Event(role="fact", what=what, rank=rank, detail=detail)
