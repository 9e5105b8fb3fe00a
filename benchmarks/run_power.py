"""How surely the findings of `gpudoctor run` name a slow rank, and how rarely one that is not: made-up runs, judged.

    python benchmarks/run_power.py [--draws 1000] [--steps 145] [--ranks 2]

The noise is that of recorded runs on two shared cores: what a step costs varies by 10 % from step to step, in bursts
that meet all phases of a rank alike, on top of 6 % in each phase; a rank's core may be slower for the whole run (by a
spread of 0, 3 or 6 %), and the ranks lack a CPU for half of the time, or never. The slow rank does 15 % of its step
more, in the forward. 145 timed steps are those of a run of 400. Prints shares of the draws.
"""

from __future__ import annotations

import argparse
import random
import sys
from math import exp

from gpudoctor.run.findings.slow_ranks import compared
from gpudoctor.run.observer.layout import FORWARD, WAIT
from gpudoctor.run.step_series import TimedStep
from gpudoctor.run.watched import Watched, WatchedRank

# data, forward, backward, optimizer, wait, between, host: those of a small DDP training in ms
_USUAL_MS = (0.4, 3.0, 5.0, 0.8, 4.0, 0.5, 0.2)
_STEP_NOISE = 0.10
_PHASE_NOISE = 0.06
_BURST_SHARE, _BURST_STEPS, _BURST_NOISE = 0.03, 12, 0.4
_MORE = 0.15


def rank(number: int, slow: bool, steps: int, spread: float, crowded: bool, draw: random.Random) -> WatchedRank:
    core = exp(draw.gauss(0.0, spread))
    own_ms = sum(_USUAL_MS) - _USUAL_MS[WAIT]
    burst, burst_left = 1.0, 0
    made = []
    for step in range(steps):
        if burst_left == 0 and draw.random() < _BURST_SHARE:
            burst, burst_left = exp(abs(draw.gauss(0.0, _BURST_NOISE))), draw.randint(1, _BURST_STEPS)
        elif burst_left:
            burst_left -= 1
        speed = core * exp(draw.gauss(0.0, _STEP_NOISE)) * (burst if burst_left else 1.0)
        cpu = [ms * speed * exp(draw.gauss(0.0, _PHASE_NOISE)) for ms in _USUAL_MS]
        if slow:
            cpu[FORWARD] += _MORE * own_ms * speed
        queued = [ms * draw.uniform(0.5, 2.0) if crowded else 0.0 for ms in cpu]
        wall = tuple(map(sum, zip(cpu, queued, strict=True)))
        made.append(TimedStep(step, wall, tuple(cpu), tuple(queued)))
    return WatchedRank(rank=number, pid=number + 1, finished=steps, steps=tuple(made), ending="normal")


def judged(slow: int | None, args: argparse.Namespace, spread: float, crowded: bool, draw: random.Random) -> str:
    """named | innocent | unsure | nothing."""
    ranks = tuple(rank(n, n == slow, args.steps, spread, crowded, draw) for n in range(args.ranks))
    found = compared(Watched(ranks=ranks))
    named = {each.rank.rank for each in found.slow}
    if named - {slow}:
        return "innocent"
    return "named" if named else "unsure" if found.unsure else "nothing"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=1000, help="of each row")
    parser.add_argument("--steps", type=int, default=145)
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    draw = random.Random(0)
    print("| ranks lack CPUs | spread of cores | slow rank named | innocent beside it | clean: a rank named | unsure |")
    print("| --- " * 6 + "|")
    for crowded in (False, True):
        for spread in (0.0, 0.03, 0.06):
            slow = [judged(draw.randrange(args.ranks), args, spread, crowded, draw) for _ in range(args.draws)]
            clean = [judged(None, args, spread, crowded, draw) for _ in range(args.draws)]
            shares = [slow.count("named"), slow.count("innocent"), clean.count("innocent"), clean.count("unsure")]
            cells = [
                "half the time" if crowded else "never",
                f"{spread:.0%}",
                *(f"{n / args.draws:.2%}" for n in shares),
            ]
            print("| " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
