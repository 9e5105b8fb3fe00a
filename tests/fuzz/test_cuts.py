"""No false pass: what is cut out of the capture of a broken node never makes it look whole.

The claim, for formats that have an end or state how many GPUs they hold: if the whole input fails a check on a GPU, a
part of it is refused; or it does not pass that check on that GPU; or, if the GPU is not in it any more, the report as a
whole is no pass. Logs and lists without an end (dmesg, nvlink, lspci) can be cut between two lines without a trace:
they are not in this claim.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.node import to_json
from gpudoctor.facts.simulated.load import apply_faults, faults
from gpudoctor.report.model import Report
from tests.checks.simulated_nodes import packaged
from tests.fuzz import seeds
from tests.fuzz.mutate import LINES, Step, mutated, steps_of
from tests.fuzz.profile import LONG, fuzzed
from tests.fuzz.test_parsers import judged
from tests.narrowed import present


def _not_repaired(dump: bytes) -> bytes:
    """The dump with a row remapping that failed on its last GPU."""
    head, words, tail = dump.rpartition(b"Remapping Failure Occurred        : No")
    return head + words.replace(b"No", b"Yes") + tail


NODE = seeds.broken_node()
BROKEN = {
    "facts.json": to_json(NODE),
    "facts.yaml": seeds.as_yaml(NODE),
    "report.json": seeds.report_json(),
    "stream": seeds.stream().partition(b"\n")[0] + b"\n",
    "bundle.tar": gzip.decompress(seeds.bundle()),
    "bundle.tar.gz": seeds.bundle(),
    "smi.xml": seeds.dump("smi-q-mig.xml"),
    "smi.txt": seeds.dump("smi-q-v100-390.txt"),
    "bug-report": seeds.bug_report(),
    **{f"captured-{n}": _not_repaired(d) for n, d in enumerate(seeds.captured("smi-q-8x-h100-sxm.txt"))},
}


def failed(report: Report) -> Iterator[tuple[str, int | None]]:
    for check in report.checks:
        for finding in check.findings:
            if finding.status is Status.FAIL:
                yield check.id, finding.subject.gpu


def false_passes(whole: Report, part: Report) -> list[str]:
    """Failures of the whole that the part passes."""
    wrong = []
    for check_id, gpu in failed(whole):
        result = next(check for check in part.checks if check.id == check_id)
        passed = {finding.subject.gpu for finding in result.findings if finding.status is Status.PASS}
        if gpu is not None and gpu in passed:
            wrong.append(f"{check_id} passes on GPU {gpu}")
        if result.status is Status.PASS and part.verdict in ("pass", "warn"):
            wrong.append(f"{check_id} passes, and so does the node")
    return wrong


WHOLE = {name: judged(data) for name, data in BROKEN.items()}


@pytest.mark.parametrize("name", BROKEN)
def test_each_whole_input_fails(name: str) -> None:
    assert list(failed(present(WHOLE[name])))


@fuzzed("cuts", few=150)
@given(name=st.sampled_from(sorted(BROKEN)), end=st.integers(0, 1 << 20), by_line=st.booleans())
def test_a_capture_that_is_cut_off_never_passes_what_the_whole_fails(name: str, end: int, by_line: bool) -> None:
    data = BROKEN[name]
    end = end * len(data) >> 20
    if by_line:
        end = data.rfind(b"\n", 0, end) + 1
    part = judged(data[:end])
    whole = present(WHOLE[name])
    if part is not None:
        assert false_passes(whole, part) == []


@pytest.mark.wide
@fuzzed("gaps", few=100)
@given(
    name=st.sampled_from([name for name in sorted(BROKEN) if name.startswith(("smi", "captured"))]),
    a=st.integers(0, 1 << 20),
    b=st.integers(0, 1 << 20),
)
def test_a_dump_that_lost_lines_in_its_middle_is_no_pass(name: str, a: int, b: int) -> None:
    lines = BROKEN[name].splitlines(keepends=True)
    first, last = sorted((a * len(lines) >> 20, b * len(lines) >> 20))
    part = judged(b"".join(lines[:first] + lines[last:]))
    whole = present(WHOLE[name])
    if part is not None and part.verdict in ("pass", "warn"):
        assert false_passes(whole, part) == []


ADDITIONS = steps_of("insert", "line twice", "block twice", most=3)


@pytest.mark.wide
@fuzzed("additions", few=100)
@given(name=st.sampled_from(sorted(set(BROKEN) - {"bundle.tar.gz"})), what=ADDITIONS)
def test_a_capture_into_which_something_came_is_no_pass(name: str, what: list[Step]) -> None:
    report = judged(mutated(BROKEN[name], what))
    assert report is None or report.exit_code != 0


MOVES = steps_of("line twice", "lines swapped", "lines lost", "block twice", most=3)


@pytest.mark.wide
@fuzzed("moves", few=50)
@given(name=st.sampled_from(["facts.yaml", "smi.xml", "smi.txt", "bug-report"]), what=MOVES)
@example(name="smi.txt", what=[("lines lost", 0, 5141, 0), ("lines lost", 1410, 63422, 0)])
def test_a_capture_whose_lines_changed_places_is_no_pass(name: str, what: list[Step]) -> None:
    report = judged(mutated(BROKEN[name], what))
    if report is None or report.exit_code != 0:
        return
    # without its bad lines a text may be one of values that are never judged
    whole = present(WHOLE[name])
    assert any(step == "lines lost" for step, *_ in what)
    assert false_passes(whole, report) == []


FRAGMENT = b"""Clocks Throttle Reasons
    Idle                              : Not Active
    Applications Clocks Setting       : Not Active
    SW Power Cap                      : Not Active
    HW Slowdown                       : Active
        HW Thermal Slowdown           : Not Active
        HW Power Brake Slowdown       : Active

