"""Which load to put on which devices: the decision between facts and probes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from gpudoctor.checks.core.gpu_use import use_of_gpu
from gpudoctor.checks.core.registry import LEVELS, Check, Level
from gpudoctor.checks.core.scope import scope_of
from gpudoctor.checks.env.cuda_device_list import resolve
from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measured_burn import NOT_READ_AGAIN
from gpudoctor.facts.model.measurements import PROBES, Measurements, Probe
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.nvml.error_cost import condemning
from gpudoctor.framework_runs import DESYNCED, PARTS, parts_wanted, with_parts, without_parts
from gpudoctor.profiles.peers import compute_gpus
from gpudoctor.rank_assignment import seated_gpus

if TYPE_CHECKING:
    from gpudoctor.probes.runner.local_workers import Seats
    from gpudoctor.probes.runner.plan import ProbePlan

Backend = Literal["nccl", "gloo"]
CPU_RANKS = 2
# From when all ranks have met (probes/deadlines.py has what comes before). A healthy standard run ends in about half
# a minute, a full one in about one, so that a few times as long means that something hangs. A burn adds its duration:
# the last round may begin at its end.
RUN_DEADLINE_S: dict[Level, float] = {"standard": 120.0, "full": 300.0, "burn": 300.0}
PROBE_DEADLINE_S: dict[Level, float] = {"standard": 60.0, "full": 120.0, "burn": 120.0}
# a probe on CPU ranks takes 3 s, at level full up to 20; many times that on a busy machine
CPU_PROBE_DEADLINE_S: dict[Level, float] = {"standard": 30.0, "full": 180.0, "burn": 180.0}
SHORTEST_BURN_S, LONGEST_BURN_S = 10.0, 86400.0
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


class LoadRequest(msgspec.Struct, frozen=True):
    """What may be loaded and how, as the options of the same names say it."""

    backend: Backend | Literal["auto"] = "auto"
    gpu: str | None = None
    ranks: int | None = None
    inject: tuple[str, ...] = ()
    force: bool = False


def run_limit_s(level: Level) -> float:
    """The longest that the ranks of one round of this level can take on a node of 8 GPUs, import of torch included."""
    if level not in RUN_DEADLINE_S:
        return 0.0
    from gpudoctor.probes.runner.deadlines import Limits
    from gpudoctor.probes.runner.plan import ProbePlan

    probes = ("collective", "train") if level == "standard" else PROBES
    plan = ProbePlan("nccl", 8, probes=probes, level=level)
    return Limits(plan, RUN_DEADLINE_S[level], PROBE_DEADLINE_S[level]).whole_s


def measure(
    node: Node,
    checks: tuple[Check, ...],
    level: Level,
    request: LoadRequest,
    progress: Callable[[str], None] | None,
    on_interrupt: Callable[[Measurements], None],
    duration_s: float | None = None,
    seats: Seats | None = None,
) -> Measurements:
    """Run the probes that the chosen checks need, where that may be done; else say why not.

    `duration_s`: again and again for so long (level burn). `seats`: the processes that an engine
    has started on this node; they host the ranks but the first. Raise UserError for options that
    contradict the node (NCCL on a simulated one) or the engine.
    """
    wanted, parts = _wanted(checks, level), parts_wanted(checks, level)
    if seats is not None and not seats.gather():
        seats = None  # the engine's variables were inherited: it started one process, which called gpudoctor
    if seats is not None and request.ranks not in (None, seats.ranks):
        raise UserError(f"--ranks {request.ranks}: {seats.engine} started {seats.ranks} ranks here; leave --ranks out")
    backend = _backend(node, request.backend)
    why_not = _why_not(node, checks, wanted or parts, level, backend)
    if why_not is not None or backend is None:
        if request.inject:
            raise UserError(f"--inject makes a probe go wrong, and none runs here: {why_not}")
        return not_run(Missing(why_not or ""))
    gpus = _gpus_to_load(node, request, seats) if backend == "nccl" else ()
    if isinstance(gpus, Missing):
        return not_run(gpus)
    from gpudoctor.probes.runner.plan import ProbePlan, checked, desyncs

    plan = ProbePlan(
        backend=backend,
        ranks=seats.ranks if seats is not None else len(gpus) if backend == "nccl" else request.ranks or CPU_RANKS,
        gpus=tuple((gpu.index, known(gpu.uuid) or "", gpu.bus_id) for gpu in gpus),
        probes=wanted,
        level=level,
        duration_s=duration_s if wanted else None,
        inject=request.inject,
        engine=seats.engine if seats is not None else None,
        strategies=tuple(c.id.partition(".")[2] for c in checks if c.domain == "strategy" and c.id not in PARTS),
    )
    has_ranks = bool(wanted) or (backend == "nccl" and any(c.id == "env.torch" for c in checks))
    desynced = desyncs(plan) or bool(set(parts) & set(DESYNCED))
    strange = [text for text in plan.inject if not (desynced if text.startswith("desync=") else has_ranks)]
    if strange:
        raise UserError(f"--inject {strange[0]}: what was asked for has no ranks of a probe in which that can happen")
    if not has_ranks:
        checked(plan)
        measured = not_run(Missing("not asked for"))
    elif backend == "nccl" and isinstance(node.software.torch, Missing):
        measured = _no_torch()
    else:
        measured = _probed(plan, level, progress, on_interrupt, seats)
    refused = _refused(node, gpus, force=request.force) if backend == "nccl" and "frameworks" in parts else {}
    return with_parts(parts, plan, measured, progress, on_interrupt, refused)


def _refused(node: Node, loaded: tuple[Gpu, ...], *, force: bool) -> dict[str, Missing]:
    """Why no framework may be asked, where one opens more than the GPUs `loaded`: it opens all that CUDA shows."""
    seen = resolve(node.environment.get("CUDA_VISIBLE_DEVICES"), node.gpus, node.environment.get("CUDA_DEVICE_ORDER"))
    passed_over = {gpu.index for gpu in loaded} | set(() if seen.unresolved or seen.order_uncertain else seen.hidden)
    others = tuple(gpu for gpu in node.gpus if gpu.index not in passed_over)
    why = _danger(node, others) or (None if force else _busy(others))
    return {"frameworks": Missing(f"{why}, and a framework opens every GPU", "denied")} if why else {}


def _probed(
    plan: ProbePlan,
    level: Level,
    progress: Callable[[str], None] | None,
    on_interrupt: Callable[[Measurements], None],
    seats: Seats | None,
) -> Measurements:
    """What the ranks measure."""
    from gpudoctor.probes.runner.launch import run_probes
    from gpudoctor.probes.runner.messages import AnyMessage
    from gpudoctor.probes.runner.telemetry import sampling
    from gpudoctor.progress import USUAL_STANDARD_S, ProgressLines

    limits_s = PROBE_DEADLINE_S if plan.backend == "nccl" else CPU_PROBE_DEADLINE_S
    lines = progress if isinstance(progress, ProgressLines) else None
    if lines is not None and plan.backend == "nccl" and level == "standard":
        lines.expect(USUAL_STANDARD_S)
    with sampling(plan) as sampled:

        def hear(rank: int, message: AnyMessage) -> None:
            sampled.hear(rank, message)
            if lines is not None:
                lines.hear(rank, message)

        measured = run_probes(
            plan,
            deadline_s=RUN_DEADLINE_S[level] + (plan.duration_s or 0.0),
            probe_deadline_s=limits_s[level],
            progress=progress if lines is None else None,  # the lines say it of each rank
            on_interrupt=lambda partial: on_interrupt(sampled.added_to(partial)),
            on_message=hear,
            seats=seats,
            on_wait=progress,
        )
    measured = sampled.added_to(measured)
    if progress is not None:
        progress("")
    return measured


def devices_to_load(node: Node, request: LoadRequest) -> tuple[Backend, tuple[Gpu, ...]] | Missing:
    """Where ranks may run that no check asks for: on these GPUs, on none (gloo), or why nowhere.

    Raise UserError for options that contradict the node.
    """
    backend = _backend(node, request.backend)
    if backend is None:
        return Missing(_why_no_devices(node))
    if backend == "gloo":
        return backend, ()
    gpus = _gpus_to_load(node, request, None)
    return gpus if isinstance(gpus, Missing) else (backend, gpus)


def _gpus_to_load(node: Node, request: LoadRequest, seats: Seats | None) -> tuple[Gpu, ...] | Missing:
    """The GPU of each rank, in rank order, or why none may be put under load."""
    in_scope = _in_scope(node, request)
    fit = tuple(gpu for gpu in in_scope if _unfit(gpu) is None)
    if not fit:
        return Missing(_unfit(in_scope[0]) or "", "unsupported")
    if seats is None or seats.missing:
        gpus = _as_many_as_asked(fit, request)
    else:
        seated = seated_gpus(node, seats.visible)
        why = seated if isinstance(seated, str) else next(filter(None, map(_unfit, seated)), None)
        if why is not None or isinstance(seated, str):
            return Missing(f"{seats.engine} started {seats.ranks} ranks here; {why}", "denied")
        gpus = seated
    danger = _danger(node, gpus)
    if danger is not None:
        return Missing(f"{danger}: no load on such a node", "denied")
    busy = None if request.force else _busy(gpus)
    return gpus if busy is None else Missing(f"{busy}: no load beside it without --force", "denied")


def burn_duration_s(asked: str | None, level: Level, usual_s: float) -> float | None:
    """How long a burn lasts: as `--duration` says, else `usual_s`; None at every other level.

    Takes plain seconds, 90s, 10m, 1h. Raise UserError for nonsense, and for a duration of no burn.
    """
    if asked is None:
        return usual_s if level == "burn" else None
    if level != "burn":
        raise UserError(f"--duration {asked}: only --level burn lasts as long as it is told to; this is {level}")
    number, unit = (asked[:-1], asked[-1]) if asked[-1:] in ("s", "m", "h") else (asked, "")
    # no float(): it takes nan, 1e9 and 1_0
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", number):
        raise UserError(f"--duration {asked!r}: write it as 10m, 90s, 1h or in seconds")
    duration_s = float(number) * _SECONDS[unit]
    if not SHORTEST_BURN_S <= duration_s <= LONGEST_BURN_S:
        raise UserError(f"--duration {asked}: from {SHORTEST_BURN_S:g}s to {LONGEST_BURN_S / 3600:g}h can be asked for")
    return duration_s


def count_again(
    node: Node, measured: Measurements, deadline_s: float, progress: Callable[[str], None] | None
) -> Measurements:
    """After a burn of this machine's GPUs: what their counters and the kernel log say now, against `node`."""
    burn = measured.burn
    if burn is None or burn.counters != NOT_READ_AGAIN:
        return measured
    from gpudoctor.facts.collect import collect_live
    from gpudoctor.facts.counter_deltas import counter_growth, new_events

    after = collect_live(deadline_s=deadline_s, progress=progress)
    passed_s = known(measured.launch.total_s) if measured.launch else None
    burn = msgspec.structs.replace(
        burn,
        counted_s=burn.duration_s if passed_s is None else passed_s,
        counters=counter_growth(node, after),
        kernel_events=new_events(node.kernel_log, after.kernel_log, known(node.host.uptime_s)),
    )
    return msgspec.structs.replace(measured, burn=burn)


