"""host.kernel: does the kernel log show faults of the machine around the GPUs?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.driver_messages import (
    DAY_S,
    FORGEABLE,
    EventMeaning,
    age_s,
    count_a_day,
    is_recent,
    log_lines,
)
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, Status, fail, ok, unknown
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, Subject
from gpudoctor.checks.core.unread import unread
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import HostEvent, HostEventKind, KernelLog

_MEMORY = (
    Advice("See which DIMM it is.", "grep . /sys/devices/system/edac/mc/mc*/dimm*/dimm_[cu]e_count"),
    Advice("Replace the DIMM or the CPU that is named; keep the node drained until then."),
)
_STUCK = (
    Advice("Read where it was stuck.", "dmesg -T | grep -iE -A20 'lockup|blocked for more|rcu.*stall'"),
    Advice("A frame of the NVIDIA driver or of a file system names the cause; it returns: drain and reboot."),
)
_STORAGE = (
    Advice("Look at the disk.", "smartctl -a /dev/DISK; nvme smart-log /dev/DISK"),
    Advice("Replace it, or move data sets and checkpoints to another one."),
)

# Source of the kinds: the table of kernel lines (gpudoctor explain host.kernel); of the severities: this check's page
_RULES: dict[HostEventKind, EventMeaning] = {
    "machine-check-fatal": EventMeaning(
        "a machine check that could not be corrected",
        "a CPU, memory or the board failed",
        _MEMORY,
        lasting=True,
        status=Status.FAIL,
    ),
    "memory-uncorrected": EventMeaning(
        "an uncorrectable error of the host's memory",
        "a DIMM, or a memory channel, failed",
        _MEMORY,
        lasting=True,
        status=Status.FAIL,
    ),
    "machine-check": EventMeaning("machine checks", "a CPU, memory or PCIe error that the machine survived", _MEMORY),
    "memory-corrected": EventMeaning("corrected errors of the host's memory", "a DIMM that wears out", _MEMORY),
    "soft-lockup": EventMeaning(
        "a CPU was stuck in the kernel (soft lockup)", "a driver, a file system, or no CPU time", _STUCK
    ),
    "hard-lockup": EventMeaning(
        "a CPU did not even take interrupts (hard lockup)", "firmware, hardware or a driver", _STUCK
    ),
    "rcu-stall": EventMeaning(
        "a CPU did not come to a rest (RCU stall)", "a driver, a hypervisor, or no CPU time", _STUCK
    ),
    "hung-task": EventMeaning(
        "a process waited in the kernel for more than two minutes", "storage, NFS or a driver", _STUCK
    ),
    "oops": EventMeaning(
        "the kernel crashed in a process (oops)",
        "a driver, or memory of the host: what the process held stays taken, and others will wait for it",
        (
            Advice("Read in which module.", "dmesg -T | grep -A30 -F '[#'"),
            Advice("Drain and reboot the node; again in the same module: change its version."),
        ),
        lasting=True,
    ),
    "panic": EventMeaning(
        "the machine crashed (kernel panic)",
        "a driver, memory of the host, or a machine check: the lines above it say which",
        (
            Advice("Read what came before.", "dmesg -T | grep -B40 'Kernel panic'; journalctl -k -b -1"),
            Advice("Keep the node drained until that is mended."),
        ),
        lasting=True,
        status=Status.FAIL,
    ),
    "oom-kill": EventMeaning(
        "the kernel ended processes for lack of memory",
        "data loaders or a checkpoint took more memory than the machine, or the job's limit, has: the job died of it",
        (
            Advice("See which, and whether it was a cgroup's limit.", "dmesg -T | grep -iE 'oom-kill|killed process'"),
            Advice("Fewer data-loader workers, less pinned memory, or a higher limit for the job."),
        ),
    ),
    "nfs-timeout": EventMeaning(
        "an NFS server did not answer",
        "every process that reads from it waits: data loaders stall, and the other ranks time out in a collective",
        (
            Advice("See the mounts and what they wait for.", "nfsstat -m; nfsstat -rc"),
            Advice("Look at the server and the way to it; keep data sets and checkpoints on local storage meanwhile."),
        ),
    ),
    "io-error": EventMeaning(
        "I/O errors", "a disk that fails: reads of data sets and checkpoints end in errors", _STORAGE
    ),
    "read-only": EventMeaning(
        "a file system is read-only since an error",
        "a disk that fails: logs and checkpoints can no longer be written",
        _STORAGE,
        lasting=True,
    ),
}
# drives without a medium, which virtual machines have and do not use
_NO_DISKS = ("fd", "sr", "loop")
_CORRECTED = Limit(
    10,
    "lines a day",
    "single corrected errors are normal; the kernel limits how many it prints (ours)",
    name="corrected",
)


_OF_OTHER_GPUS: tuple[HostEventKind, ...] = ("other-gpu", "other-gpu-unusable")
# of a multi-GPU node that this package judges, the GPUs of another vendor drive a display at most
_OTHER_GPU = "the driver of another vendor's GPU reports errors, which gpudoctor does not judge"


@check(
    "host.kernel",
    title="The kernel log tells of no fault of the machine around the GPUs",
    impact="costs",
    needs_gpu=False,
    limits=(_CORRECTED,),
    events=(*_RULES, "nfs-ok", *_OF_OTHER_GPUS),
)
def kernel(case: Case) -> Iterator[Finding]:
    """Fail for uncorrectable errors of CPU and memory; warn of what stopped or slowed a training in the last day."""
    log = case.node.kernel_log
    if isinstance(log.host_events, Missing):
        yield unread(NODE, "kernel log", log.host_events)
        return
    beside = [event.device or "no device named" for event in log.host_events if event.kind in _OF_OTHER_GPUS]
    passed = [f"errors of another vendor's GPU, which is not judged ({', '.join(beside)})"] if beside else []
    reported = []
    yield from (others := tuple(_of_other_gpus(case, log.host_events)))
    for event in log.host_events:
        rule = _RULES.get(event.kind)
        if rule is None or (event.kind == "io-error" and (event.device or "").startswith(_NO_DISKS)):
            continue
        if aside := _set_aside(case, event, rule, log.host_events):
            often = f"{event.count} x" if event.count > 1 else "once"
            passed.append(f"{often} {rule.words} {aside}")
        else:
            reported.append(_finding(case, event, rule, log))
    yield from reported
    if reported or others:
        return
    if _too_short(case, log):
        yield unknown(NODE, log.gap or "the kernel log does not hold the last day")
        return
    found = Found("no fault of CPUs, memory, disks or network file systems in the kernel log")
    if passed:
        found = Found(f"nothing in the kernel log that matters now: {'; '.join(passed)}", len(passed), "kinds")
    yield ok(NODE, found, None, Evidence("kernel log", known(log.source) or "read"))


def _of_other_gpus(case: Case, events: tuple[HostEvent, ...]) -> Iterator[Finding]:
    """What another vendor's driver says of its accelerators, if nothing shows a GPU that gpudoctor judges.

    Only by the driver's own verdict is one of them at fault.
    """
    if known(case.node.pci.nvidia_devices) or case.node.gpus:
        return
    for event in (unusable := [event for event in events if event.kind == "other-gpu-unusable"]):
        yield fail(
            Subject(kind="gpu", bus_id=event.device),
            "its driver says that it is not usable, or has an uncorrectable error",
            "an accelerator that works",
            *log_lines([event]),
            likely="another vendor's accelerator: gpudoctor knows no more of it than these words",
            advice=[Advice("Drain the node, and ask the vendor's own tool.")],
        )
    logged = [event for event in events if event.kind == "other-gpu"]
    if logged and not unusable:
        named = ", ".join(event.device for event in logged if event.device)
        lines = log_lines(logged[:3])
        yield unknown(NODE, _OTHER_GPU + (f" ({named})" if named else ""), *lines)


def _set_aside(case: Case, event: HostEvent, rule: EventMeaning, all_events: tuple[HostEvent, ...]) -> str | None:
    """Why this event does not matter today, as text; None if it does."""
    if not rule.lasting and not is_recent(case, event):
        return f"{(age_s(case, event) or 0) / DAY_S:.0f} days ago"
    if event.kind == "memory-corrected" and count_a_day(event) < case.limit(_CORRECTED):
        return "(a single one is normal)" if event.count == 1 else "(so few are normal)"
    if event.kind == "nfs-timeout" and _answered(event, all_events):
        return "(it answers again)"
    return None


def _answered(timeout: HostEvent, all_events: tuple[HostEvent, ...]) -> bool:
    """Whether the same server answered again after its last timeout."""
    return any(
        event.kind == "nfs-ok"
        and event.device == timeout.device
        and event.last_s is not None
        and timeout.last_s is not None
        and event.last_s >= timeout.last_s
        for event in all_events
    )


def _too_short(case: Case, log: KernelLog) -> bool:
    if not log.truncated:
        return False
    up_s = known(case.node.host.uptime_s)
    return up_s is None or log.starts_s is None or up_s - log.starts_s < DAY_S


def _finding(case: Case, event: HostEvent, rule: EventMeaning, log: KernelLog) -> Finding:
    of = f" ({event.device})" if event.device else ""
    often = f", {event.count} times" if event.count > 1 else ""
    notes: tuple[Evidence, ...] = ()
    if event.kind == "machine-check":
        # the line of EDAC after it names the DIMM
        memory = [e for e in known(log.host_events) or () if e.kind == "memory-corrected"]
        notes = log_lines(memory[:2])
    if log.forgeable:
        notes = (*notes, FORGEABLE)
    return Finding(
        rule.status,
        NODE,
        Found(f"{rule.words}{of}{often}", event.count, "lines"),
        Expected("none" if rule.lasting else "none within the last day", source="the kernel log"),
        (*log_lines([event]), *notes),
        rule.likely,
        rule.advice,
    )
