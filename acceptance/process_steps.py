"""Steps `idle` and `contexts`: what a GPU shows with and without work, and how long programs take to end."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep

import msgspec

from acceptance.assumptions import beside_assumed, constant, not_measured
from acceptance.children import NothingToRunOnError, running
from acceptance.plain_loops import LOOPS, LoadOrder
from acceptance.quick_steps import loaded_gpus
from acceptance.run import AcceptanceRun, Item, StepError
from acceptance.smi_step import SMI
from gpudoctor.api.load import other_users
from gpudoctor.checks.core import gpu_use
from gpudoctor.checks.core.gpu_use import readings_of, use_of
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.nvml import settings as nvml_settings
from gpudoctor.facts.nvml.sampler import Sampler
from gpudoctor.facts.nvml.samples import SampleRecording
from gpudoctor.probes.runner import rank_starter_client
from gpudoctor.process.own_program import own_python
from gpudoctor.process.spawn import Child

_WATCHED_S, _WATCHED_CPU_S = 10.0, 0.5  # from the list of measurements: for 10 s
_LOADED_S = 3.0
_BEGIN_S = 120.0
_READINGS = {"busy_pct": "utilization_pct", "used_mib": "memory_used_mib", "power_w": "power_w"}
_OF_USE = (
    constant(gpu_use, "BUSY_PCT"),
    constant(other_users, "SECOND_LOOK_S"),
    constant(gpu_use, "_WORKING_POWER_SHARE"),
    constant(gpu_use, "UNSEEN_MIB"),
)
_OF_WORK = (constant(gpu_use, "_CONTEXT_MIB"), constant(gpu_use, "_WORKING_POWER_SHARE"))


class Moment(msgspec.Struct, frozen=True):
    """What a GPU showed `at_s` seconds after the sampling began; None: not read."""

    at_s: float
    busy_pct: float | None = None
    used_mib: float | None = None
    power_w: float | None = None


class Watched(msgspec.Struct, frozen=True):
    """The readings of one GPU, which nobody used: `waking`, `loaded` by a program, and after that one was `killed`."""

    gpu: int
    waking: tuple[Moment, ...] = ()
    loaded: tuple[Moment, ...] = ()
    killed: tuple[Moment, ...] = ()


def idle(run: AcceptanceRun) -> Iterator[Item]:
    """Sample idle GPUs as they wake, under a load, and after that was killed; no GPU of nobody may look used."""
    free = [gpu for gpu in run.node.gpus if _is_free(gpu)]
    if not free:
        yield not_measured(
            1, "each GPU is in use by another process, split by MIG, or its processes cannot be read", *_OF_USE
        )
        return
    watched_s = _WATCHED_CPU_S if run.on_cpu else _WATCHED_S
    with _sampling(free) as waking:
        sleep(watched_s)
    uuids = loaded_gpus(run)
    targets = free if run.on_cpu else [gpu for gpu in free if known(gpu.uuid) in uuids]
    why_not, loaded, killed = "", None, None
    try:
        with running(_loads(run, targets), environ=run.environ, cwd=run.folder, deadline_s=_BEGIN_S) as programs:
            with _sampling(targets) as loaded:
                sleep(watched_s if run.on_cpu else _LOADED_S)
            _end_all(programs, signal.SIGKILL)
        with _sampling(targets) as killed:
            sleep(watched_s)
    except NothingToRunOnError as error:
        why_not = str(error)
    seen = tuple(Watched(gpu.index, *(_moments(taken, gpu) for taken in (waking, loaded, killed))) for gpu in free)
    run.raw["measured-idle.json"] = msgspec.json.encode(seen)
    if run.on_cpu:
        count = sum(len(each.waking) for each in seen)
        yield not_measured(1, f"no GPU was woken or loaded ({count} readings were taken of {len(free)} GPUs)", *_OF_USE)
        return
    for gpu, each in zip(free, seen, strict=True):
        yield from judged_idle(gpu, each)
    if why_not:
        yield not_measured(1, f"after a killed program: {why_not}", *_OF_USE)


def _is_free(gpu: Gpu) -> bool:
    used_mib = known(gpu.memory_used_mib)
    alone = known(gpu.processes) == () and known(gpu.settings.mig_enabled) is not True and known(gpu.uuid) is not None
    return alone and used_mib is not None and used_mib <= gpu_use.UNSEEN_MIB


def judged_idle(gpu: Gpu, seen: Watched) -> Iterator[Item]:
    """By the rule of gpudoctor itself: an idle GPU never looks used, a loaded one always, whoever is listed."""
    for name, moments in (("after waking", seen.waking), ("after a killed program", seen.killed)):
        if moments:
            used_s = [each.at_s for each in moments if _looks_used(gpu, each)]
            last_s, limit_s = max(used_s, default=0.0), other_users.SECOND_LOOK_S
            measured = f"{gpu.label} {name}: {_range(moments)}; taken for used until {last_s:.1f} s"
            assumed = f"an idle GPU is not taken for used after {limit_s:g} s"
            yield beside_assumed(1, last_s <= limit_s, measured, assumed, *_OF_USE)
    if seen.loaded:
        share = sum(_looks_used(gpu, each) for each in seen.loaded) / len(seen.loaded)
        # a reading may be from before the load: the driver's utilisation covers up to the last second
        measured = f"{gpu.label} under a load: {_range(seen.loaded)}; taken for used in {share:.0%} of the readings"
        yield beside_assumed(1, share >= 0.5, measured, "a load shows, even if its process is not listed", *_OF_WORK)


def _looks_used(gpu: Gpu, moment: Moment) -> bool:
    readings = msgspec.structs.replace(
        readings_of(gpu), busy_pct=moment.busy_pct, used_mib=moment.used_mib, power_w=moment.power_w
    )
    return use_of((), readings).unseen is not None


def _range(moments: Sequence[Moment]) -> str:
    parts = []
    for name, unit in (("busy_pct", "%"), ("used_mib", "MiB"), ("power_w", "W")):
        values = [value for each in moments if (value := getattr(each, name)) is not None]
        parts.append(f"{min(values):.0f} to {max(values):.0f} {unit}" if values else f"no {unit}")
    return ", ".join(parts)


class _Taken:
    """Samples, complete once the block has ended."""

    def __init__(self) -> None:
        self.recording = SampleRecording((), ())


@contextmanager
def _sampling(gpus: Sequence[Gpu]) -> Iterator[_Taken]:
    taken = _Taken()
    try:
        sampler = Sampler([(gpu.index, known(gpu.uuid) or "") for gpu in gpus])
    except OSError as error:
        raise StepError(f"the sampler cannot be started: {error.strerror or error}") from None
    try:
        yield taken
    finally:
        sampler.stop()
        taken.recording = sampler.recording()


def _moments(taken: _Taken | None, gpu: Gpu) -> tuple[Moment, ...]:
    if taken is None:
        return ()
    at: dict[float, dict[str, float]] = {}
    for field, name in _READINGS.items():
        for moment_s, value in taken.recording.series(gpu.index, name):
            at.setdefault(moment_s, {})[field] = value
    first_s = min(at, default=0.0)
    return tuple(Moment(round(moment_s - first_s, 3), **at[moment_s]) for moment_s in sorted(at))


_COUNTS, _CPU_COUNTS = (1, 2, 8), (2,)
_OF_TEARDOWN = tuple(constant(rank_starter_client, name) for name in ("_TEARDOWN_S", "_TEARDOWN_PER_CONTEXT_S"))
_OF_PROCESSES = tuple(constant(nvml_settings, name) for name in ("_LARGE_PROCESS_SINCE", "_LARGE_PROCESS_UNTIL"))
_APPS = ("--query-compute-apps=gpu_bus_id,pid", "--format=csv,noheader")


class Ended(msgspec.Struct, frozen=True):
    """How long so many programs, each with one CUDA context, took to end after SIGTERM; None: not in the limit."""

    contexts: int
    seconds: float | None


def contexts(run: AcceptanceRun) -> Iterator[Item]:
    """Programs with 1, 2 and 8 contexts: the processes of a GPU that two share, and the time that they take to end."""
    uuids = loaded_gpus(run)
    if not uuids and not run.on_cpu:
        for number, constants in ((2, _OF_TEARDOWN), (3, _OF_PROCESSES)):
            yield not_measured(number, "no GPU of this node may be put under load (see the step standard)", *constants)
        return
    ended: list[Ended] = []
    for count in _CPU_COUNTS if run.on_cpu else _COUNTS:
        # two share a GPU; more are spread, as ranks are
        targets = [uuids[place % len(uuids)] if count > 2 else uuids[0] for place in range(count)] if uuids else []
        orders = [LoadOrder((uuid,)) for uuid in targets] or [LoadOrder(())] * count
        try:
            with running(_commands(orders), environ=run.environ, cwd=run.folder, deadline_s=_BEGIN_S) as programs:
                if count == 2:
                    yield from _listed(run, tuple(program.pid for program in programs), targets[:1])
                ended.append(Ended(count, _end_all(programs, signal.SIGTERM)))
        except NothingToRunOnError as error:
            yield not_measured(2, f"{count} contexts: {error}", *_OF_TEARDOWN)
            if count == 2:
                yield not_measured(3, str(error), *_OF_PROCESSES)
    run.raw["measured-contexts.json"] = msgspec.json.encode(ended)
    if run.on_cpu:
        yield not_measured(2, "CPU programs have no CUDA context (two of them were ended)", *_OF_TEARDOWN)
        return
    for each in ended:
        yield judged_teardown(each)


def judged_teardown(ended: Ended) -> Item:
    """Against the time that gpudoctor grants a healthy driver."""
    limit_s = rank_starter_client.teardown_s(ended.contexts)
    took = f"more than {limit_s:g} s" if ended.seconds is None else f"{ended.seconds:.2f} s"
    measured = f"{took} until programs with {ended.contexts} CUDA contexts had ended after SIGTERM"
    holds = ended.seconds is not None and ended.seconds <= limit_s
    return beside_assumed(2, holds, measured, f"at most {limit_s:g} s", *_OF_TEARDOWN)


def _listed(run: AcceptanceRun, pids: tuple[int, ...], uuids: Sequence[str]) -> Iterator[Item]:
    """The processes of the GPU that both programs use: gpudoctor's list beside nvidia-smi's."""
    node, program = run.facts(), shutil.which(SMI)
    done = run.child([program, *_APPS]) if program else None
    text = done.stdout.decode("utf-8", "replace") if done else ""
    run.raw["nvidia-smi-apps.txt"] = text.encode()
    gpu = next((gpu for gpu in node.gpus if known(gpu.uuid) in uuids), None)
    if gpu is None:
        yield not_measured(3, "CPU programs are on no GPU (the lists were read)", *_OF_PROCESSES)
    elif isinstance(gpu.processes, Missing):
        yield not_measured(3, f"{gpu.label}: {gpu.processes.reason}", *_OF_PROCESSES)
    elif done is None or done.code != 0:
        yield not_measured(3, f"{SMI} {done.words if done else 'is not on PATH'}", *_OF_PROCESSES)
    else:
        yield judged_processes(gpu, {each.pid for each in gpu.processes}, _pids_of(text, gpu.bus_id), set(pids))


def judged_processes(gpu: Gpu, listed: set[int], by_smi: set[int], started: set[int]) -> Item:
    """Both lists must be equal and have the programs; in a container both may be empty, or have other numbers."""
    if not listed and not by_smi:
        return not_measured(
            3, f"{gpu.label}: neither list shows a process: another PID namespace hides them", *_OF_PROCESSES
        )
    measured = f"{gpu.label}: gpudoctor {_numbers(listed)}, {SMI} {_numbers(by_smi)}, started {_numbers(started)}"
    complete = started <= listed or (not started & listed and len(listed) >= len(started))
    return beside_assumed(
        3, listed == by_smi and complete, measured, "the same processes, the started ones among them", *_OF_PROCESSES
    )


def _numbers(pids: set[int]) -> str:
    return "/".join(map(str, sorted(pids))) or "none"


def _pids_of(text: str, bus_id: str) -> set[int]:
    """The pids of one GPU in lines such as `00000000:1B:00.0, 4242`."""
    rows = (line.split(",") for line in text.splitlines() if line.count(",") == 1)
    return {
        int(pid) for place, pid in rows if place.strip().lower().endswith(bus_id.lower()) and pid.strip().isdecimal()
    }


def _loads(run: AcceptanceRun, gpus: Sequence[Gpu]) -> list[list[str]]:
    """A load on each of these GPUs, each by its own program; one on the CPU if there is no GPU."""
    orders = [LoadOrder(())] if run.on_cpu else [LoadOrder((known(gpu.uuid) or "",)) for gpu in gpus]
    return _commands(orders)


def _commands(orders: Sequence[LoadOrder]) -> list[list[str]]:
    return [own_python(LOOPS, "main", msgspec.json.encode(order).decode()) for order in orders]


def _end_all(programs: Sequence[Child], number: signal.Signals) -> float | None:
    """Send a signal to all; the seconds until the last has ended, None if one has not in the time for a teardown."""
    began_s = monotonic()
    limit_s = rank_starter_client.teardown_s(len(programs))
    for program in programs:
        program.send(number)
    ended = [program.ends_within(max(0.0, began_s + limit_s - monotonic())) is not None for program in programs]
    return monotonic() - began_s if all(ended) else None
