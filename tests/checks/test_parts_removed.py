"""Parts of captures and of facts files removed: exit 0 only if the part was never judged for any GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.errors import UserError
from gpudoctor.facts.model.node import to_json
from gpudoctor.facts.simulated.load import node_names
from gpudoctor.report.judge import judge
from gpudoctor.report.model import Report
from tests.checks.simulated_nodes import packaged
from tests.facts.loaded_nodes import pasted
from tests.narrowed import present

# one line of so many; a prime, so that it is another line of each GPU. The wide run takes an eighth of all lines: all
# of them take eight minutes, and were tried once
EVERY = 97
BEGINS = range(0, EVERY, 8)

Judged = dict[str, set[object]]


def report_of(text: str) -> Report | None:
    """None if gpudoctor refuses the text."""
    try:
        return judge(pasted(text))
    except UserError:
        return None


def judged(report: Report, statuses: set[Status]) -> Judged:
    """By check, the subjects that have one of these findings; a GPU by its index, as its bus id may be what is lost."""
    return {
        check.id: {
            finding.subject.label if finding.subject.gpu is None else finding.subject.gpu
            for finding in check.findings
            if finding.status in statuses
        }
        for check in report.checks
    }


def lost_in_silence(before: Judged, report: Report | None, *, may_lack_checks: bool = True) -> list[str]:
    """The checks that pass without a subject that passed them before, if the verdict is good all the same.

    `may_lack_checks`: a capture need not hold what a check judges.
    """
    if report is None or report.exit_code != 0:
        return []
    after = judged(report, set(Status) - {Status.SKIP})
    judged_still = {check for check in before if after[check] or not may_lack_checks}
    return [check for check, subjects in before.items() if check in judged_still and subjects - after[check]]


def depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def without_parts(lines: list[str], begin: int) -> Iterator[tuple[str, list[str]]]:
    """The text without every `EVERY`th line from `begin` on, and without that line and those indented below it."""
    for first in range(begin, len(lines), EVERY):
        if not lines[first].strip():
            continue
        yield f"{first + 1}: {lines[first].strip()}", [*lines[:first], *lines[first + 1 :]]
        end = first + 1
        while end < len(lines) and depth(lines[end]) > depth(lines[first]) and lines[end].strip():
            end += 1
        if end > first + 1:
            yield f"{first + 1} to {end}: {lines[first].strip()}", [*lines[:first], *lines[end:]]


def missed(text: str, begin: int) -> list[str]:
    """The parts of a text that passes without which it passes too, although they were judged."""
    lines = text.splitlines(keepends=True)
    whole = present(report_of(text))
    assert whole.exit_code == 0
    before = judged(whole, {Status.PASS})
    return [part for part, rest in without_parts(lines, begin) if lost_in_silence(before, report_of("".join(rest)))]


@pytest.mark.wide(but=["smi-q-8x-rtx4090.txt-0"])
@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("name", ["smi-q-8x-h100-sxm.txt", "smi-q-8x-rtx4090.txt", "qx-h100.xml", "qx-gb200.xml"])
def test_no_line_and_no_block_of_a_capture_is_missed_in_silence(captures: Path, name: str, begin: int) -> None:
    assert missed((captures / name).read_text(encoding="utf-8"), begin) == []


@pytest.mark.wide(every=len(BEGINS))
@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("name", ["nvlink-status.txt", "nvlink-errors.txt", "topo-m.txt"])
def test_of_a_list_without_a_count_only_the_last_gpu_can_be_missed(captures: Path, name: str, begin: int) -> None:
    parts = missed((captures / "hgx-h100-dump" / name).read_text(encoding="utf-8"), begin)
    assert [part for part in parts if "GPU 7:" not in part] == []


def without_sections(facts: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Facts without each section of the node, and without each leaf and inner section of those that have some."""
    for name, section in facts.items():
        if name != "schema":
            yield name, {key: value for key, value in facts.items() if key != name}
        if isinstance(section, dict) and "missing" not in section:
            for leaf in section:
                rest = {key: value for key, value in section.items() if key != leaf}
                yield f"{name}.{leaf}", {**facts, name: rest}
    # all GPUs at once: no peer shows what is lacking
    for name in facts["gpus"][0] if facts.get("gpus") else ():
        if name not in ("index", "bus_id"):
            gpus = [{key: value for key, value in gpu.items() if key != name} for gpu in facts["gpus"]]
            yield f"gpus[].{name}", {**facts, "gpus": gpus}


@pytest.mark.parametrize(
    ("name", "every"),
    [
        *((name, 5) for name in node_names()[::12]),
        *(pytest.param(name, 1, marks=pytest.mark.wide) for name in node_names()),
    ],
)
def test_no_section_and_no_leaf_of_a_facts_file_is_missed_in_silence(name: str, every: int) -> None:
    """Without each section, and without every so many of the leaves."""
    facts = json.loads(to_json(packaged(name)))
    whole = present(report_of(json.dumps(facts)))
    assert whole.exit_code == (1 if name == "cpu-only" else 0)
    before = judged(whole, {Status.PASS})
    parts = [*without_sections(facts)]
    chosen = [each for number, each in enumerate(parts) if number % every == 0 or "." not in each[0]]
    reports = ((part, report_of(json.dumps(rest))) for part, rest in chosen)
    assert [part for part, report in reports if lost_in_silence(before, report, may_lack_checks=False)] == []
