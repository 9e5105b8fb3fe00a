"""gpu.lost: does each GPU still answer, and does it request a reset?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.condemning import condemning
from gpudoctor.checks.core.each_gpu import says_err, says_nothing, shown_by_driver, unreadable
from gpudoctor.checks.core.explains import PROBES, READINGS, VIEWS, Explains
from gpudoctor.checks.core.finding import (
    Advice,
    Evidence,
    Expected,
    Finding,
    Found,
    Status,
    fail,
    ok,
    skip,
    unknown,
    warn,
)
from gpudoctor.checks.core.peer_gaps import lacking_values, refused_values
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.runner import NO_GPU
from gpudoctor.checks.core.subject import NODE, Subject, of_gpu
from gpudoctor.checks.core.unread import first_failed, unread
from gpudoctor.checks.core.visibility import denied
from gpudoctor.checks.gpu.recovery_actions import RECOVERY_ACTIONS, RecoveryAction
from gpudoctor.facts.model.gpu import CallError, Gpu
from gpudoctor.facts.model.missing import NOT_READ, Missing, known
from gpudoctor.facts.nvml.codes import LOST, no_handle_cost
from gpudoctor.statements.xids import STOPPED_CODES
from gpudoctor.text.units import listed

_MOST_NAMED = 4
_LOST_ADVICE = (
    Advice("Drain the node; jobs on this GPU are dead or will hang."),
    Advice("Read how it went.", "dmesg | grep -i -e xid -e 'fallen off'"),
    Advice("Power-cycle the node (off for 30 s): a lost GPU rarely survives a plain reboot."),
    Advice("Lost again: reseat the board and its power, then open a hardware case.", "nvidia-bug-report.sh"),
)
_ERR_ADVICE = (
    Advice("Read what the kernel says of this GPU.", "dmesg | grep -i -e xid -e nvrm"),
    Advice("Ask it again: an error that stays has a name there.", "nvidia-smi -q"),
    "It stays: drain the node and reset the GPU, or reboot; open a hardware case if it comes back.",
)


@check(
    "gpu.lost",
    title="No GPU is lost or needs a reset",
    impact="no-work",
    needs_gpu=False,
    explains=(
        *("pcie.errors", "nvlink.*", *VIEWS, *PROBES),
        Explains(READINGS, gaps=True),
        Explains(("gpu.xid",), found=STOPPED_CODES),
    ),
)
def lost(case: Case) -> Iterator[Finding]:
    """Judge each GPU's driver errors and requested recovery; a GPU that returned nothing never passes."""
    driver = case.node.driver
    silent = {device.bus_id for device in known(case.node.pci.nvidia_devices) or () if device.off_bus}
    if not case.gpus and not driver.handle_errors and not driver.unread_handles and not silent:
        yield skip(NODE, NO_GPU)
        return
    yield from _without_handle(case)
    for text in driver.unread_handles:
        # gpudoctor stopped waiting, or its reading process was ended: not an error from the driver
        yield unknown(_named(text), f"a GPU that was not reached: {text}", Evidence("GPU handle", text))
    for gpu in case.gpus:
        off = gpu.bus_id in silent and not shown_by_driver(case.node, gpu)
        yield _off_bus(of_gpu(gpu)) if off else _alive(case, gpu)
    for bus_id in sorted(silent - {gpu.bus_id for gpu in case.node.gpus}):
        yield _off_bus(Subject(kind="gpu", bus_id=bus_id))


def reset_advice(gpu: Gpu) -> list[Advice]:
    """Steps to drain and reset the GPU, and what to do if that does not help."""
    return [
        Advice(
            "Drain the node, end the processes on the GPU, and reset it.", f"nvidia-smi --gpu-reset -i {gpu.smi_id}"
        ),
        Advice("On an NVSwitch node reset all GPUs together, or reboot.", "reboot"),
        Advice("It comes back: open a hardware case with the report.", "nvidia-bug-report.sh"),
    ]


def _without_handle(case: Case) -> Iterator[Finding]:
    """One finding for each GPU of which the driver gives no handle."""
    condemned = {gpu.bus_id for gpu in case.gpus if condemning(gpu)}
    for text in (" ".join(text.split()) for text in case.node.driver.handle_errors):
        if any(bus_id in text.lower() for bus_id in condemned):
            continue  # a capture can name the lost GPU twice: it is judged with the others
        subject = _named(text)
        if denied(text):
            yield skip(subject, f"a GPU that this process may not use: {text}")
        elif no_handle_cost(text) == "value":
            yield unknown(subject, f"the GPU could not be read: {text}", Evidence("GPU handle", text))
        else:
            yield fail(
                subject,
                f"the driver gives no handle for a GPU: {text}",
                "a handle for every GPU",
                Evidence("GPU handle", text),
                likely="the GPU fell off the bus, or did not start",
                advice=_LOST_ADVICE,
            )


def _off_bus(subject: Subject) -> Finding:
    return fail(
        subject,
        "its PCI configuration space reads nothing but ones (rev ff)",
        "a function that answers on the bus",
        Evidence("lspci", "(rev ff)"),
        likely="the GPU fell off the bus, or it is powered off",
        advice=_LOST_ADVICE,
    )


