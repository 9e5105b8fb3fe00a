"""The plan of a probe run: which probes on which ranks, the faults to inject, and how long the ranks may take."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.facts.deadlines import CUDA_CONTEXT, NCCL_INIT, TORCH_IMPORT, Deadline
from gpudoctor.facts.model.measurements import Device, Probe
from gpudoctor.probes.plan_verification.messages import VerificationOrder
from gpudoctor.probes.runner.launch_engine import Engine, number_of

InjectionKind = Literal[
    "hang-rank",
    "die-rank",
    "slow-rank",
    "wrong-sum",
    "nan",
    "desync",
    "slow-data",
    "oom",
    "wrong-bits",
    "skip-all-gather",
    "wrong-shard",
    "wrong-recompute",
]
FULL_LEVELS = ("full", "burn")  # levels that measure every collective and every pair of ranks
_FULL_PHASES = ("all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv", "pairs")
# Phases in which a rank can hang or die, and the probe that runs them. None: part of every run.
_PHASES: dict[str, Probe | None] = {
    "join": None,
    "all_reduce": "collective",
    **dict.fromkeys(_FULL_PHASES, "collective"),
    "train": "train",
    "strategy": "strategy",
    "data": "data",
}
_MAX_FACTOR = 10.0
Stage = Literal["import", "join", "run"]

STRATEGY_IMPORT = Deadline(
    90.0, "the modules of the strategies beside torch itself: half as many files again, from the same disk"
)
PEER_CONTEXT = Deadline(
    2.0,
    "a context that a rank opens on another's GPU for link copies, all of them behind one lock of the driver: below a "
    "second each, some 0.5 s on nodes with much memory to map",
)


class _Case(NamedTuple):
    """What happens, what follows the rank in --inject (in brackets: optional), phase or probe, and the strategies."""

    title: str
    detail: Literal["", "PHASE", "FACTOR", "[FACTOR]", "train"] = ""
    phase: str | None = None
    probe: Probe | None = None
    strategies: tuple[str, ...] = ()


_CASES: dict[InjectionKind, _Case] = {
    "hang-rank": _Case("a rank stands still", "PHASE"),
    "die-rank": _Case("a rank is killed", "PHASE"),
    "slow-rank": _Case("a rank computes so many times as long", "FACTOR", probe="train"),
    "wrong-sum": _Case("a rank adds a wrong number to a sum", probe="collective"),
    "nan": _Case("a rank computes NaN", "train"),
    "desync": _Case("one weight of a rank changes"),
    "slow-data": _Case("a rank waits for its batches", "[FACTOR]", probe="train"),
    "oom": _Case("a rank runs out of memory", phase="train"),
    "wrong-bits": _Case("a rank computes wrong bits", probe="compute"),
    "skip-all-gather": _Case(
        "a rank trains with weights that it did not gather", phase="strategy", strategies=("fsdp", "fsdp1")
    ),
    "wrong-shard": _Case("a rank holds the wrong part of a layer", phase="strategy", strategies=("tensor",)),
    "wrong-recompute": _Case("a rank recomputes something else", phase="strategy", strategies=("checkpointing",)),
}


class ProbePlan(msgspec.Struct, frozen=True):
    """Which probes to run on how many ranks.

    `gpus`: for nccl (NVML index, UUID, bus id) of each rank's GPU, in rank order; empty for gloo.
    `duration_s`: repeat all probes for this long (level burn); None: run them once.
    `inject`: faults in the command line's spelling.
    `engine`: the launch engine that started one process per rank; None: gpudoctor starts them.
    `verification`: steps of a plan to verify, run before the probes.
    `strategies`: names of the strategies to run; empty: all that torch itself provides.
    `data`: paths for the data probe to load from; empty: it generates files.
    """

    backend: Literal["nccl", "gloo"]
    ranks: int
    gpus: tuple[tuple[int, str, str], ...] = ()
    probes: tuple[Probe, ...] = ("collective", "train")
    level: str = "standard"
    duration_s: float | None = None
    inject: tuple[str, ...] = ()
    engine: Engine | None = None
    verification: VerificationOrder | None = None
    strategies: tuple[str, ...] = ()
    data: tuple[str, ...] = ()

    @property
    def device(self) -> Device:
        return "cuda" if self.backend == "nccl" else "cpu"

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        return tuple(uuid for _, uuid, _ in self.gpus)


class Injection(msgspec.Struct, frozen=True):
    """One deliberate fault in one rank; `phase` is a key of `_PHASES`."""

    kind: InjectionKind
    rank: int
    phase: str | None = None
    factor: float | None = None


def injection_titles() -> dict[str, str]:
    """What can be injected, as it is written after --inject, and what happens then."""
    return {_spelling(kind): case.title for kind, case in _CASES.items()}


def injections_of(plan: ProbePlan) -> tuple[Injection, ...]:
    """Parse the plan's faults; the UserError names the malformed one and its correct spelling."""
    return tuple(parse_injection(text, plan.ranks) for text in plan.inject)


