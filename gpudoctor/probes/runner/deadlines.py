"""How long ranks may take before they measure, in seconds: what the one table of deadlines says, for a run of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from gpudoctor.facts.deadlines import CUDA_CONTEXT, NCCL_INIT, TORCH_IMPORT, Deadline
from gpudoctor.probes.runner.plan import ProbePlan

Stage = Literal["import", "join", "run"]

STRATEGY_IMPORT = Deadline(
    90.0, "the modules of the strategies beside torch itself: half as many files again, from the same disk"
)
PEER_CONTEXT = Deadline(
    2.0,
    "a context that a rank opens on another's GPU for link copies, all of them behind one lock of the driver: below a "
    "second each, some 0.5 s on nodes with much memory to map",
)


class Limits:
    """When to give up on a run: on its import of torch, on the meeting of its ranks, on each probe, and on the whole.

    `run_s` counts from when all ranks have met, `probe_s` from when the first begins a probe. CPU ranks meet in a
    moment, which `run_s` bounds too.
    """

    def __init__(self, plan: ProbePlan, run_s: float, probe_s: float) -> None:
        on_gpus = plan.backend == "nccl"
        strategies = "strategy" in plan.probes or plan.verification is not None
        import_s = TORCH_IMPORT.seconds + (STRATEGY_IMPORT.seconds if strategies else 0.0)
        # every rank opens every other GPU: 56 contexts on 8 of them
        contexts = plan.ranks * (plan.ranks - 1) if on_gpus and "link" in plan.probes else 0
        self._contexts_s = PEER_CONTEXT.seconds * contexts
        self._probe_s = probe_s
        self._stages_s: dict[Stage, float] = {
            "import": import_s,
            "join": CUDA_CONTEXT.seconds + NCCL_INIT.seconds if on_gpus else run_s,
            "run": run_s + self._contexts_s,
        }
        self._ends: dict[str, float] = {}

    @property
    def whole_s(self) -> float:
        """The longest that a run can take."""
        return sum(self._stages_s.values())

    def at(self, now_s: float, stage: Stage, running: Iterable[str]) -> tuple[float, float]:
        """When (on the clock of `now_s`) what goes on now is given up, and of how many seconds that is the end."""
        limits = [(self._ends.setdefault(stage, now_s + self._stages_s[stage]), self._stages_s[stage])]
        for probe in running:
            probe_s = self._probe_s + (self._contexts_s if probe.partition(",")[0] == "link" else 0.0)
            limits.append((self._ends.setdefault(f"probe {probe}", now_s + probe_s), probe_s))
        return min(limits)