def _named(text: str) -> Subject:
    """The GPU whose index or bus id the handle error contains; the node if it has neither."""
    bus = re.search(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", text.lower())
    index = re.search(r"\b(?:GPU|index) (\d{1,3})\b(?!:[0-9A-Fa-f]{2}:)", text)
    if not bus and not index:
        return NODE
    return Subject(kind="gpu", gpu=int(index[1]) if index else None, bus_id=bus[0] if bus else None)


def _alive(case: Case, gpu: Gpu) -> Finding:
    subject = of_gpu(gpu)
    if errors := condemning(gpu):
        return _condemned(subject, errors)
    if doubt := unreadable(gpu):
        # one that sleeps shows ERR! as well, but not for its name; nor does one with ECC and persistence mode sleep
        never_sleeps = known(gpu.settings.persistence) is True and says_err(gpu.ecc.enabled)
        awake = says_err(gpu.name) or ("ERR!" in doubt and never_sleeps)
        if not awake:
            return unknown(subject, doubt, advice=_ERR_ADVICE if "ERR!" in doubt else ())
        likely = "the GPU or its processor (GSP) no longer answers the driver"
        return fail(subject, doubt, "values that the driver can read", likely=likely, advice=_ERR_ADVICE)
    hung = next((u for u in case.node.driver.unanswered if u.gpu == gpu.index), None)
    if hung:
        text = f"{hung.call} {hung.reason} within {hung.waited_s:g} s" if hung.hangs else hung.words
        return unknown(subject, text, Evidence(hung.call, "no answer"))
    if gap := _answers_in_part(case, gpu):
        return gap
    single = [Evidence(error.call, f"{error.code} {error.name}: costs this value alone") for error in gpu.errors[:3]]
    action = gpu.recovery_action
    if isinstance(action, Missing):
        evidence = Evidence("recovery action", action.reason)
        return ok(subject, "answers; no call reported it lost", None, evidence, *single)
    evidence = Evidence("recovery action", action)
    if action == "none":
        return ok(subject, "answers, and asks for no recovery", None, evidence, *single)
    return _asks_for(gpu, action, evidence)


def _condemned(subject: Subject, errors: Sequence[CallError]) -> Finding:
    answers = sorted({f"{error.name} ({error.code})" for error in errors})
    return fail(
        subject,
        f"driver calls on it answer: {', '.join(answers)}",
        "every call answered",
        *(Evidence(error.call, f"{error.code} {error.name}") for error in errors[:5]),
        likely="the GPU fell off the bus"
        if any(error.code == LOST for error in errors)
        else "the GPU or its processor (GSP) stopped; a reset or a power cycle may bring it back",
        advice=_LOST_ADVICE,
    )


def _answers_in_part(case: Case, gpu: Gpu) -> Finding | None:
    """A finding if no sign of life was read, or if the GPU lacks what others of its model show; None if neither."""
    subject = of_gpu(gpu)
    refused, silence = refused_values(gpu), _no_signs_of_life(gpu)
    if silence and not (refused and silence.status is Status.SKIP):
        return silence
    if refused:
        text = listed([f"{name} ({reason})" for name, reason in refused.items()], _MOST_NAMED)
        return unknown(subject, f"answers only in part, where others of its model show a value: {text}")
    if lacking := lacking_values(gpu):
        text = listed(lacking, _MOST_NAMED)
        if case.node.source.may_be_part:  # whether the GPU or the text ends there is not known
            return unknown(subject, f"shown only in part: the text, cut there or not, lacks {text} of it")
        return unknown(subject, f"answers only in part: it lacks {text}, which others of its model show")
    return None


def _no_signs_of_life(gpu: Gpu) -> Finding | None:
    """A finding if neither the values of a working GPU nor its recovery action were read; None if one was."""
    subject, action = of_gpu(gpu), gpu.recovery_action
    live = (gpu.memory_used_mib, gpu.thermal.gpu_c, gpu.power.draw_w, gpu.utilization.gpu_pct)
    names = ("memory used", "temperature", "power draw", "utilization")
    if cells := [name for name, value in zip(names, live, strict=True) if says_err(value)]:
        return unknown(subject, f"nvidia-smi says ERR! for its {' and '.join(cells)}", advice=_ERR_ADVICE)
    # one value read is enough: an error affects only its own value, and the check of that value reports it
    silent = all(isinstance(value, Missing) for value in live)
    asks_nothing = isinstance(action, Missing) or action == "none"
    if failed := first_failed((action, *live) if silent and asks_nothing else (action,)):
        return unread(subject, "signs of life", failed)
    if isinstance(action, Missing):
        if action == NOT_READ and says_nothing(gpu):
            return unknown(subject, f"nothing was read of it, not even its name: {action.reason}")
        if silent:
            return unread(subject, "signs of life", action)
    return None


def _asks_for(gpu: Gpu, action: str, evidence: Evidence) -> Finding:
    unknown_action = RecoveryAction(f"the GPU asks for a recovery unknown to this version: {action}", unfit=False)
    asked = RECOVERY_ACTIONS.get(action, unknown_action)
    return (fail if asked.unfit else warn)(
        of_gpu(gpu),
        Found(asked.words, action),
        Expected("none", "==", "none", source="the GPU itself"),
        evidence,
        likely="an earlier error (see gpu.xid, gpu.ecc) left the GPU in a state that only this clears",
        advice=[Advice("Drain the node and reboot it.", "reboot")] if asked.reboot else reset_advice(gpu),
    )
