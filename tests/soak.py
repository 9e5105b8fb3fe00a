"""1,000 checks of random nodes with random faults, each verdict compared with the one expected: `make soak`.

A fault of the kit must be found by the check that the kit names, with its status, on the GPU it was put on.
A node without a fault must have no failure. Two faults at once must both be found, where neither makes the
other's evidence go away. The seed is fixed, so that a run can be repeated: python -m tests.soak [COUNT [SEED]].
"""

from __future__ import annotations

import random
import sys
import time

import msgspec

from gpudoctor.checks.case import Expect
from gpudoctor.checks.finding import WORST_FIRST, Status
from gpudoctor.errors import UserError
from gpudoctor.facts.node import Node
from gpudoctor.facts.simulated import apply_faults, faults, node_names
from gpudoctor.facts.simulated_faults import Fault
from gpudoctor.report.judge import Question, judge
from gpudoctor.report.report import Report
from tests.checks.simulated_nodes import packaged, speaks_of

CHECKS, SEED = 1000, 20261121
NO_FAULT_SHARE, TWO_FAULTS_SHARE = 0.15, 0.35
# what is no node for distributed training as it is: no driver at all, GPUs of different models
OWN_FAILURES = {"cpu-only": {"driver.loaded"}, "workstation-mixed": {"gpu.identical"}}
# with one of these the driver tells little or nothing of GPUs any more: a second fault may not show
_BLINDING = ("driver.", "gpu.count", "gpu.lost")


class Strike(msgspec.Struct, frozen=True):
    """A fault on a target; `gpus` are those that it is on (none: the node)."""

    fault: Fault
    spec: str
    gpus: tuple[int, ...] = ()


def strike(chance: random.Random, node: Node, kit: tuple[Fault, ...]) -> Strike | None:
    """A fault of the kit on a random target of this node; None where the one drawn cannot happen there."""
    fault = chance.choice(kit)
    indices = [gpu.index for gpu in node.gpus]
    gpus: tuple[int, ...] = ()
    if fault.kind in ("gpu", "link") and indices:
        gpus = (chance.choice(indices),)
    elif fault.kind == "pair" and len(indices) > 1:
        gpus = tuple(sorted(chance.sample(indices, 2)))
    spec = f"{fault.name}@{'-'.join(map(str, gpus))}" if gpus else fault.name
    return Strike(fault, spec, gpus) if fault.happens_on(node, spec) else None


def drawn(chance: random.Random, kit: tuple[Fault, ...]) -> tuple[str, tuple[Strike, ...]]:
    """A node and what is put on it."""
    while True:
        name = chance.choice(node_names())
        share = chance.random()
        if share < NO_FAULT_SHARE:
            return name, ()
        first = strike(chance, packaged(name), kit)
        if first is None:
            continue
        if share < NO_FAULT_SHARE + TWO_FAULTS_SHARE:
            second = strike(chance, packaged(name), kit)
            if second is not None and independent(first, second):
                return name, (first, second)
        return name, (first,)


def independent(one: Strike, other: Strike) -> bool:
    """Whether neither can hide the other: different GPUs, different checks, and none that blinds the driver."""
    if one.fault.check == other.fault.check or set(one.gpus) & set(other.gpus):
        return False
    return not any(strike.fault.check.startswith(_BLINDING) for strike in (one, other))


def wrong(name: str, strikes: tuple[Strike, ...]) -> list[str]:
    """What the verdict on this node with these faults got wrong, in words."""
    node = packaged(name)
    told = any(strike.fault.given == "expect-gpus" for strike in strikes)
    expect = Expect(gpus=len(node.gpus)) if told else Expect()
    try:
        struck = apply_faults(node, [strike.spec for strike in strikes])
    except UserError:  # with the first on it the second cannot happen any more
        strikes = strikes[:1]
        struck = apply_faults(node, [strikes[0].spec])
    report = judge(struck, question=Question(level="quick", expect=expect))
    problems = [problem for strike in strikes for problem in missed(report, node, strike, alone=len(strikes) == 1)]
    failed = {check.id for check in report.checks if check.status is Status.FAIL}
    own = OWN_FAILURES.get(name, set())
    should_fail = bool(own) or any(strike.fault.status == "fail" for strike in strikes)
    if not any(strike.fault.status == "fail" for strike in strikes):
        problems += [f"{check} fails" for check in sorted(failed - own)]
    if not strikes:
        problems += [f"{check} does not fail" for check in sorted(own - failed)]
    if (report.exit_code == 1) != should_fail:
        problems.append(f"exit code {report.exit_code}")
    return problems


def missed(report: Report, node: Node, strike: Strike, alone: bool) -> list[str]:
    """Where the check that should find this fault says something else, or of another GPU."""
    fault = strike.fault
    result = next(check for check in report.checks if check.id == fault.check)
    wanted = Status(fault.status)
    # beside a second fault the check may have worse to say, never better
    if result.status is not wanted and (alone or WORST_FIRST.index(result.status) > WORST_FIRST.index(wanted)):
        return [f"{strike.spec}: {fault.check} says {result.status.value}, not {fault.status}"]
    if not strike.gpus or fault.given or wanted not in (Status.FAIL, Status.WARN):
        return []
    on = [gpu for gpu in node.gpus if gpu.index in strike.gpus]
    subjects = [finding.subject for finding in result.findings if finding.status is wanted]
    if any(speaks_of(subject, gpu.index, gpu.bus_id) for subject in subjects for gpu in on):
        return []
    return [f"{strike.spec}: {fault.check} names {[subject.label for subject in subjects]}"]


def soak(count: int = CHECKS, seed: int = SEED) -> int:
    """Run `count` checks and say what was wrong; the number of wrong verdicts."""
    chance = random.Random(seed)
    kit = tuple(fault for fault in faults() if fault.level == "quick")
    bad, two, healthy, seen = 0, 0, 0, set[str]()
    started = time.monotonic()
    for number in range(count):
        name, strikes = drawn(chance, kit)
        healthy += not strikes
        two += len(strikes) == 2
        seen |= {strike.fault.name for strike in strikes}
        problems = wrong(name, strikes)
        if problems:
            bad += 1
            say(f"{number}: {name} with {', '.join(s.spec for s in strikes) or 'nothing'}: {'; '.join(problems)}")
    took_s = time.monotonic() - started
    say(f"{healthy} without a fault, {two} with two; {len(seen)} of {len(kit)} faults; {took_s:.0f} s; seed {seed}")
    say(f"{count} checks, {bad} wrong")
    return bad


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    sys.exit(1 if soak(*numbers) else 0)
