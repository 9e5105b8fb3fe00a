"""gpu.memory-repair: remapped rows and retired pages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checks.gpu_nodes import FAILED, UNSUPPORTED, eight, findings, h100, node, only, status, text


@pytest.mark.parametrize(
    ("leaves", "expected", "words"),
    [
        ({"remap_failed": True}, "fail", "could not be remapped"),
        ({"unrepairable": True}, "fail", "cannot be repaired"),
        ({"retired_single_bit": 50, "retired_double_bit": 13}, "fail", "63 memory pages"),
        ({"retired_single_bit": 50, "retired_double_bit": 12}, "pass", "62 pages retired"),
        ({"remap_pending": True}, "warn", "row remap waits"),
        ({"retirement_pending": True}, "warn", "page retirement waits"),
        ({"channel_repair_pending": True, "tpc_repair_pending": True}, "warn", "channel repair and TPC repair"),
        ({"remapped_uncorrected": 512}, "warn", "512 rows"),
        ({"remapped_uncorrected": 511}, "pass", "511 rows remapped"),
        ({"retired_double_bit": 15}, "warn", "15 pages"),
        ({"banks_no_spare": 1}, "warn", "1 memory bank with no spare"),
        ({"remapped_corrected": 1}, "pass", "1 row remapped"),
    ],
)
def test_memory_repair_waits_wears_or_fails(leaves: dict[str, Any], expected: str, words: str) -> None:
    found = findings("gpu.memory-repair", node(h100(**{f"memory_repair__{k}": v for k, v in leaves.items()})))
    assert [f.status.value for f in found] == [expected]
    assert words in text(found[0])


def test_a_failed_remap_is_told_once_though_its_bank_has_no_spares() -> None:
    finding = only("gpu.memory-repair", eight(memory_repair__remap_failed=True, memory_repair__banks_no_spare=1))
    assert (finding.status.value, finding.subject.gpu) == ("fail", 5)


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ({"remap_failed": UNSUPPORTED, "remap_pending": UNSUPPORTED}, "skip"),
        ({"remap_failed": UNSUPPORTED, "remap_pending": UNSUPPORTED, "retired_double_bit": 0}, "pass"),
        ({"remap_failed": FAILED}, "unknown"),
        ({"remap_pending": FAILED}, "unknown"),
    ],
)
def test_a_model_repairs_rows_or_retires_pages_or_neither(leaves: dict[str, Any], expected: str) -> None:
    subject = node(h100(**{f"memory_repair__{k}": v for k, v in leaves.items()}))
    assert status("gpu.memory-repair", subject) == expected
