"""gpu.ecc: has a GPU's memory made errors that ECC could not correct?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.each_gpu import each_gpu, first_unread
from gpudoctor.checks.core.explains import RESETS, Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unread, warn
from gpudoctor.checks.core.load_harm import grown_under_load
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.core.xid_codes import MEMORY_CODES
from gpudoctor.checks.gpu.lost import reset_advice
from gpudoctor.checks.nvlink.link_state import model_of
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
<<<<<<< HEAD
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


@check("gpu.lost", title="No GPU is lost or needs a reset", impact="no-work")
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
    silent = {device.bus_id for device in known(case.node.pci.nvidia_devices) or () if device.off_bus}
    for gpu in case.gpus:
        yield _off_bus(of_gpu(gpu)) if gpu.bus_id in silent and _tells_nothing(gpu) else _alive(case, gpu)
    for bus_id in sorted(silent - {gpu.bus_id for gpu in case.node.gpus}):
        yield _off_bus(Subject(kind="gpu", bus_id=bus_id))


def _off_bus(subject: Subject) -> Finding:
    return fail(
        subject,
        "its PCI configuration space reads nothing but ones (rev ff)",
        "a function that answers on the bus",
        Evidence("lspci", "(rev ff)"),
        likely="the GPU fell off the bus, or it is powered off",
        advice=_lost_advice(),
    )


def _tells_nothing(gpu: Gpu) -> bool:
    live = (gpu.memory_used_mib, gpu.thermal.gpu_c, gpu.power.draw_w, gpu.utilization.gpu_pct)
    return all(isinstance(value, Missing) for value in live)


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
=======
>>>>>>> main

_VOLATILE = "ECC uncorrected, volatile"
_NONE = Expected("none", "==", 0, "errors", "any uncorrected error ends or corrupts work")
_DRAIN = Advice("Drain the node; results of jobs that ran on this GPU are suspect.")

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
@each_gpu
def ecc(case: Case, gpu: Gpu) -> Iterator[Finding]:
    """Judge volatile counters and the SRAM threshold; of the lifetime counts only that of SRAM is judged."""
    subject, facts = of_gpu(gpu), gpu.ecc
    enabled, exceeded = known(facts.enabled), known(facts.sram_threshold_exceeded) is True
    yield from _mode_pending(gpu)
    if enabled is False:
        yield _switched_off(case, gpu)
        return
    if (grown := grown_under_load(case, gpu, "ecc_uncorrected")) is not None:
        text = f"{grown[0]} uncorrected memory error{'s' * (grown[0] > 1)} under load (during {grown[1]})"
        yield _uncorrected(gpu, Found(text, grown[0], "errors"), Evidence(f"{_VOLATILE}, growth", str(grown[0])))
        return
    if exceeded:
        yield _sram_worn_out(gpu)
    count = facts.uncorrected_volatile
    if isinstance(count, Missing):
        yield unread(subject, "uncorrected memory errors", _why(facts.enabled, count))
        return
    sram = known(facts.sram_uncorrected_volatile) or 0
    bad = max(count, sram)
    evidence = Evidence(_VOLATILE, str(bad))
    if bad > case.limit(_UNCORRECTED, gpu):
        in_sram = f" ({sram} in SRAM)" if sram else ""
        text = f"{bad} uncorrected memory error{'s' * (bad > 1)} since the driver was loaded{in_sram}"
        yield _uncorrected(gpu, Found(text, bad, "errors"), evidence)
        return
    worn = tuple(_worn(case, gpu))
    yield from worn
    if worn or exceeded:
        return
    lifetime = known(facts.uncorrected_aggregate)
    said = f" ({lifetime} in its lifetime)" if lifetime else ""
    yield first_unread(
        subject,
        ("SRAM error threshold", facts.sram_threshold_exceeded),
        ("corrected memory errors", facts.corrected_volatile),
        ("ECC mode after the next reboot", facts.pending),
    ) or ok(subject, Found(f"no uncorrected errors{said}", bad, "errors"), None, evidence)


def _mode_pending(gpu: Gpu) -> Iterator[Finding]:
    enabled, pending = known(gpu.ecc.enabled), known(gpu.ecc.pending)
    if enabled is not None and pending is not None and enabled != pending:
        yield warn(
            of_gpu(gpu),
            f"ECC is {_on(enabled)}, and will be {_on(pending)} after the next reboot",
            "no change waiting",
            Evidence("ECC mode, current and pending", f"{_on(enabled)}, {_on(pending)}"),
            likely="someone changed the mode and did not reset the GPU since",
            advice=[
                Advice("Reboot, or reset the GPU, to let it take effect.", f"nvidia-smi --gpu-reset -i {gpu.bus_id}")
            ],
        )


def _on(mode: bool) -> str:
    return "on" if mode else "off"


def _switched_off(case: Case, gpu: Gpu) -> Finding:
    model = model_of(case, gpu)
    if model is None or model.ecc != "yes" or "ecc" in model.uncertain:
        return skip(of_gpu(gpu), "ECC is off: errors are not counted")
    return warn(
        of_gpu(gpu),
        "ECC is off: memory errors go unseen",
        Expected("ECC on", source=f"profile {case.profile.name}"),
        Evidence("ECC mode, current", "off"),
        likely="switched off by hand",
        advice=[Advice("Switch it on and reboot.", f"nvidia-smi -i {gpu.bus_id} -e 1")],
    )


def _why(enabled: bool | Missing, count: Missing) -> Missing:
    """That this model has no ECC says more than that its counter was not read."""
    by_mode = count.kind != "failed" and isinstance(enabled, Missing) and enabled.kind != "absent"
    return enabled if by_mode and isinstance(enabled, Missing) else count


def _uncorrected(gpu: Gpu, found: Found, evidence: Evidence) -> Finding:
    likely = "a memory cell failed; a reset swaps the row (see gpu.memory-repair)"
    return fail(of_gpu(gpu), found, _NONE, evidence, likely=likely, advice=[_DRAIN, *reset_advice(gpu)])


def _sram_worn_out(gpu: Gpu) -> Finding:
    steps = "Open a hardware case: SRAM cannot be repaired, the GPU is to be replaced."
    return fail(
        of_gpu(gpu),
        "the SRAM error threshold is exceeded",
        _NONE,
        Evidence("SRAM threshold exceeded", "yes"),
        likely="failing GPU memory; SRAM on the die",
        advice=[_DRAIN, Advice(steps, "nvidia-bug-report.sh")],
    )


def _worn(case: Case, gpu: Gpu) -> Iterator[Finding]:
    facts = gpu.ecc
    for limit, words, value in (
        (_CORRECTED, "corrected memory errors since the driver was loaded", known(facts.corrected_volatile)),
        (
            _SRAM_UNCORRECTED_LIFETIME,
            "uncorrected SRAM errors in its lifetime",
            # the GPU's own threshold flag decides if it can be read
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
