"""gpu.memory-repair, gpu.inforom: did the memory repair itself, can it again, and is the record of it readable?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.each_gpu import each_gpu
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.core.unread import first_failed, unread
from gpudoctor.checks.gpu.lost import reset_advice
from gpudoctor.checks.gpu.recovery_actions import RESETS
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.statements.xids import MEMORY_CODES

_REPLACE = [
    Advice("Drain the node."),
    Advice("Open a hardware case: this GPU can no longer repair its memory.", "nvidia-bug-report.sh"),
]
_PLAN = [Advice("Plan to replace the GPU; open a hardware case.", "nvidia-bug-report.sh")]
# if one of these was not read, a failed or pending repair could go unnoticed
_NEEDED = (
    *("remap_failed", "remap_pending", "remapped_uncorrected", "banks_no_spare", "retired_double_bit"),
    *("retired_single_bit", "retirement_pending", "channel_repair_pending", "tpc_repair_pending", "unrepairable"),
)

_REMAPPED_UNCORRECTED = Limit(
    512, "rows", "DCGM: uncorrectable remaps at which a GPU is worn out", name="remapped_uncorrected", status="warn"
)
_RETIRED_PAGES = Limit(
    63, "pages", "DCGM: 64 retired pages are the most a GPU can hold", name="retired_pages", status="fail"
)
_RETIRED_DOUBLE_BIT = Limit(
    15, "pages", "DCGM: double-bit retirements worth a look", name="retired_double_bit", status="warn"
)


@check(
    "gpu.memory-repair",
    title="Memory repair is not waiting, not failed, and has spares left",
    impact="wrong-results",
    limits=(_REMAPPED_UNCORRECTED, _RETIRED_PAGES, _RETIRED_DOUBLE_BIT),
    explains=(
        "gpu.ecc",
        "compute.memory",
        Explains(("gpu.lost",), found=RESETS),
        Explains(("gpu.xid",), found=MEMORY_CODES),
        Explains(("compute.exact", "compute.pattern"), after=("gpu.ecc",)),
    ),
)
@each_gpu
def memory_repair(case: Case, gpu: Gpu) -> Iterator[Finding]:
    """Judge row remapping (Ampere and newer) and page retirement (Volta and older); pending repairs only warn."""
    problems = (*_broken(case, gpu), *_waiting(gpu), *_worn(case, gpu))
    yield from problems
    if problems:
        return
    missing = _missing(gpu)
    yield unread(of_gpu(gpu), "row remapping and page retirement", missing) if missing else _fine(gpu)


def _missing(gpu: Gpu) -> Missing | None:
    """Why the GPU cannot pass: the failure flag of its model's repair mechanism was not read. None if it can."""
    repair = gpu.memory_repair
    if failed := first_failed(getattr(repair, name) for name in _NEEDED):
        return failed
    flags = (repair.remap_failed, repair.retired_double_bit)
    missing = [flag for flag in flags if isinstance(flag, Missing)]
    if len(missing) < len(flags):
        return None
    # "unsupported" or "denied" is more informative than "not in this capture"
    return next((m for m in missing if m.kind != "absent"), missing[0])


def _fine(gpu: Gpu) -> Finding:
    repair = gpu.memory_repair
    rows = (known(repair.remapped_corrected) or 0) + (known(repair.remapped_uncorrected) or 0)
    pages = _retired_pages(gpu)
    text = "no repair waiting or failed"
    if rows:
        text += f"; {rows} row{'s' * (rows != 1)} remapped in its life"
    elif pages:
        text += f"; {pages} page{'s' * (pages != 1)} retired in its life"
    evidence = Evidence("remapped rows, retired pages", f"{rows}, {pages}")
    return ok(of_gpu(gpu), Found(text, rows + pages, "repairs"), None, evidence)


def _retired_pages(gpu: Gpu) -> int:
    return (known(gpu.memory_repair.retired_single_bit) or 0) + (known(gpu.memory_repair.retired_double_bit) or 0)


