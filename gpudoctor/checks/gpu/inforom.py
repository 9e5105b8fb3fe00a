"""gpu.inforom: is each board's store of settings and counters readable?"""

from __future__ import annotations

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.each_gpu import each_gpu
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, ok, unread, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing


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
