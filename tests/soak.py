"""1,000 checks of random nodes with random faults, each verdict compared with the one expected: `make soak`.

The expected verdicts are in `soak_expected`, written by hand. A fault must be found by the check that it belongs to,
with its status, on the GPU it was put on, and nothing on another GPU. A node without a fault must get the verdict in
the table of nodes. Two faults at once must both be found, unless one removes the other's evidence. The facts come by
one of the ways of `soak_sources`, at every level, under every --fail-on, with and without --profile. The seed is fixed,
so that a run can be repeated: python -m tests.soak [COUNT [SEED]].
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterable

import msgspec

from gpudoctor.checks.core.finding import WORST_FIRST, Status
from gpudoctor.checks.core.registry import LEVELS, Check, Level
from gpudoctor.errors import UserError
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.fault_kit import SimulatedFault
from gpudoctor.facts.simulated.load import apply_faults, faults, node_names
from gpudoctor.process.exit_codes import FailOn
from gpudoctor.report.model import Report
from tests.checks.simulated_nodes import healthy_report, packaged, speaks_of
from tests.needs import has
from tests.soak_expected import EXPECTED, NODES
from tests.soak_sources import DRIVERS, HANGS, NOT_PLAYED, SOURCES, Asked

CHECKS, SEED = 1000, 20261121
NO_FAULT_SHARE, TWO_FAULTS_SHARE = 0.15, 0.35
LEVEL_WEIGHTS = (60, 20, 12, 8)
FAIL_ONS: tuple[FailOn, ...] = ("fail", "warn", "never")
# with one of these faults the driver reports little or nothing about GPUs: a second fault may stay hidden
_BLINDING = ("driver.", "gpu.count", "gpu.lost")


class PlacedFault(msgspec.Struct, frozen=True):
    """A fault on a target; `gpus` are the GPUs it affects (none: the node)."""

    fault: SimulatedFault
    spec: str
    gpus: tuple[int, ...] = ()

    @property
    def check(self) -> str:
        return EXPECTED[self.fault.name][0]

    @property
    def status(self) -> Status:
        return EXPECTED[self.fault.name][1]


class Draw(msgspec.Struct, frozen=True):
    """One trial: a node, its faults, the way its facts are read, and the checks to run."""

    name: str
    placed_faults: tuple[PlacedFault, ...] = ()
    source: str = "facts"
    level: Level = "quick"
    fail_on: FailOn = "fail"
    named_profile: bool = False

    def __str__(self) -> str:
        faulty = ", ".join(placed.spec for placed in self.placed_faults) or "nothing"
        return f"{self.name} with {faulty} ({self.source}, {self.level}, --fail-on {self.fail_on})"


def place_fault(chance: random.Random, node: Node, kit: tuple[SimulatedFault, ...]) -> PlacedFault | None:
    """A fault of the kit on a random target of this node; None if the drawn fault cannot happen there."""
    fault = chance.choice(kit)
    indices = [gpu.index for gpu in node.gpus]
    gpus: tuple[int, ...] = ()
    if fault.kind in ("gpu", "link") and indices:
        gpus = (chance.choice(indices),)
    elif fault.kind == "pair" and len(indices) > 1:
        gpus = tuple(sorted(chance.sample(indices, 2)))
    spec = f"{fault.name}@{'-'.join(map(str, gpus))}" if gpus else fault.name
    return PlacedFault(fault, spec, gpus) if fault.happens_on(node, spec) else None


def drawn(chance: random.Random, sources: dict[str, int]) -> Draw:
    """Draw a node, its faults, and the way its facts are read."""
    while True:
        [level] = chance.choices(LEVELS, LEVEL_WEIGHTS)
        kit = tuple(fault for fault in faults() if fault.level == "quick" or level != "quick")
        draw = Draw(
            chance.choice(node_names()),
            source=chance.choices(tuple(sources), tuple(sources.values()))[0],
            level=level,
            fail_on=chance.choices(FAIL_ONS, (7, 2, 1))[0],
            named_profile=chance.random() < 0.2,
        )
        share = chance.random()
        if share < NO_FAULT_SHARE:
            return draw
        first = place_fault(chance, packaged(draw.name), kit)
        if first is None or not _comes_through(first, draw.source):
            continue
        second = place_fault(chance, packaged(draw.name), kit) if share < NO_FAULT_SHARE + TWO_FAULTS_SHARE else None
        if second is None or not _comes_through(second, draw.source) or not independent(draw.name, first, second):
            return msgspec.structs.replace(draw, placed_faults=(first,))
        return msgspec.structs.replace(draw, placed_faults=(first, second))


def _comes_through(placed: PlacedFault, source: str) -> bool:
    name = placed.fault.name
    return source not in DRIVERS or not (name in NOT_PLAYED or (source == "nvml" and name in HANGS))


def independent(name: str, one: PlacedFault, other: PlacedFault) -> bool:
    """Whether neither can hide the other: different GPUs, different checks, and none that blinds the driver."""
    if one.check == other.check or set(one.gpus) & set(other.gpus):
        return False
    if any(placed.check.startswith(_BLINDING) for placed in (one, other)):
        return False
    try:
        apply_faults(packaged(name), [one.spec, other.spec])
    except UserError:  # with the first on it the second cannot happen any more
        return False
    return True


def wrong(draw: Draw, checks: tuple[Check, ...] | None = None) -> list[str]:
    """What the verdict got wrong, in words. `checks` defaults to the registry's."""
    node = packaged(draw.name)
    specs = tuple(placed.spec for placed in draw.placed_faults)
    asked = Asked(
        name=draw.name,
        node=apply_faults(node, specs),
        faults=specs,
        level=draw.level,
        profile=_profile_of(draw),
        fail_on=draw.fail_on,
        gpus=len(node.gpus) if any(placed.fault.given == "expect-gpus" for placed in draw.placed_faults) else None,
        checks=checks,
    )
    try:
        report = SOURCES[draw.source][0](asked)
    except UserError as error:
        return [f"it says: {error}"]
    return [
        *(
            words
            for one in draw.placed_faults
            for words in missed(report, node, one, alone=len(draw.placed_faults) == 1)
        ),
        *alarms(report, draw),
        *verdict_problems(report, draw),
    ]