def _broken(case: Case, gpu: Gpu) -> Iterator[Finding]:
    repair = gpu.memory_repair
    retired = _retired_pages(gpu)
    limit = case.limit(_RETIRED_PAGES, gpu)
    for is_so, text, source, value in (
        (known(repair.remap_failed) is True, "a row could not be remapped", "row remap failure", "yes"),
        (known(repair.unrepairable) is True, "memory that cannot be repaired", "unrepairable memory", "yes"),
        (retired >= limit, f"{retired} memory pages retired, the most it can hold", "retired pages", str(retired)),
    ):
        if is_so:
            yield fail(
                of_gpu(gpu),
                text,
                Expected("repairs that succeed, and room for more", source="the GPU itself"),
                Evidence(source, value),
                likely="the spare memory for this bank is used up",
                advice=_REPLACE,
            )


def _waiting(gpu: Gpu) -> Iterator[Finding]:
    repair = gpu.memory_repair
    pending = {
        "row remap": repair.remap_pending,
        "page retirement": repair.retirement_pending,
        "memory channel repair": repair.channel_repair_pending,
        "TPC repair": repair.tpc_repair_pending,
    }
    waiting = [text for text, flag in pending.items() if known(flag) is True]
    if waiting:
        yield warn(
            of_gpu(gpu),
            f"{' and '.join(waiting)} waits for a reset",
            Expected("nothing waiting", source="the GPU itself"),
            *(Evidence(f"{text} pending", "yes") for text in waiting),
            likely="a memory cell failed; running work stays correct, the repair happens at the next reset",
            advice=[Advice("Finish the running job first: the data is safe."), *reset_advice(gpu)],
        )


def _worn(case: Case, gpu: Gpu) -> Iterator[Finding]:
    repair = gpu.memory_repair
    for limit, text, value in (
        (_REMAPPED_UNCORRECTED, "rows remapped after uncorrected errors", known(repair.remapped_uncorrected)),
        (_RETIRED_DOUBLE_BIT, "pages retired after double-bit errors", known(repair.retired_double_bit)),
    ):
        worn = case.limit(limit, gpu)
        if value is not None and value >= worn:
            yield warn(
                of_gpu(gpu),
                Found(f"{value} {text}", value, "repairs"),
                Expected(f"fewer than {worn:.0f}", "<", worn, "repairs", case.limit_source(limit, gpu)),
                Evidence(text, str(value)),
                likely="worn memory: its next failure may find no spare",
                advice=_PLAN,
            )
    banks = known(repair.banks_no_spare)
    if banks and known(repair.remap_failed) is not True:
        yield warn(
            of_gpu(gpu),
            Found(f"{banks} memory bank{'s' * (banks > 1)} with no spare row left", banks, "banks"),
            Expected("a spare row in every bank", "==", 0, "banks", "the GPU itself"),
            Evidence("row remap histogram, banks without spares", str(banks)),
            likely="the next failure in such a bank cannot be repaired",
            advice=_PLAN,
        )


@check("gpu.inforom", title="No GPU's infoROM is corrupted")
@each_gpu
def inforom(case: Case, gpu: Gpu) -> Finding:
    """Warn of a GPU whose infoROM the driver reports as corrupted: it works, but keeps no record of its errors."""
    subject = of_gpu(gpu)
    if isinstance(gpu.inforom_corrupted, Missing):
        return unread(subject, "infoROM", gpu.inforom_corrupted)
    if not gpu.inforom_corrupted:
        return ok(subject, "infoROM valid", None, Evidence("infoROM, as the driver says", "valid"))
    return warn(
        subject,
        "its infoROM is corrupted",
        Expected("an infoROM whose checksum is right", source="the driver"),
        Evidence("infoROM, as the driver says", "corrupted"),
        likely="its flash wore out, or a write to it was interrupted: serial number, ECC history and list of repaired "
        "rows of this board can no longer be relied on",
        advice=[
            Advice("See whether the driver still says so after a reboot.", "nvidia-smi 2>&1 | grep -i inforom"),
            Advice("It does: open a hardware case; the vendor rewrites it.", "nvidia-bug-report.sh"),
            Advice("Until then do not trust its ECC counters: judge it by load.", "gpudoctor check --level full"),
        ],
    )
