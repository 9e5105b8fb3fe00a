"""reported.failures: does a program, or a person, report a failure of the node in this text?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Advice, Evidence, Finding, Found, Status, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, Subject, of_gpu, of_nic
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.reported import OWN, Reported
from gpudoctor.lazy import lazy_imports, lazy_pattern
from gpudoctor.statements.xids import MEMORY_CODES, xid

with lazy_imports():
    from gpudoctor.statements import (
        forms,  # only what a text says is looked up in it
        missing_gpus,
    )

NO_STATEMENT = "no statement of a failure in this text"
_MOST = 12
_NUMBERS = lazy_pattern(r"\d+")
# whose word about a failed start, a missing device or a failed service is about the node
_NODE_WORDS = (
    r"nvidia[\w.-]*|nv-\w+|NVRM|dcgm\w*(?: health)?|nhc|slurm(?:d|ctld|stepd)|kubelet|fabric ?manager"
    r"|opensm|ib\w+|mlx\w+|scontrol|sinfo|kubectl|modprobe|insmod|dkms|kernel|gpu[-_]burn|nvbandwidth|nccl-tests"
)
_OF_THE_NODE = lazy_pattern(_NODE_WORDS, re.IGNORECASE)
_BEGINS_WITH_NODE = lazy_pattern(rf"\W*(?:\w+\W+){{0,2}}?(?:{_NODE_WORDS})\b[^:]{{0,40}}:", re.IGNORECASE)
# in the words of another program
_QUOTED_TOOL = lazy_pattern(r"\bnvidia-[\w.-]+: (?:\w+ ){0,3}(?:error|failed|fatal)\b", re.IGNORECASE)
# "GPU 3 does not answer", "the card at 0000:3b:00.0 is gone": the device is what the sentence is about
_SUBJECT_FIRST = lazy_pattern(r"\W*(?:\w+ ){0,3}?\(?(?:GPUs?\b|card\b|[0-9a-fA-F:]{4,13}\.[0-7])", re.IGNORECASE)
# errors of driver, library or system: any program of CUDA meets them
_SETUP_OF_NODE = ("cuda_init_failed", "cuda_system_not_ready", "cuda_driver_mismatch")
# its folder is not there unless GPUs of several nodes share one NVLink domain
_ABSENT_IMEX = lazy_pattern(r".*/dev/nvidia-caps-imex-channels\b.*No such file or directory")
_OWN_VERDICT = lazy_pattern(
    r"(?:[|:=]|\.{2,}|\s{2,})\s*(?:\d+ )?(?:FAIL(?:ED|URE)?|FAULTY|Fail(?:ed)?|UNHEALTHY|Unhealthy)\b[^a-z]*$"
)
# a value that could not be read, or that this device does not have: whether the device is broken is not said
_NOT_READ = lazy_pattern(
    r"(?i)\b(?:unable|failed|could not|cannot|can't|error) (?:to )?(?:get|read|query|retriev\w+)\b"
    r"|NOT_SUPPORTED|\bnot (?:been )?implemented\b|\bis unsupported\b"
)
# a row of ps or top in state D: a program may be on its way through the driver
_WAITS = lazy_pattern(r"\s*(?:\S+\s+)?\d{1,8}\s(?:.{0,80}\s)?D[<LNls+]{0,4}\s")
# what asks the driver gets no answer
_ASKS_IN_VAIN = lazy_pattern(
    r"(?i)\W*(?:\w+ ){0,2}(?:nvidia-smi|nvml|dcgmi)\b(?:[^.;:]{0,30} )?(?:hangs?|hung|hanging|stuck)\b"
)
# what a person reaches a node with
_REACHES_NODES = ("ssh", "scp", "kubectl", "ping", "pdsh", "clush")
# the clauses before the one that says so, in which something else may have failed; what was only tried has not
_CLAUSES_BEFORE = lazy_pattern(r"(?s)(.*)(?:[;,(]|\. )")
_TRIED = lazy_pattern(r"(?i)\b(?:(?:failed|unable) to|cannot|can't|could not|couldn't) \w+")
# in a form that only programs write
_BY_PROGRAM = ("level", "program", "verdict", "death", "event", "exit", "errno", "exception")
_NODE_STATE = Advice(
    "On the node, see what the driver and the kernel say now.", "nvidia-smi -q; dmesg | grep -iE 'nvrm|xid'"
)
_BOOT_BEFORE = Advice(
    "On the node, see what the kernel and the BMC wrote last.", "journalctl -k -b -1 | tail -50; ipmitool sel list"
)
# what shows the state of other vendors' accelerators
_TOOLS = {
    "AMD": "amd-smi metric; dmesg | grep -i amdgpu",
    "Intel": "xpu-smi discovery; dmesg | grep -iE 'i915|xe'",
    "Intel Gaudi": "hl-smi; dmesg | grep -i habanalabs",
    "Huawei": "npu-smi info; dmesg | grep -iE 'ascend|devdrv'",
    "AWS": "neuron-ls; dmesg | grep -i neuron",
}
_WSL = lazy_pattern(r"(?i)\bWSL\d?\b|/usr/lib/wsl|/dev/dxg|dxgkrnl|microsoft-standard")
_OF_WINDOWS = Advice(
    "In WSL the driver is that of Windows: update or repair it there, then start WSL again.", "wsl --shutdown"
)
_CHECK = Advice("Or have the whole node judged.", "gpudoctor check")


@check("reported.failures", title="No program in this text reports a failure of the node", needs_gpu=False)
def failures(case: Case) -> Iterator[Finding]:
    """FAIL for what says that a GPU, a device or the driver is broken; WARN for what may follow from something else."""
    # what is said of each GPU alike counts once
    found = [(_NUMBERS.sub("0", each.text), _finding(case, each)) for each in case.node.reported]
    # a failure is not among those left out
    worst_first = sorted(found, key=lambda pair: pair[1].status is not Status.FAIL)
    shown = [*dict.fromkeys(wording for wording, _ in worst_first)][:_MOST]
    yield from (finding for wording, finding in found if wording in shown)
    if left_out := sum(wording not in shown for wording, _ in found):
        yield unknown(NODE, f"{left_out} more statements like these, in other words")
    if not found:
        yield skip(NODE, NO_STATEMENT)


def _finding(case: Case, reported: Reported) -> Finding:
    subject = _subject(case, reported)
    evidence = Evidence(f"line {reported.line}" if reported.line else "this text", _speaker(reported))
    if reported.loudness == "ok":
        found = Found(f"a tool's own verdict is good: {reported.text}", reported.count, "lines")
        return ok(NODE, found, None, evidence)
    if reported.loudness == "unread":
        own = reported.said_by == OWN
        return unknown(subject, f"could not be read, and may hold a failure: {reported.text}" if own else reported.text)
    # after an error of memory a repair may wait
    code = reported.xid if reported.xid not in MEMORY_CODES else None
    if code is not None and xid(code).bucket in ("application", "info"):
        what = f"Xid {code} ({xid(code).words})"
        return skip(subject, f"{what} is of a program, or tells of nothing: {reported.text}")
    unreached = reported.kind in ("network", "peer") and reported.said_by in _REACHES_NODES
    if unreached and not (case.node.gpus or reported.names_a_gpu):
        return unknown(subject, f"the node was not reached: {reported.text}", evidence)
    if doubt := _in_doubt(reported):
        return unknown(subject, doubt, evidence, advice=_advice(case, reported))
    often = f" ({reported.count} lines say so)" if reported.count > 1 else ""
    found = Found(reported.text + often, reported.xid, "Xid" if reported.xid is not None else None)
    return (fail if _is_of_node(reported) else warn)(
        subject,
        found,
        "no program reports a failure",
        evidence,
        likely=_likely(reported),
        advice=_advice(case, reported),
    )


def _in_doubt(reported: Reported) -> str | None:
    """What is said if it leaves open how the node is; None if it does not."""
    if reported.label is None and reported.loudness == "error" and _is_not_read(reported):
        return reported.text
    waits = reported.form == "event" and _WAITS.match(reported.text)
    if waits or (reported.form == "sentence" and _ASKS_IN_VAIN.match(reported.text)):
        state = "it waits in the kernel (state D): " if waits else ""
        return f"{state}does the driver or a GPU not answer? {reported.text}"
    perhaps_missing = missing_gpus.missing_gpus(reported.text) == "perhaps"
    return reported.text if perhaps_missing and not _is_of_node(reported) else None


def _speaker(reported: Reported) -> str:
    if reported.said_by:
        return f"said by {reported.said_by}"
    return "said in plain words" if reported.form == "sentence" else "said by a program"


def _is_not_read(reported: Reported) -> bool:
    """Whether a value could not be read or does not exist, or reads ERR! in a sentence, without other bad news."""
    if found := _NOT_READ.search(reported.text):
        before = _CLAUSES_BEFORE.match(reported.text[: found.start()])
        return before is None or forms.form_of(_TRIED.sub("", before[1])) is None
    rest = reported.text.replace("ERR!", "")
    return reported.form == "sentence" and rest != reported.text and forms.form_of(rest) is None


def _is_of_node(reported: Reported) -> bool:
    """Whether the statement says that the node, or a device of it, is broken."""
    if reported.xid is not None:
        return xid(reported.xid).bucket in ("hardware", "reset")
    if reported.effect == "hardware" or reported.label in _SETUP_OF_NODE[1:] or _is_taken_out(reported):
        return True
    if reported.loudness == "warning":
        return False
    if reported.label in _SETUP_OF_NODE or _OWN_VERDICT.search(reported.text):
        return True
    if reported.kind != "cause" or reported.effect is not None:
        return False
    if "command not found" in reported.text or _ABSENT_IMEX.match(reported.text):
        return False
    of_device = (reported.names_a_gpu and not reported.only_gpu) or (reported.device or "").startswith("/dev/nvidia")
    if reported.form == "sentence":
        return (of_device and _SUBJECT_FIRST.match(reported.text) is not None) or _speaks_for_node(reported)
    return reported.form in _BY_PROGRAM and (of_device or _speaks_for_node(reported))


def _is_taken_out(reported: Reported) -> bool:
    """Whether who gives GPUs out no longer gives this one, or none; how loudly it says so does not matter."""
    if "no healthy devices present" in reported.text:  # the kubelet
        return True
    one = reported.names_a_gpu or forms.ONE_GPU.search(reported.text) is not None
    return one and forms.TAKEN_OUT.search(reported.text) is not None


def _speaks_for_node(reported: Reported) -> bool:
    if reported.said_by and _OF_THE_NODE.fullmatch(reported.said_by):
        return True
    return (_BEGINS_WITH_NODE.match(reported.text[:200]) or _QUOTED_TOOL.search(reported.text)) is not None


def _subject(case: Case, reported: Reported) -> Subject:
    for gpu in case.node.gpus:
        if reported.bus_id == gpu.bus_id or (reported.uuid is not None and reported.uuid == gpu.uuid):
            return of_gpu(gpu)
        if reported.bus_id is None and reported.uuid is None and reported.gpu == gpu.index:
            return of_gpu(gpu)
    if reported.names_a_gpu:
        return Subject(kind="gpu", gpu=reported.gpu, bus_id=reported.bus_id, uuid=reported.uuid)
    if reported.device is not None and not reported.device.startswith("/dev/"):
        return of_nic(reported.device)
    return NODE


def _likely(reported: Reported) -> str | None:
    only = "; it is the only GPU that this text names" if reported.only_gpu else ""
    if reported.xid is not None:
        return f"Xid {reported.xid}: {xid(reported.xid).words}{only}"
    if reported.plain:
        return reported.plain + only
    if _is_taken_out(reported):
        return "a GPU is not given to jobs any more: its device plugin or scheduler found it unhealthy"
    return {
        "death": "a process ended, and somebody else tells of it: why is not said here",
        "peer": "another process or host went away: what ended it is the cause",
        "wait": "somebody did not come in time: who it was, and why, is the cause",
        "wrapper": "it points at another error",
        "resource": "something is full or taken: memory, disk, descriptors or a port",
        "network": "a host or a service does not answer",
        "end": "somebody ended it",
    }.get(reported.kind)


def _advice(case: Case, reported: Reported) -> list[Advice]:
    texts = (known(case.node.host.kernel) or "", *(each.text for each in case.node.reported))
    if any(map(_WSL.search, texts)):
        return [_OF_WINDOWS]
    if missing_gpus.goes_down(reported.text):
        return [_BOOT_BEFORE, _CHECK]
    if reported.vendor is not None:
        return [Advice(f"gpudoctor judges no {reported.vendor} devices. See their own tool.", _TOOLS[reported.vendor])]
    if reported.xid is not None:
        return [Advice(xid(reported.xid).advice), _NODE_STATE]
    of_a_job = reported.kind in ("death", "peer", "wait", "end", "wrapper")
    if of_a_job or reported.effect in ("kernel", "memory", "program"):
        return [Advice("Of a job: find what happened first in its whole log.", "gpudoctor diagnose FILE"), _CHECK]
    if reported.names_a_gpu or reported.effect == "hardware":
        which = reported.bus_id or reported.uuid or (str(reported.gpu) if reported.gpu is not None else None)
        one = f"nvidia-smi -q -i {which}; dmesg | grep -iE 'nvrm|xid'" if which is not None else _NODE_STATE.command
        return [
            Advice("On the node, see what the driver and the kernel say of it now.", one),
            Advice("Still so? Drain the node, and reset the GPU or power-cycle the node."),
        ]
    if reported.device is not None and not reported.device.startswith("/dev/"):
        return [Advice("On the node, look at its ports.", "ibstat; dmesg | grep -i mlx"), _CHECK]
    return [_NODE_STATE, _CHECK]
