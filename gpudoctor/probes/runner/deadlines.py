"""How long ranks may take, in seconds: the deadlines of facts/deadlines.py applied to a run of ranks."""

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
    """When to give up on a run: on the import of torch, the rendezvous of the ranks, each probe, and the whole.

    `run_s` counts from the end of the rendezvous, `probe_s` from when the first rank begins a probe. The rendezvous
    of CPU ranks takes a moment, and is bounded by `run_s` too.
    """

    def __init__(self, plan: ProbePlan, run_s: float, probe_s: float) -> None:
        on_gpus = plan.backend == "nccl"
        strategies = "strategy" in plan.probes or plan.verification is not None
        import_s = TORCH_IMPORT.seconds + (STRATEGY_IMPORT.seconds if strategies else 0.0)
        # every rank opens every other GPU: 56 contexts on 8 GPUs
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
        """The longest a run can take."""
        return sum(self._stages_s.values())

    def at(self, now_s: float, stage: Stage, running: Iterable[str]) -> tuple[float, float]:
        """The next deadline on the clock of `now_s`, and the limit in seconds that it comes from."""
        limits = [(self._ends.setdefault(stage, now_s + self._stages_s[stage]), self._stages_s[stage])]
        for probe in running:
            probe_s = self._probe_s + (self._contexts_s if probe.partition(",")[0] == "link" else 0.0)
            limits.append((self._ends.setdefault(f"probe {probe}", now_s + probe_s), probe_s))
        return min(limits)
