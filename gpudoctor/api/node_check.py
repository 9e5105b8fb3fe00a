"""One check: a request in, a report out. It prints nothing, sets no signal handler and never exits.

`gpudoctor check` (`cli/commands/check.py`) makes the same calls, and adds its streams and signal handling.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from gpudoctor.api.config import Config, config_of_host, load_config, threshold_overrides
from gpudoctor.api.load.request import Backend, LoadRequest, absolute_paths, need_gb_s, not_run
from gpudoctor.checks.core.registry import LEVELS, Check, Level, all_checks, matches, select
from gpudoctor.errors import UserError
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, Source
from gpudoctor.lazy import lazy_imports
from gpudoctor.probes.runner.launch_engine import MAX_RANKS, LocalPlacement
from gpudoctor.process.exit_codes import FailOn
from gpudoctor.process.signals import InterruptedBySignal
from gpudoctor.text.output import printable
from gpudoctor.text.units import rfc3339

with lazy_imports():
    from gpudoctor.api.load import burn, measure, storage
    from gpudoctor.checks.core import cuda_device_list
    from gpudoctor.facts import collect
    from gpudoctor.facts.captures import source as capture
    from gpudoctor.facts.redaction import redact
    from gpudoctor.facts.simulated import load as simulated_nodes
    from gpudoctor.probes.runner import local_workers
    from gpudoctor.report import judge
    from gpudoctor.report import model as report_model

if TYPE_CHECKING:
    from pathlib import Path

    from gpudoctor.report.model import Report

HoldSignals = Callable[[InterruptedBySignal | None], list[int]]
_SHOWS_WORDS = "reported.failures"
_CHOICES = {"level": LEVELS, "backend": ("auto", "nccl", "gloo"), "fail_on": get_args(FailOn)}


class CheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `gpudoctor check`; None takes the value of the configuration.

    `only` names checks (ids, domains, globs; empty: all). `duration` is that of a burn ("10m"). `data` are paths on
    this machine that training reads from; `need` is the rate at which each GPU must be fed ("400MB/s"). `strict`
    refuses a configuration with keys and names that this version does not know, which are left out otherwise. Raise
    UserError for a value that the option would not accept.
    """

    node: str | None = None
    faults: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    level: Level | None = None
    duration: str | None = None
    gpu: str | None = None
    backend: Backend | Literal["auto"] = "auto"
    ranks: int | None = None
    inject: tuple[str, ...] = ()
    force: bool = False
    data: tuple[str, ...] = ()
    need: str | None = None
    profile: str | None = None
    config: Path | None = None
    strict: bool = False
    deadline_s: float | None = None
    fail_on: FailOn | None = None
    include_facts: bool = False
    redact: bool = False

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in choices:
                raise UserError(f"{name} {_shown(value)}: one of {', '.join(choices)} is wanted")
        for name in ("node", "gpu", "profile", "need"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise UserError(f"{name} {_shown(value)}: text is wanted")
        for name in ("faults", "only", "skip", "require", "inject", "data"):
            for word in getattr(self, name):
                if not isinstance(word, str):
                    raise UserError(f"{name} {_shown(word)}: text is wanted")
        if self.ranks is not None and not (isinstance(self.ranks, int) and 1 <= self.ranks <= MAX_RANKS):
            raise UserError(f"ranks {_shown(self.ranks)}: a number from 1 to {MAX_RANKS} is wanted")
        limit_s = self.deadline_s
        if limit_s is not None and not (isinstance(limit_s, int | float) and 0 < limit_s < 86400):
            raise UserError(f"deadline_s {_shown(limit_s)}: seconds above 0 and below 86400 are wanted")

    @property
    def load(self) -> LoadRequest:
        """The part of the request that decides what is put under load."""
        need = None if self.need is None else need_gb_s(self.need)
        data = absolute_paths(self.data)
        return LoadRequest(self.backend, self.gpu, self.ranks, self.inject, self.force, data, need)


class Sourced(msgspec.Struct, frozen=True):
    """The facts of a source, and the measurements if the source is a saved report."""

    node: Node
    measurements: Measurements | None = None


class Prepared(msgspec.Struct, frozen=True):
    """A request merged with the configuration. `checks` will run; `left_out` are reported as skipped.

    `burn_s`: duration of a burn in seconds; `wants_ranks`: whether any selected check puts load on the node.
    `started_s` is in seconds since 1970, `began_s` on the monotonic clock. `notes` appear in the report.
    """

    request: CheckRequest
    config: Config
    checks: tuple[Check, ...]
    left_out: tuple[Check, ...]
    required: tuple[str, ...]
    level: Level
    burn_s: float | None
    wants_ranks: bool
    started_s: float
    began_s: float
    notes: tuple[str, ...] = ()

    @property
    def deadline_s(self) -> float:
        """Time limit for reading the facts, in seconds."""
        return self.request.deadline_s or self.config.deadline_s


def prepare(request: CheckRequest) -> Prepared:
    """Resolve the checks, level and limits of a request. Raise UserError for unknown names and missing data."""
    started_s, began_s = time.time(), time.monotonic()
    checks = all_checks(request.level or "burn")
    notes: list[str] = []
    # A user's configuration on a dead mount may be skipped with a note only if all checks of this machine run: then
    # storage.mount is unknown for the same HOME, so that its expectations are not dropped silently.
    some = any((request.node, request.only, request.skip, os.environ.get("XDG_CONFIG_HOME")))
    newer = None if request.strict else lambda line: notes.append(f"WARN configuration: {line}")
    silent = None if some else notes.append
    config = load_config(request.config, os.environ, all_checks, silent=silent, left_out=newer)
    required = (*config.require, *request.require)
    if request.node is None:
        _refuse_sources(request.only, checks)
    named = select(checks, request.only, required=required)
    # required checks run even if not named: a check that did not run has no verdict
    chosen = tuple(c for c in checks if c in named or any(matches(c, word) for word in required))
    level = request.level or _level_for(request.only, checks, config.level)
    skipped = (*config.skip, *request.skip)
    select(checks, skipped=skipped)  # raises UserError for a word that matches no check
    left_out = tuple(c for c in chosen if any(matches(c, word) for word in skipped))
    asked = tuple(c for c in chosen if c not in left_out)
    has_duration = request.duration is not None or level == "burn"
    burn_s = burn.burn_duration_s(request.duration, level, config.burn_duration_s) if has_duration else None
    wants_ranks = level != "quick" and measure.puts_load(asked, level)
    if request.load.data:
        storage.refuse_data(request.load, elsewhere=request.node is not None)
    return Prepared(
        request, config, asked, left_out, required, level, burn_s, wants_ranks, started_s, began_s, tuple(notes)
    )


def _refuse_sources(names: Iterable[str], checks: Iterable[Check]) -> None:
    """Raise UserError if the name of a file or a simulated node stands where checks are named."""
    checks = tuple(checks)
    domains = {check.domain for check in checks}
    for word in names:
        if any(matches(check, word) for check in checks):
            continue
        is_path = "/" in word or ("." in word and word.partition(".")[0] not in domains)
        if is_path or word in simulated_nodes.node_names():
            hint = f"to judge a text, a folder or a simulated node: --node {word}"
            raise UserError(f"no check is called {word!r}; {hint}")


def run_prepared(
    prep: Prepared,
    *,
    argv: Iterable[str] = (),
    placement: LocalPlacement | None = None,
    visible: tuple[str | None, ...] = (),
    progress: Callable[[str], None] | None = None,
    hold_signals: HoldSignals | None = None,
    words: bool = False,
) -> Report:
    """Read the facts, run the probes and judge both. Raise UserError if that is not possible.

    `words`: a text about a node in which nothing is understood is unknown and quoted, not refused.
    `placement`: this process is the first of several that an engine started here; the others host ranks. `visible`: the
    CUDA_VISIBLE_DEVICES of all processes that the verdict is for; the GPUs of all of them are judged. `progress` is
    called with a line for people now and then. `hold_signals` defers signals and returns those that arrived: the
    report is then partial. Without it an exception such as KeyboardInterrupt propagates; no process is left behind.
    """
    # imported here, while the driver is being read, which takes as long
    import gpudoctor.report.judge  # noqa: F401

    request = prep.request
    workers = None
    if placement is not None and prep.wants_ranks:
        workers = local_workers.LocalWorkers(placement)
    sourced = unread = Sourced(nothing_read(request.node))
    measurements: Measurements | None = None
    partial: list[Measurements] = []
    half_read: list[Node] = []
    try:
        sourced = _read(prep, progress, half_read.append, words=words)
        if request.gpu is None and (gpus := cuda_device_list.shown_to_any(visible, sourced.node)) is not None:
            request = msgspec.structs.replace(request, gpu=gpus)
            prep = msgspec.structs.replace(prep, request=request)
        load = request.load
        measurements = sourced.measurements if request.backend == "auto" else None
        if measurements is None:
            measurements = _measured(prep, sourced.node, load, progress, partial.append, workers)
        if load.need_gb_s is not None:  # a saved run is judged against the rate given now
            measurements = msgspec.structs.replace(measurements, data_need_gb_s=load.need_gb_s)
        signals = hold_signals(None) if hold_signals else []
    except InterruptedBySignal as stop:
        if hold_signals is None:
            raise
        signals = hold_signals(stop)
        was_reading_text = sourced is unread and request.node is not None
        sourced = Sourced(half_read[0]) if half_read else sourced
        measurements = partial[0] if partial else Measurements()
        if not was_reading_text:  # no load was near
            measurements = measure.cut_short(measurements, f"interrupted by {stop}")
    if workers is not None and not signals:
        workers.end()
    return report_on(prep, sourced.node, measurements, argv=argv, signals=signals)


def _read(
    prep: Prepared,
    progress: Callable[[str], None] | None,
    on_interrupt: Callable[[Node], None],
    *,
    words: bool,
) -> Sourced:
    request = prep.request
    try:
        return read_source(
            request.node,
            request.faults,
            prep.deadline_s,
            progress=progress,
            on_interrupt=on_interrupt,
            data=request.load.data,
            source_deadline_s=request.deadline_s,
        )
    except UserError as error:
        words = words and any(check.id == _SHOWS_WORDS for check in prep.checks)
        if not words or request.faults or request.redact or not isinstance(error, capture.NotUnderstoodError):
            raise
        return Sourced(error.node)


def _measured(
    prep: Prepared,
    node: Node,
    load: LoadRequest,
    progress: Callable[[str], None] | None,
    on_interrupt: Callable[[Measurements], None],
    workers: local_workers.LocalWorkers | None,
) -> Measurements:
    """What the probes of this level measure. `on_interrupt` is called with what is known if an exception ends it."""
    level, checks = prep.level, prep.checks
    if level == "quick" and load.backend == "auto" and not load.inject:  # others are refused, or have their reason
        return not_run(Missing("level quick puts no load on the node"))
    measurements = measure.measure(
        node,
        checks,
        level,
        load,
        progress=progress,
        on_interrupt=on_interrupt,
        duration_s=prep.burn_s,
        workers=workers,
    )
    on_interrupt(measurements)
    measurements = burn.count_again(node, measurements, prep.deadline_s, progress)
    return storage.with_storage(node, measurements, checks, level, load, progress)


def report_on(
    prep: Prepared,
    node: Node,
    measurements: Measurements | None,
    *,
    argv: Iterable[str] = (),
    signals: list[int] | None = None,
) -> Report:
    """The report of what was read and measured; `signals` that arrived, or arrive meanwhile, mark it as interrupted."""
    request, config = prep.request, config_of_host(prep.config, known(node.host.hostname))
    question = judge.Question(
        checks=prep.checks,
        left_out=prep.left_out,
        required=prep.required,
        level=prep.level,
        gpu=request.gpu,
        profile=request.profile or (None if config.profile == "auto" else config.profile),
        fail_on=request.fail_on or config.fail_on,
        expect=config.expect,
        limit_overrides=threshold_overrides(config),
        suppress=config.suppress,
    )
    run = report_model.Run(
        id=str(uuid.uuid4()),
        started_at=rfc3339(prep.started_s),
        duration_s=round(time.monotonic() - prep.began_s, 3),
        level=prep.level,
        source=report_model.SourceSummary(node.source.kind, node.source.name, node.source.faults),
        argv=tuple(argv),
        notes=prep.notes,
    )
    report = judge.judge(node, measurements, question, run=run, include_facts=request.include_facts)
    if signals:
        stop = InterruptedBySignal(signals[0])
        run = msgspec.structs.replace(report.run, interrupted=str(stop))
        report = msgspec.structs.replace(report, run=run, exit_code=stop.exit_code)
    if request.redact:
        report = redact.Redaction(node).of(report)
    return report


def read_source(
    name: str | None,
    faults: Iterable[str],
    deadline_s: float,
    *,
    progress: Callable[[str], None] | None = None,
    on_interrupt: Callable[[Node], None] | None = None,
    data: tuple[str, ...] = (),
    source_deadline_s: float | None = None,
) -> Sourced:
    """The facts of this machine (`name` is None) or of a source, with faults applied to them. Raise UserError.

    `progress` is called with a line for people now and then; `on_interrupt` with what is known of this machine when
    an exception ends the reading; `data` are paths on this machine that training reads from. `source_deadline_s`
    limits the reading of texts, if somebody asked for a limit.
    """
    faults = list(faults)
    if name is None:
        if faults:
            raise UserError("--fault is for simulated nodes and captures: name one with --node (see: gpudoctor nodes)")
        node = collect.collect_live(deadline_s=deadline_s, progress=progress, on_interrupt=on_interrupt, data=data)
        return Sourced(node)
    loaded = capture.load_source(name, deadline_s=source_deadline_s, progress=progress)
    if not faults:
        return Sourced(loaded.node, loaded.measurements)
    # measurements of the healthy node are no evidence about the broken one
    return Sourced(simulated_nodes.apply_faults(loaded.node, faults))


def nothing_read(name: str | None) -> Node:
    """An empty node for a source that has not been read yet."""
    return Node(source=Source(kind="live" if name is None else "facts", name=printable(name or "")))


def _level_for(only: Iterable[str], checks: Iterable[Check], usual: Level) -> Level:
    """The usual level; full if the usual one is standard and one of the words names only checks that need full.

    A configured level of quick means no load, and a burn must be requested explicitly.
    """
    levels = ({check.level for check in checks if matches(check, word)} for word in only)
    return "full" if usual == "standard" and any(each == {"full"} for each in levels) else usual


def _shown(value: object) -> str:
    return printable(repr(value))[:60]