def puts_load(checks: tuple[Check, ...], level: Level) -> bool:
    """Whether these checks want ranks at all, whatever the node is."""
    return bool(_wanted(checks, level)) or any(c.id == "env.torch" and _within(c, level) for c in checks)


def _wanted(checks: tuple[Check, ...], level: Level) -> tuple[Probe, ...]:
    in_ranks = tuple(c for c in checks if c.id not in PARTS)
    wanted = tuple(probe for probe in PROBES if any(c.domain == probe and _within(c, level) for c in in_ranks))
    # what a burn repeats, where nothing is named, is everything
    repeated = tuple(probe for probe in PROBES if probe != "strategy")
    return wanted or (repeated if any(c.domain == "burn" and _within(c, level) for c in checks) else ())


def _within(check: Check, level: Level) -> bool:
    return LEVELS.index(check.level) <= LEVELS.index(level)


def _why_not(
    node: Node, checks: tuple[Check, ...], wanted: tuple[str, ...], level: Level, backend: Backend | None
) -> str | None:
    """Why no rank is to be started at all, in words; None where some are."""
    if LEVELS.index(level) < LEVELS.index("standard"):
        return f"level {level} puts no load on the node"
    if not wanted and not any(c.id == "env.torch" for c in checks):
        return "not asked for"
    if backend is None:
        return _why_no_devices(node)
    # what torch sees of GPUs is worth a start of its own; what CPU ranks see of it is not
    return "not asked for" if backend == "gloo" and not wanted else None