Clocks
    Graphics                          : 382 MHz
    SM                                : 382 MHz
    Memory                            : 877 MHz
"""


def test_a_fragment_of_which_two_lines_changed_places_is_no_pass() -> None:
    lines = FRAGMENT.splitlines(keepends=True)
    passing = []
    for a, b in combinations(range(len(lines)), 2):
        changed = list(lines)
        changed[a], changed[b] = lines[b], lines[a]
        report = judged(b"".join(changed))
        passing += [(lines[a], lines[b])] if report is not None and report.exit_code == 0 else []
    assert passing == []


# What a list of events or settings lacks leaves no trace: a message of the kernel, a mount, a variable.
_LISTED = ("gpu.xid", "host.kernel", "pcie.errors", "storage.", "env.")
_NODES = ("hgx-h100-8", "rtx4090-4", "h100-nvl-2", "gh200-1")
PARTS = st.lists(
    st.tuples(
        st.sampled_from(["remove", "remove", "double", "reverse", "add"]), st.integers(0, 65535), st.integers(1, 4)
    ),
    min_size=1,
    max_size=3,
)


@cache
def faulty_facts() -> list[bytes]:
    """Facts of nodes that each fail for one fault of their state."""
    found = []
    for name in _NODES:
        node = packaged(name)
        last = len(node.gpus) - 1
        for fault in faults():
            where = {"gpu": f"@{last}", "link": f"@{last}", "pair": f"@0-{last}"}.get(fault.kind, "")
            spec = fault.name + where
            if fault.level != "quick" or fault.status != "fail" or fault.given or fault.check.startswith(_LISTED):
                continue
            if fault.happens_on(node, spec):
                found.append(to_json(apply_faults(node, [spec])))
    return found


def _places(value: Any, deepest: int) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every part down to this depth; a placeholder with its reason is one part."""
    if deepest == 0 or not isinstance(value, (dict, list)) or (isinstance(value, dict) and "missing" in value):
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        if key != "schema":
            yield value, key
        yield from _places(part, deepest - 1)


@pytest.mark.wide
@fuzzed("parts", few=100)
@given(which=st.integers(0, 65535), what=PARTS)
def test_facts_that_fail_do_not_pass_without_a_part(which: int, what: list[tuple[str, int, int]]) -> None:
    facts = json.loads(faulty_facts()[which * len(faulty_facts()) >> 16])
    for how, place, depth in what:
        places = [*_places(facts, depth)]
        holder, key = places[place * len(places) >> 16]
        if how == "remove":
            del holder[key]
        elif how == "add" and isinstance(holder, dict):
            holder[f"x-{place}"] = place
        elif how == "double" and isinstance(holder, list):
            holder.append(holder[key])
        elif isinstance(holder, list):
            holder.reverse()
    report = judged(json.dumps(facts).encode())
    assert report is None or report.exit_code != 0


@cache
def failing_complaints() -> list[bytes]:
    """What people pasted of machines that fail; of the normal suite only the kernel's log, as it is everywhere."""
    folder = seeds.CAPTURES / "cases"
    cases = json.loads((folder / "cases.json").read_bytes())["cases"] if LONG and folder.is_dir() else []
    texts = [(folder / case["file"]).read_bytes() for case in cases if (folder / case.get("file", "")).is_file()]
    reports = ((text, judged(text)) for text in (seeds.kernel_log(), *(text for text in texts if len(text) < 300_000)))
    return [text for text, report in reports if report is not None and report.exit_code == 1]


@fuzzed("noise", few=30)
@given(
    which=st.integers(0, 65535),
    noise=st.lists(st.tuples(st.sampled_from(LINES), st.integers(0, 65535)), min_size=1, max_size=4),
    what=ADDITIONS,
)
def test_a_complaint_that_fails_does_not_pass_amid_other_lines(
    which: int, noise: list[tuple[bytes, int]], what: list[Step]
) -> None:
    text = failing_complaints()[which * len(failing_complaints()) >> 16]
    for line, place in noise:
        lines = text.splitlines(keepends=True)
        lines.insert(place * (len(lines) + 1) >> 16, line)
        text = b"".join(lines)
    report = judged(mutated(text, [step for step in what if step[0] != "insert"]))
    assert report is None or report.exit_code != 0
