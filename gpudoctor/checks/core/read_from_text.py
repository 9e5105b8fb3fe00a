"""Evidence of a node that was read from a text: it names what the text says, not the call or file of a live node."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from gpudoctor.checks.core.finding import Evidence, Finding
from gpudoctor.checks.core.runner import CheckResult

_CALL = re.compile(r"nvml(?:Device|System)?(?:Get|Query)?([A-Z]\w*?)(?:V\d?)?$")
_WORD = re.compile(r"NvLink|[A-Z][a-z]*")
_SPELT = {"Curr": "current", "Pcie": "PCIe", "NvLink": "NVLink", "Gpu": "GPU", "Init": "start of the driver's library"}
_FILE = re.compile(r"/sys/bus/pci/devices/([^/]+)/(\w+)")


def named_as_in_text(results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """The results with the calls of NVML and the files of sysfs, which nobody asked, in words."""
    return tuple(replace(result, findings=tuple(map(_named, result.findings))) for result in results)


def _named(finding: Finding) -> Finding:
    return replace(finding, evidence=tuple(map(_in_words, finding.evidence))) if finding.evidence else finding


def _in_words(evidence: Evidence) -> Evidence:
    if call := _CALL.match(evidence.source):
        name = " ".join(_SPELT.get(word, word.lower()) for word in _WORD.findall(call[1]))
        return replace(evidence, source=f"this text: {name}")
    if file := _FILE.match(evidence.source):
        return replace(evidence, source=f"this text: {file[2].replace('_', ' ')} of {file[1]}")
    return evidence