def parse_injection(text: str, ranks: int) -> Injection:
    """Parse KIND=RANK[:DETAIL], for example slow-rank=1:1.3; raises UserError."""
    name, equals, rest = text.partition("=")
    kind = next((kind for kind in _CASES if kind == name), None)
    if kind is None:
        raise UserError(f"--inject {text}: no such case; known: {', '.join(map(_spelling, _CASES))}")
    number, colon, detail = rest.partition(":")
    case, rank = _CASES[kind], number_of(number)
    well_formed = case.detail == "[FACTOR]" or bool(colon) == bool(case.detail)
    if not equals or rank is None or not well_formed:
        raise UserError(f"--inject {text}: write it as {_spelling(kind)}")
    if rank >= ranks:
        raise UserError(f"--inject {text}: there is no rank {rank}; this run has ranks 0 to {ranks - 1}")
    if case.detail == "PHASE" and detail not in _PHASES:
        raise UserError(f"--inject {text}: no phase {detail!r}; known: {', '.join(_PHASES)}")
    if case.detail == "train" and detail != "train":
        raise UserError(f"--inject {text}: write it as {_spelling(kind)}")
    if "FACTOR" in case.detail:
        return Injection(kind, rank, factor=_factor(text, detail) if colon else None)
    return Injection(kind, rank, detail or case.phase)


def _factor(text: str, detail: str) -> float:
    try:
        factor = float(detail)
    except ValueError:
        factor = math.nan
    if not 1.0 < factor <= _MAX_FACTOR:
        raise UserError(f"--inject {text}: the factor must be a number over 1 and at most {_MAX_FACTOR:g}, like 1.3")
    return factor


def _spelling(kind: InjectionKind) -> str:
    detail = _CASES[kind].detail
    if not detail:
        return f"{kind}=RANK"
    return f"{kind}=RANK[:{detail[1:]}" if detail.startswith("[") else f"{kind}=RANK:{detail}"


def checked(plan: ProbePlan) -> tuple[Injection, ...]:
    """Validate the plan and return its parsed faults; raises UserError."""
    if plan.ranks < 1:
        raise UserError(f"--ranks {plan.ranks}: at least one rank is needed")
    if plan.backend == "nccl" and len(plan.gpus) != plan.ranks:
        raise UserError(f"nccl needs one GPU a rank: {plan.ranks} ranks were asked for and {len(plan.gpus)} GPUs given")
    injections = injections_of(plan)
    for text, injection in zip(plan.inject, injections, strict=True):
        why = _not_come_by(plan, injection)
        if why is not None:
            place = injection.phase or _CASES[injection.kind].probe
            raise UserError(f"--inject {text}: no rank comes by {place}: {why}")
    return injections


def desyncs(plan: ProbePlan) -> bool:
    """Whether this plan runs code in which --inject desync changes a rank's weights."""
    named = not plan.strategies or {"ddp", "deepspeed"} & set(plan.strategies)
    return "train" in plan.probes or ("strategy" in plan.probes and bool(named))


def _not_come_by(plan: ProbePlan, injection: Injection) -> str | None:
    """Why this run would never reach the fault; None if it does."""
    phase, strategies = injection.phase, _CASES[injection.kind].strategies
    probe = _PHASES[phase] if phase else _CASES[injection.kind].probe
    if probe is not None and probe not in plan.probes:
        return f"the {probe} probe is not run"
    if strategies and plan.strategies and not set(strategies) & set(plan.strategies):
        return f"strategy.{' or strategy.'.join(strategies)} is not run"
    if probe in ("collective", "strategy") and plan.ranks == 1:
        return "one rank has nobody to exchange with; --ranks 2"
    if phase in _FULL_PHASES and plan.level not in FULL_LEVELS:
        return f"it is measured at --level full, and this is {plan.level}"
    return None


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
