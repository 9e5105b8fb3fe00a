"""gpu.ecc: did a GPU's memory have errors that ECC could not correct?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.each_gpu import each_gpu
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.core.unread import first_unread, unread
from gpudoctor.checks.gpu.lost import reset_advice
from gpudoctor.checks.gpu.recovery_actions import RESETS
from gpudoctor.checks.measured.under_load import grown_under_load
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.statements.xids import MEMORY_CODES

_VOLATILE = "ECC uncorrected, volatile"
_NONE = Expected("none", "==", 0, "errors", "any uncorrected error ends or corrupts work")
_SRAM = "failing SRAM on the die: caches and registers, which no spare row replaces"
_DRAIN = Advice("Drain the node; results of jobs that ran on this GPU are suspect.")
_SUSPECT = Advice("Results of jobs that ran on this GPU are suspect.")  # before steps that drain the node

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
    4, "errors", "SRAM cannot be repaired; operators replace above 4", name="sram_uncorrected_lifetime", status="fail"
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
    """Judge the volatile counters and the SRAM threshold; of the lifetime counters only the one of SRAM."""
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
        yield _replace_gpu(gpu, "the SRAM error threshold is exceeded", Evidence("SRAM threshold exceeded", "yes"))
    count = facts.uncorrected_volatile
    if isinstance(count, Missing):
        yield unread(subject, "uncorrected memory errors", _why(facts.enabled, count))
        return
    sram = known(facts.sram_uncorrected_volatile) or 0
    bad = max(count, sram)
    evidence = Evidence(_VOLATILE, str(bad))
    sram_beyond_limit = _sram_beyond_limit(case, gpu)
    if bad > case.limit(_UNCORRECTED, gpu):
        ever = f"; {sram_beyond_limit} in its lifetime" if sram_beyond_limit else ""
        in_sram = f" ({sram} in SRAM{ever})" if sram or ever else ""
        text = f"{bad} uncorrected memory error{'s' * (bad > 1)} since the driver was loaded{in_sram}"
        judge = _replace_gpu if sram_beyond_limit else _in_sram if sram >= bad else _uncorrected
        yield judge(gpu, Found(text, bad, "errors"), evidence)
        return
    if sram_beyond_limit:
        text = "uncorrected SRAM errors in its lifetime"
        found = Found(f"{sram_beyond_limit} {text}", sram_beyond_limit, "errors")
        yield _replace_gpu(gpu, found, Evidence(f"ECC: {text}", str(sram_beyond_limit)))
        return
    many_corrected = tuple(_many_corrected(case, gpu))
    yield from many_corrected
    if many_corrected or exceeded:
        return
    lifetime = known(facts.uncorrected_aggregate)
    reported = f" ({lifetime} in its lifetime)" if lifetime else ""
    yield first_unread(
        subject,
        ("SRAM error threshold", facts.sram_threshold_exceeded),
        ("corrected memory errors", facts.corrected_volatile),
        ("ECC mode after the next reboot", facts.pending),
    ) or ok(subject, Found(f"no uncorrected errors{reported}", bad, "errors"), None, evidence)


def _mode_pending(gpu: Gpu) -> Iterator[Finding]:
    enabled, pending = known(gpu.ecc.enabled), known(gpu.ecc.pending)
    if enabled is not None and pending is not None and enabled != pending:
        yield warn(
            of_gpu(gpu),
            f"ECC is {on_or_off(enabled)}, and will be {on_or_off(pending)} after the next reboot",
            "no change waiting",
            Evidence("ECC mode, current and pending", f"{on_or_off(enabled)}, {on_or_off(pending)}"),
            likely="someone changed the mode and did not reset the GPU since",
            advice=[
                Advice("Reboot, or reset the GPU, to let it take effect.", f"nvidia-smi --gpu-reset -i {gpu.smi_id}")
            ],
        )


def on_or_off(mode: bool) -> str:
    return "on" if mode else "off"


def _switched_off(case: Case, gpu: Gpu) -> Finding:
    model = case.model_of(gpu)
    if model is None or model.ecc != "yes" or "ecc" in model.uncertain:
        return skip(of_gpu(gpu), "ECC is off: errors are not counted")
    return warn(
        of_gpu(gpu),
        "ECC is off: memory errors go unseen",
        Expected("ECC on", source=f"profile {case.profile.name}"),
        Evidence("ECC mode, current", "off"),
        likely="switched off by hand",
        advice=[Advice("Switch it on and reboot.", f"nvidia-smi -i {gpu.smi_id} -e 1")],
    )


def _why(enabled: bool | Missing, count: Missing) -> Missing:
    """The better reason: that the model has no ECC is more informative than that its counter was not read."""
    by_mode = count.kind != "failed" and isinstance(enabled, Missing) and enabled.kind != "absent"
    return enabled if by_mode and isinstance(enabled, Missing) else count


def _uncorrected(gpu: Gpu, found: Found, evidence: Evidence) -> Finding:
    likely = "a memory cell failed; a reset swaps the row (see gpu.memory-repair)"
    return fail(of_gpu(gpu), found, _NONE, evidence, likely=likely, advice=[_SUSPECT, *reset_advice(gpu)])


def _in_sram(gpu: Gpu, found: Found, evidence: Evidence) -> Finding:
    steps = (
        Advice(
            "Reset the GPU: the error is cleared, and nothing is repaired, since SRAM has no spare rows.",
            f"nvidia-smi --gpu-reset -i {gpu.smi_id}",
        ),
        Advice("On an NVSwitch node reset all GPUs together, or reboot.", "reboot"),
        Advice(
            "More than 4 in its lifetime, or its threshold is exceeded: hardware case (RMA).",
            f"nvidia-smi -q -d ECC -i {gpu.smi_id}",
        ),
    )
    return fail(of_gpu(gpu), found, _NONE, evidence, likely=_SRAM, advice=[_DRAIN, *steps])


def _replace_gpu(gpu: Gpu, found: Found | str, evidence: Evidence) -> Finding:
    text = "Open a hardware case (RMA): SRAM cannot be repaired, the GPU is to be replaced."
    steps = (_DRAIN, Advice(text, "nvidia-bug-report.sh"))
    return fail(of_gpu(gpu), found, _NONE, evidence, likely=_SRAM, advice=steps)


def _sram_beyond_limit(case: Case, gpu: Gpu) -> int | None:
    """The lifetime count of uncorrected SRAM errors, if it is so high that the GPU must be replaced; else None.

    If the GPU's own threshold flag can be read, the flag decides instead.
    """
    lifetime = known(gpu.ecc.sram_uncorrected_aggregate)
    if lifetime is None or not isinstance(gpu.ecc.sram_threshold_exceeded, Missing):
        return None
    return lifetime if lifetime > case.limit(_SRAM_UNCORRECTED_LIFETIME, gpu) else None


def _many_corrected(case: Case, gpu: Gpu) -> Iterator[Finding]:
    count, most = known(gpu.ecc.corrected_volatile), case.limit(_CORRECTED, gpu)
    if count is None or count <= most:
        return
    text = "corrected memory errors since the driver was loaded"
    yield warn(
        of_gpu(gpu),
        Found(f"{count} {text}", count, "errors"),
        Expected(f"at most {most:.0f}", "<=", most, "errors", case.limit_source(_CORRECTED, gpu)),
        Evidence(f"ECC: {text}", str(count)),
        likely="memory that is wearing out; correcting at a high rate also costs speed",
        advice=[
            Advice("Watch whether the count grows under load.", f"nvidia-smi -q -d ECC -i {gpu.smi_id}"),
            Advice("It grows fast, or the GPU is slower than its peers: open a hardware case."),
        ],
    )
