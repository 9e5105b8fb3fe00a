"""Patterns for places and progress: the rank and GPU of each process, the world size, steps, the end of the job."""

from __future__ import annotations

import re

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
CHANNEL = re.compile(
    r"(?:Channel|Ring) \d+(?:/\d+)? : (?P<src>\d+)\[\w+\] -> (?P<dst>\d+)\[\w+\] (?P<way>\[receive\]|\[send\]|via)"
)
INTERFACE = re.compile(r"NET/Socket ?: Using |Call to connect returned [^,]{1,60}, retrying")
RETRIES = re.compile(
    r"Call to connect returned [^,]{1,60}(?:timed out|refused|unreachable|No route)[^,]{0,60}, retrying(?! \((\d+)/\1\))"
)
LAST_RETRY = re.compile(r"connect returned [^,]{1,60}, retrying \((\d+)/\1\)")
# the program's NCCL call returned this code; the reason was not printed
RETURNED = re.compile(r"(?:^|/)(?:init|group)\.cc:\d+ -> (?P<code>[126])\b")
# an unknown warning about something that did not work
NCCL_FAILS = re.compile(r"(?i)^error\b|\bfailed\b|\bno algorithm")
ERROR_HANDLER = re.compile(r'\s*"message": "([\w.]*(?:Error|Exception): [^"]*)",?\s*$')
PROXY = re.compile(r"Failed to execute operation \w+ from rank (?P<rank>\d+)")
SEGMENT = re.compile(r"nccl-shm-(?P<way>recv|send)-[0-9a-f]+-\d+-(?P<src>\d+)-(?P<dst>\d+)")
GLOO = re.compile(r"\[Gloo\] Rank (?P<rank>\d{1,5}) is connected to (?P<peers>\d{1,5}) peer ranks\. Expected")
WORLD = re.compile(r"(?i)\b(?:dist_)?world[ _]?size[\"']?\s?(?:=|:|is)?\s?(\d{1,6})\b")
RANK_PID = re.compile(
    r"(?i)\brank[ =:]{0,3}(?P<rank>\d{1,6})(?:\s?(?:/|of)\s?(?P<world>\d{1,6}))?\b(?:.{0,40}?\bon (?:host )?(?P<host>[\w.-]{1,253}))?"
    r".{0,40}?\bpid[ =:]{0,3}(?P<pid>\d{2,10})\b"
)
# steps of the start: the words for it, its beginning and its end, of Lightning (rank 0 alone prints the end), torch's
# stores, torchrun and SGLang
STARTS = tuple(
    (step, re.compile(begins), re.compile(ends))
    for step, begins, ends in (
        (
            "the start of the process group",
            r"(?i)\binitializing (?:ddp|distributed): GLOBAL_RANK: (?P<rank>\d{1,6}), MEMBER: \d{1,6}/(?P<world>\d{1,6})",
            r"(?i)all (?:ddp|distributed) processes registered|^distributed_backend=",
        ),
        (
            "torch's barrier over the store",
            r"Added key: store_based_barrier_key:(?P<group>\d{1,6}) to store for rank: (?P<rank>\d{1,6})",
            r"Completed store-based barrier for key:store_based_barrier_key:(?P<group>\d{1,6}) with (?P<world>\d{1,6}) nodes",
        ),
        ("torchrun's rendezvous", r"\] Rendezvous'ing worker group", r"\] Rendezvous complete for workers"),
        ("the start of torch.distributed", r"\bInit torch distributed begin", r"\bInit torch distributed ends"),
    )
)
UNCAUGHT = re.compile(
    r"(?:\brank=(?P<rank>\d{1,6})\b.{0,80})?\b[Uu]ncaught (?:exception:? )?(?P<exception>(?:\w+\.){0,12}\w*(?:Error|Exception): \S.*)"
)
FAILED_ON_RANK = re.compile(r"(?i)\b(?:failed|error|exception|executor)\b[^,;(]{0,40} on rank (\d{1,6})\b")
PREVIOUS_XID = re.compile(r"caused by previous Xid (?P<code>\d{1,3})\b")
PROBED = re.compile(r"NVRM: The NVIDIA GPU (?P<gpu>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")
DEVICE_NODE = re.compile(r"Device: (?P<gpu>\d+), node: (?P<host>[\w.-]+)")
GPU = re.compile(r"\bGPU (?P<gpu>\d{1,3})\b|\bdevice=?(?:cuda:)?(?P<device>\d{1,3})\b")
PROGRESS = re.compile(
    r"(?i)(?:^|[\s\[|{,\"'(])(?:global_?step|step|iter(?:ation)?|epoch|batch|it)s?[\"']?[ :=#\[(]{0,6}(\d{1,10})\b"
)
WORDS_OF_AN_END = ("done", "finish", "complet", "succe", "reached", "exit")
RESUMED = re.compile(
    r"(?i)\b(?:resum(?:ed?|ing)|restor(?:ed?|ing)|load(?:ed|ing))\b.{0,60}\bcheckpoint|\bresum(?:ed|ing)\b.{0,40}\bfrom\b"
)
DONE = re.compile(
    r"(?i)^\W*(?:done|finished|completed?)\b|^\W*success(?:ful(?:ly)?)?\W*$|\b(?:train(?:ing)?|job|run|fit|epochs?)\b.{0,40}\b(?:finished|completed?|done|succeeded)\b"
    r"|max_(?:steps|epochs)\S* reached|srun exit code 0\b|exit(?:ed with)? (?:code|status) 0\b|state=COMPLETED"
)
# any script's last line
ONE_WORD = re.compile(r"(?i)^\W*(?:done|finished|completed?|success(?:ful(?:ly)?)?)\W*$")
# before a word like "done": "Timed out waiting for job step to complete", "training was not finished"
_FAILED = re.compile(r"(?i)\b(?:error|exception|fail(?:ed|ure|s)?|timed out|timeout|abort(?:ed)?)\b")
# in the same clause: "model saved to x, training completed" is an end
_NEGATED = re.compile(
    r"(?i)\b(?:not|never|unable|cannot|could|waiting|until)\b|\bto (?:be )?(?:done|finish|complet|succeed|exit)"
)
_CLAUSE = re.compile(r".*[.,;:!|\])] ")
EARLY = re.compile(
    r"(?i)(?<![\w-])early stopp(?:ing|ed)\b(?!\s*[=:]\s*(?:true|false|none|null|\d|[{<\[]))|stopp(?:ing|ed) early\b|data(?:set)? (?:is )?exhausted"
    r"|no more (?:data|batches)\b"
)
MISMATCH = re.compile(
    r"Rank (?P<a>\d+) is running (?:inconsistent )?collective: CollectiveFingerPrint\(SequenceNumber=(?P<seq>\d+), OpType=(?P<a_op>\w+)"
    r"(?:, TensorShape=\[(?P<a_shape>[\d, ]*)\])?.*?but Rank (?P<b>\d+) is running (?:inconsistent )?collective: "
    r"CollectiveFingerPrint\(SequenceNumber=(?P<b_seq>\d+),? ?OpType=(?P<b_op>\w+)(?:, TensorShape=\[(?P<b_shape>[\d, ]*)\])?"
)
# DeepSpeed's see_memory_usage
RAM = re.compile(r"CPU Virtual Memory: +used = [\d.]+ GB, percent = (?P<pct>\d{1,3})(?:\.\d+)?%")
SRUN_OOM = re.compile(r"error: (?P<host>[\w.-]+): tasks? (?P<tasks>[\d,\-]+): Out Of Memory")
STEPD = re.compile(r"^slurmstepd-(?P<host>[\w.-]+?): ")
KERNEL = re.compile(r"NVRM: |AER: |PCIe Bus Error|oom-kill:|Killed process|segfault at|SXid")


def is_done(text: str) -> bool:
    """Whether the line reports that the job completed.

    >>> is_done("Training finished after 3 epochs"), is_done("Waiting for the job to complete")
    (True, False)
    >>> is_done("could not save to /x; training to 9 epochs finished"), is_done("srun: error: job step complete")
    (True, False)
    """
    found = DONE.search(text)
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