def _profile_of(draw: Draw) -> str | None:
    name = healthy_report(draw.name).profile.name
    return name if draw.named_profile and name != "none" else None


def missed(report: Report, node: Node, placed: PlacedFault, alone: bool) -> list[str]:
    """The status that the check for this fault has instead, or a finding on another GPU."""
    result = next(check for check in report.checks if check.id == placed.check)
    # a second fault may make the check's status worse, never better
    if result.status is not placed.status and (
        alone or WORST_FIRST.index(result.status) > WORST_FIRST.index(placed.status)
    ):
        return [f"{placed.spec}: {placed.check} says {result.status.value}, not {placed.status.value}"]
    if not placed.gpus or placed.fault.given or placed.status not in (Status.FAIL, Status.WARN):
        return []
    on = [gpu for gpu in node.gpus if gpu.index in placed.gpus]
    subjects = [finding.subject for finding in result.findings if finding.status is placed.status]
    if any(speaks_of(subject, gpu.index, gpu.bus_id) for subject in subjects for gpu in on):
        return []
    return [f"{placed.spec}: {placed.check} names {[subject.label for subject in subjects]}"]


def alarms(report: Report, draw: Draw) -> list[str]:
    """Failures and unknowns that no fault of the trial explains."""
    own = NODES.get(draw.name, {})
    failing = [placed for placed in draw.placed_faults if placed.status is Status.FAIL]
    expected = {check for check, status in own.items() if status is Status.FAIL} | {one.check for one in failing}
    problems = []
    for fault in report.faults:
        if fault.check not in expected and fault.subject.gpu not in {gpu for one in failing for gpu in one.gpus}:
            problems.append(f"{fault.check} fails: {fault.headline}")
    faulty = {gpu for placed in failing for gpu in placed.gpus}
    # a fault of the whole node or of a pair shows on other GPUs too, and an NVLink has two ends
    if failing and not own and all(placed.fault.kind in ("gpu", "link") for placed in failing):
        for result in report.checks:
            if result.id.startswith("nvlink."):
                continue
            for finding in result.findings:
                gpu = finding.subject.gpu
                if finding.status is Status.FAIL and gpu is not None and gpu not in faulty:
                    problems.append(f"{result.id} fails on GPU {gpu}")
    if not failing:
        # every check of the domain is unknown for a GPU that does not answer
        silent = {placed.check.partition(".")[0] for placed in draw.placed_faults if placed.status is Status.UNKNOWN}
        problems += [
            f"{result.id} is unknown"
            for result in report.checks
            if result.status is Status.UNKNOWN and result.id.partition(".")[0] not in silent
        ]
    return problems


def verdict_problems(report: Report, draw: Draw) -> list[str]:
    """Compare verdict and exit code with those of the worst expected finding."""
    said = {*NODES.get(draw.name, {}).values(), *(placed.status for placed in draw.placed_faults)}
    verdict = next((status.value for status in WORST_FIRST if status in said), "pass")
    failing = {"fail": {Status.FAIL}, "warn": {Status.FAIL, Status.WARN}, "never": set()}[draw.fail_on]
    code = 1 if failing & said else 3 if verdict == "unknown" and draw.fail_on != "never" else 0
    if (report.verdict, report.exit_code) == (verdict, code):
        return []
    return [f"{report.verdict} and exit code {report.exit_code}, not {verdict} and {code}: {report.reason}"]


def weights(left_out: Iterable[str] = ()) -> dict[str, int]:
    """The ways to read facts that work here; the fake driver's library has to be built."""
    without = set(left_out)
    if not has("cc"):
        without.add("library")
    return {source: weight for source, (_, weight) in SOURCES.items() if source not in without}


def soak(count: int = CHECKS, seed: int = SEED, left_out: Iterable[str] = ()) -> int:
    """Run `count` checks, print what was wrong, return the number of wrong verdicts."""
    chance = random.Random(seed)
    sources = weights(left_out)
    bad, per_trial, seen, ways = 0, Counter[int](), set[str](), Counter[str]()
    started = time.monotonic()
    for number in range(count):
        draw = drawn(chance, sources)
        per_trial[len(draw.placed_faults)] += 1
        seen |= {placed.fault.name for placed in draw.placed_faults}
        ways[draw.source] += 1
        problems = wrong(draw)
        if problems:
            bad += 1
            say(f"{number}: {draw}: {'; '.join(problems)}")
    say(
        f"{per_trial[0]} without a fault, {per_trial[2]} with two; {len(seen)} of {len(faults())} faults;"
        f" {time.monotonic() - started:.0f} s; seed {seed}"
    )
    say(f"facts by {', '.join(f'{way} {times}' for way, times in ways.most_common())}")
    say(f"{count} checks, {bad} wrong")
    return bad


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asked_count, asked_seed, *_ = [*map(int, sys.argv[1:]), *(CHECKS, SEED)[len(sys.argv) - 1 :]]
    sys.exit(1 if soak(asked_count, asked_seed) else 0)
