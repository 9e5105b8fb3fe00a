"""Is each GPU alive, and is its memory sound?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.explains import PROBES, RESETS, VIEWS, Explains
from gpudoctor.checks.core.finding import (
    NODE,
    Advice,
    Evidence,
    Expected,
    Finding,
    Found,
    Subject,
    fail,
    of_gpu,
    ok,
    skip,
    unknown,
    unread,
    warn,
)
from gpudoctor.checks.core.load_harm import grown_under_load
from gpudoctor.checks.core.readings import says_nothing, unreadable
from gpudoctor.checks.core.recovery_actions import RECOVERY_ACTIONS, RecoveryAction
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.trust import denied, untrusted
from gpudoctor.checks.core.xid_codes import MEMORY_CODES
from gpudoctor.checks.nvlink.link_state import model_of
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.nvml.error_cost import LOST, condemning, no_handle_cost


def reset_advice(gpu: Gpu) -> list[Advice]:
    """Drain, reset, and what to do if that does not help."""
    return [
        Advice(
            "Drain the node, end the processes on the GPU, and reset it.", f"nvidia-smi --gpu-reset -i {gpu.bus_id}"
        ),
        Advice("On an NVSwitch node reset all GPUs together, or reboot.", "reboot"),
        Advice("It comes back: open a hardware case with the report.", "nvidia-bug-report.sh"),
    ]


def _lost_advice() -> list[Advice]:
    return [
        Advice("Drain the node; jobs on this GPU are dead or will hang."),
        Advice("Read how it went.", "dmesg | grep -i -e xid -e 'fallen off'"),
        Advice("Power-cycle the node (off for 30 s): a lost GPU rarely survives a plain reboot."),
        Advice("Lost again: reseat the board and its power, then open a hardware case.", "nvidia-bug-report.sh"),
    ]


@check(
    "gpu.lost",
    title="No GPU is lost or needs a reset",
    impact="no-work",
    explains=(
        "gpu.*",
        "pcie.*",
        "nvlink.*",
        "topology.*",
        *VIEWS,
        *PROBES,
    ),
)
def lost(case: Case) -> Iterator[Finding]:
    """Judge each GPU's driver errors and the recovery it asks for; a GPU that said nothing is no pass."""
    told = {gpu.bus_id for gpu in case.gpus if condemning(gpu)}
    for words in case.node.driver.handle_errors:
        if any(bus_id in words.lower() for bus_id in told):
            continue  # a capture names the lost GPU both ways; it is judged below
        subject = _named(words)
        if denied(words):
            yield skip(subject, f"a GPU that this process may not use: {words}")
        elif no_handle_cost(words) == "value":
            yield unknown(subject, f"the GPU could not be read: {words}", Evidence("GPU handle", words))
        else:
            yield fail(
                subject,
                f"the driver gives no handle for a GPU: {words}",
                "a handle for every GPU",
                Evidence("GPU handle", words),
                likely="the GPU fell off the bus, or did not start",
                advice=_lost_advice(),
            )
    for words in case.node.driver.unread_handles:
        # we gave up, or our own process was ended: nothing that the driver said
        yield unknown(_named(words), f"a GPU that was not reached: {words}", Evidence("GPU handle", words))
    for gpu in case.gpus:
        yield _alive(case, gpu)


