"""Is each board's own store of settings and counters readable?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, ok, unknown, unread, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.core.trust import untrusted
from gpudoctor.facts.model.missing import Missing


@check("gpu.inforom", title="No GPU's infoROM is corrupted")
def inforom(case: Case) -> Iterator[Finding]:
    """Warn of a GPU whose infoROM the driver calls corrupted: it works, and keeps no record of its errors."""
    for gpu in case.gpus:
        corrupted, subject = gpu.inforom_corrupted, of_gpu(gpu)
        if doubt := untrusted(gpu):
            yield unknown(subject, doubt)
        elif isinstance(corrupted, Missing):
            yield unread(subject, "infoROM", corrupted)
        elif corrupted:
            yield warn(
                subject,
                "its infoROM is corrupted",
                Expected("an infoROM whose checksum is right", source="the driver"),
                Evidence("infoROM, as the driver says", "corrupted"),
                likely="its flash wore out, or a write to it was interrupted: serial number, ECC history and list of "
                "repaired rows of this board can no longer be relied on",
                advice=[
                    Advice("See whether the driver still says so after a reboot.", "nvidia-smi 2>&1 | grep -i inforom"),
                    Advice("It does: open a hardware case; the vendor rewrites it.", "nvidia-bug-report.sh"),
                    Advice(
                        "Until then do not trust its ECC counters: judge it by load.", "gpudoctor check --level full"
                    ),
                ],
            )
        else:
            yield ok(subject, "infoROM valid", None, Evidence("infoROM, as the driver says", "valid"))