def _backend(node: Node, asked: Backend | Literal["auto"]) -> Backend | None:
    live = node.source.kind == "live"
    if asked == "nccl" and not live:
        raise UserError(
            f"--backend nccl loads GPUs of this machine, and {node.source.name} is not it; "
            "--backend gloo measures CPU ranks here"
        )
    if asked == "nccl" and not node.gpus:
        raise UserError("--backend nccl: no GPU here; --backend gloo measures CPU ranks")
    if asked != "auto":
        return asked
    return "nccl" if live and node.gpus else None


def _why_no_devices(node: Node) -> str:
    if node.source.kind == "live":
        return "no GPU to load; --backend gloo measures CPU ranks"
    kind = {"simulated": "simulated node", "facts": "node read from a facts file"}.get(node.source.kind, "capture")
    return f"a {kind} cannot be put under load; --backend gloo measures CPU ranks of this machine"


def _in_scope(node: Node, request: LoadRequest) -> tuple[Gpu, ...]:
    scope, _ = scope_of(node, request.gpu)
    return compute_gpus(tuple(gpu for gpu in node.gpus if scope is None or gpu.index in scope))


def _unfit(gpu: Gpu) -> str | None:
    """Why no rank can sit on this GPU, in words; what is wrong with it is for its own checks to say."""
    if known(gpu.settings.mig_enabled) is True:
        return f"GPU {gpu.index} is divided by MIG: NCCL and DDP want whole GPUs"
    # CUDA is told by UUID which GPU a rank gets
    return None if known(gpu.uuid) else f"GPU {gpu.index} tells no UUID"