def _named(words: str) -> Subject:
    """The GPU that a handle error names by index or bus id; the node where it names none."""
    bus = re.search(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", words.lower())
    index = re.search(r"\b(?:GPU|index) (\d{1,3})\b", words)
    if not bus and not index:
        return NODE
    return Subject(kind="gpu", gpu=int(index[1]) if index else None, bus_id=bus[0] if bus else None)


def _alive(case: Case, gpu: Gpu) -> Finding:
    subject = of_gpu(gpu)
    errors = condemning(gpu)
    if errors:
        answers = sorted({f"{error.name} ({error.code})" for error in errors})
        return fail(
            subject,
            f"driver calls on it answer: {', '.join(answers)}",
            "every call answered",
            *(Evidence(error.call, f"{error.code} {error.name}") for error in errors[:5]),
            likely="the GPU fell off the bus"
            if any(error.code == LOST for error in errors)
            else "the GPU or its processor (GSP) stopped; a reset or a power cycle may bring it back",
            advice=_lost_advice(),
        )
    if doubt := unreadable(gpu):
        return unknown(subject, doubt)
    hung = next((u for u in case.node.driver.unanswered if u.gpu == gpu.index), None)
    if hung:
        text = f"{hung.call} {hung.reason} within {hung.waited_s:g} s" if hung.hangs else hung.words
        return unknown(subject, text, Evidence(hung.call, "no answer"))
    single = [Evidence(error.call, f"{error.code} {error.name}: costs this value alone") for error in gpu.errors[:3]]
    action = gpu.recovery_action
    live = (gpu.memory_used_mib, gpu.thermal.gpu_c, gpu.power.draw_w, gpu.utilization.gpu_pct)
    # one sign of life is enough: an error costs the value that it answers, and that value's own check says so
    silent = all(isinstance(value, Missing) for value in live)
    if isinstance(action, Missing) or action == "none":
        unanswered = (action, *live) if silent else (action,)
        failed = next((v for v in unanswered if isinstance(v, Missing) and v.kind == "failed"), None)
        if failed:
            return unread(subject, "signs of life", failed)
    if isinstance(action, Missing):
        if case.node.source.kind != "capture" and says_nothing(gpu):
            return unknown(subject, f"nothing was read of it, not even its name: {action.reason}")
        if silent:
            return unread(subject, "signs of life", action)
        return ok(
            subject, "answers; no call reported it lost", None, Evidence("recovery action", action.reason), *single
        )
    evidence = Evidence("recovery action", action)
    if action == "none":
        return ok(subject, "answers, and asks for no recovery", None, evidence, *single)
    unknown_action = RecoveryAction(f"the GPU asks for a recovery unknown to this version: {action}", unfit=False)
    asked = RECOVERY_ACTIONS.get(action, unknown_action)
    return (fail if asked.unfit else warn)(
        subject,
        Found(asked.words, action),
        Expected("none", "==", "none", source="the GPU itself"),
        evidence,
        likely="an earlier error (see gpu.xid, gpu.ecc) left the GPU in a state that only this clears",
        advice=[Advice("Drain the node and reboot it.", "reboot")] if asked.reboot else reset_advice(gpu),
    )


_UNCORRECTED = Limit(
    0,
    "errors",
    "any volatile uncorrected error killed or corrupted work (DCGM, GCM)",
    name="uncorrected",
    status="fail",
)
_CORRECTED = Limit(
    10_000_000, "errors", "lowest figure at which operators act (10 to 50 million)", name="corrected", status="warn"
)
_SRAM_UNCORRECTED_LIFETIME = Limit(
    4, "errors", "SRAM cannot be repaired; operators replace above 4", name="sram_uncorrected_lifetime", status="warn"
)


@check(
    "gpu.ecc",
    title="No uncorrected memory errors since the driver was loaded",
    impact="wrong-results",
    limits=(_UNCORRECTED, _CORRECTED, _SRAM_UNCORRECTED_LIFETIME),
    explains=(
        "gpu.memory-repair",
        "train.sync",
        "collective.correct",
        "compute.exact",
        "compute.pattern",
        "burn.counters",
        "strategy.*",
        Explains(("gpu.lost",), found=RESETS),
        Explains(("gpu.xid",), found=MEMORY_CODES),
    ),
)
def ecc(case: Case) -> Iterator[Finding]:
    """Judge volatile counters and the SRAM threshold; lifetime counts are said, and judged for SRAM alone."""
    for gpu in case.gpus:
        if doubt := untrusted(gpu):
            yield unknown(of_gpu(gpu), doubt)
        else:
            yield from _ecc(case, gpu)


def _ecc(case: Case, gpu: Gpu) -> Iterator[Finding]:
    subject, facts = of_gpu(gpu), gpu.ecc
    enabled, pending = known(facts.enabled), known(facts.pending)
    if enabled is not None and pending is not None and enabled != pending:
        yield warn(
            subject,
            f"ECC is {_on(enabled)}, and will be {_on(pending)} after the next reboot",
            "no change waiting",
            Evidence("ECC mode, current and pending", f"{_on(enabled)}, {_on(pending)}"),
            likely="someone changed the mode and did not reset the GPU since",
            advice=[
                Advice("Reboot, or reset the GPU, to let it take effect.", f"nvidia-smi --gpu-reset -i {gpu.bus_id}")
            ],
        )
    if enabled is False:
        model = model_of(case, gpu)
        if model is not None and model.ecc == "yes" and "ecc" not in model.uncertain:
            yield warn(
                subject,
                "ECC is off: memory errors go unseen",
                Expected("ECC on", source=f"profile {case.profile.name}"),
                Evidence("ECC mode, current", "off"),
                likely="switched off by hand",
                advice=[Advice("Switch it on and reboot.", f"nvidia-smi -i {gpu.bus_id} -e 1")],
            )
        else:
            yield skip(subject, "ECC is off: errors are not counted")
        return
    grown = grown_under_load(case, gpu, "ecc_uncorrected")
    if grown is not None:
        text = f"{grown[0]} uncorrected memory error{'s' * (grown[0] > 1)} under load (during {grown[1]})"
        source = "ECC uncorrected, volatile, growth"
        yield _ecc_fail(gpu, Found(text, grown[0], "errors"), source, str(grown[0]), replace=False)
        return
    count = facts.uncorrected_volatile
    if known(facts.sram_threshold_exceeded) is True:
        yield _ecc_fail(gpu, "the SRAM error threshold is exceeded", "SRAM threshold exceeded", "yes", replace=True)
    if isinstance(count, Missing):
        yield unread(
            subject,
            "uncorrected memory errors",
            count if enabled or count.kind == "failed" else _why(facts.enabled, count),
        )
        return
    sram = known(facts.sram_uncorrected_volatile) or 0
    bad = max(count, sram)
    if bad > case.limit(_UNCORRECTED, gpu):
        where = f" ({sram} in SRAM)" if sram else ""
        text = f"{bad} uncorrected memory error{'s' * (bad > 1)} since the driver was loaded{where}"
        yield _ecc_fail(gpu, Found(text, bad, "errors"), "ECC uncorrected, volatile", str(bad), replace=False)
        return
    worn = tuple(_worn(case, gpu))
    yield from worn
    if worn or known(facts.sram_threshold_exceeded) is True:
        return
    for what, value in (
        ("SRAM error threshold", facts.sram_threshold_exceeded),
        ("corrected memory errors", facts.corrected_volatile),
        ("ECC mode after the next reboot", facts.pending),
    ):
        if isinstance(value, Missing) and value.kind == "failed":
            yield unread(subject, what, value)
            return
    lifetime = known(facts.uncorrected_aggregate)
    said = f" ({lifetime} in its lifetime)" if lifetime else ""
    yield ok(
        subject,
        Found(f"no uncorrected errors{said}", bad, "errors"),
        None,
        Evidence("ECC uncorrected, volatile", str(bad)),
    )


def _on(mode: bool) -> str:
    return "on" if mode else "off"


def _why(enabled: bool | Missing, count: Missing) -> Missing:
    """The mode's reason says more than the counter's: no ECC on this model."""
    return enabled if isinstance(enabled, Missing) and enabled.kind != "absent" else count


def _ecc_fail(gpu: Gpu, found: Found | str, source: str, value: str, *, replace: bool) -> Finding:
    steps = [Advice("Drain the node; results of jobs that ran on this GPU are suspect.")]
    if replace:
        steps.append(
            Advice("Open a hardware case: SRAM cannot be repaired, the GPU is to be replaced.", "nvidia-bug-report.sh")
        )
    else:
        steps += reset_advice(gpu)
    return fail(
        of_gpu(gpu),
        found,
        Expected("none", "==", 0, "errors", "any uncorrected error ends or corrupts work"),
        Evidence(source, value),
        likely="failing GPU memory; SRAM on the die"
        if replace
        else "a memory cell failed; a reset swaps the row (see gpu.memory-repair)",
        advice=steps,
    )


def _worn(case: Case, gpu: Gpu) -> Iterator[Finding]:
    facts = gpu.ecc
    for limit, words, value in (
        (_CORRECTED, "corrected memory errors since the driver was loaded", known(facts.corrected_volatile)),
        (
            _SRAM_UNCORRECTED_LIFETIME,
            "uncorrected SRAM errors in its lifetime",
            # the GPU's own threshold flag, where it can be read, is the authority
            known(facts.sram_uncorrected_aggregate) if isinstance(facts.sram_threshold_exceeded, Missing) else None,
        ),
    ):
        most = case.limit(limit, gpu)
        if value is None or value <= most:
            continue
        yield warn(
            of_gpu(gpu),
            Found(f"{value} {words}", value, "errors"),
            Expected(f"at most {most:.0f}", "<=", most, "errors", case.limit_source(limit, gpu)),
            Evidence(f"ECC: {words}", str(value)),
            likely="memory that is wearing out; correcting at a high rate also costs speed",
            advice=[
                Advice("Watch whether the count grows under load.", f"nvidia-smi -q -d ECC -i {gpu.bus_id}"),
                Advice("It grows fast, or the GPU is slower than its peers: open a hardware case."),
            ],
        )