def _as_many_as_asked(gpus: tuple[Gpu, ...], request: LoadRequest) -> tuple[Gpu, ...]:
    if request.ranks is not None and request.ranks > len(gpus):
        raise UserError(f"--ranks {request.ranks}: one GPU a rank, and there are {len(gpus)}")
    return gpus[: request.ranks]


def _danger(node: Node, gpus: tuple[Gpu, ...]) -> str | None:
    """Why any load would only hang, or go against what the user set, in words."""
    if node.driver.unanswered:
        return f"the driver does not answer ({node.driver.unanswered[0].call})"
    for gpu in gpus:
        if errors := condemning(gpu):
            return f"GPU {gpu.index} does not answer ({errors[0].name}); --gpu names those to measure without it"
    setting = node.environment.get("CUDA_VISIBLE_DEVICES")
    if resolve(setting, node.gpus, node.environment.get("CUDA_DEVICE_ORDER")).hides_all:
        return f"CUDA_VISIBLE_DEVICES={setting} hides every GPU"
    return None


def _busy(gpus: tuple[Gpu, ...]) -> str | None:
    """The first GPU that somebody else computes on, in words."""
    for gpu in gpus:
        use = use_of_gpu(gpu)
        for process in use.others:
            return f"GPU {gpu.index} is used by {known(process.name) or 'a process'} (pid {process.pid})"
        if use.unseen is not None:
            return f"GPU {gpu.index}: {use.unseen}"
    return None


def not_run(why: Missing) -> Measurements:
    """What is known of every probe where none ran: the reason."""
    return without_parts(Measurements(not_run=dict.fromkeys((*PROBES, "torch"), why)), why)


def _no_torch() -> Measurements:
    return not_run(Missing("PyTorch is not installed: pip install 'gpudoctor-cli[torch]'"))
