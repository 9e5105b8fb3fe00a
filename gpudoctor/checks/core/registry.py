"""The registry of checks: @check registers one, `registry()` returns ours, `all_checks()` also those of plugins.

`select()` returns some. Plugins are other packages, found by the entry point group `gpudoctor.checks`. Domains list
their checks above level quick in `CHECKS`, so that level quick does not import them: no module of a domain that has no
others, and not the module of the check's name in the rest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from importlib.machinery import all_suffixes
from typing import Literal, Protocol

import msgspec

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import Finding
from gpudoctor.errors import UserError, nearest_names
from gpudoctor.facts.model.driver import HostEventKind, KernelEventKind

Level = Literal["quick", "standard", "full", "burn"]
LEVELS: tuple[Level, ...] = ("quick", "standard", "full", "burn")
# what a bad finding of a check means for a training on this node, for `gpudoctor plan`
Impact = Literal[
    "no-work",  # the GPU takes none
    "wrong-results",  # it may fail, or compute what is wrong
    "slow-gpu",  # every step waits for it
    "slow-host-link",  # copies between it and RAM take longer, and what passes through RAM
    "slow-collectives",  # the GPUs exchange data more slowly
    "unequal-gpus",  # all wait for the slowest, and use no more memory than the smallest has
    "memory-taken",  # a program holds memory that a plan counts on
    "costs",  # speed or start-up time, see its page
]
CheckFunction = Callable[[Case], Iterator[Finding]]
# The domains in the order of a report, with the order of their checks; a check that is not listed follows, by id
READING_ORDER: dict[str, tuple[str, ...]] = {
    "reported": (),
    "driver": ("responsive", "loaded", "version-match", "fabric-manager"),
    "gpu": (
        "count", "identical", "lost", "ecc", "temperature", "memory-repair", "inforom", "throttle", "power-limit",
        "clocks", "xid", "settings", "in-use",
    ),
    "pcie": ("link-width", "link-speed", "balance", "errors", "upstream", "acs"),
    "nvlink": ("links", "errors", "fabric", "topology"),
    "topology": (),
    "host": ("ram-per-gpu", "cpu-per-gpu", "shm", "limits", "kernel"),
    "storage": ("mount", "space", "read"),
    "env": ("cuda-visible-devices", "frameworks", "nccl", "torch"),
    "network": ("infiniband", "adapters"),
    "collective": ("correct", "bandwidth", "pairs"),
    "link": ("host", "peer"),
    "compute": ("exact", "pattern", "gemm", "memory"),
    "train": ("sync", "balance", "memory", "scaling", "bucket", "utilization"),
    "strategy": (
        "ddp", "dp", "zero1", "fsdp", "fsdp1", "checkpointing", "tensor", "pipeline", "3d", "deepspeed", "tensorflow",
    ),
    "data": (),
    "burn": ("drift", "counters"),
}  # fmt: skip
DOMAINS = tuple(READING_ORDER)
GROUP = "gpudoctor.checks"
_checks: dict[str, Check] = {}


class Check(msgspec.Struct, frozen=True):
    """A named pure function and its metadata.

    `needs_gpu`: the runner skips the check if there is no GPU in the facts. `limits` are its thresholds.
    `page` is the text of the check's page, if there is no page file next to its module. `impact` is what a bad
    finding means for a training; None: nothing in particular. `explains` is what a bad finding explains. `events` are
    the kinds of kernel log lines that only this check judges: if it only skips, and the driver shows no GPU, they
    make it `unknown`.
    """

    id: str
    title: str
    level: Level
    function: CheckFunction
    needs_gpu: bool = True
    limits: Mapping[str, Limit] = {}
    page: str | None = None
    impact: Impact | None = None
    explains: tuple[Explains, ...] = ()
    events: tuple[KernelEventKind | HostEventKind, ...] = ()

    @property
    def domain(self) -> str:
        return self.id.partition(".")[0]

    def runs_at(self, level: Level) -> bool:
        """Whether a run of this level, which has all of the levels below it, runs the check."""
        return LEVELS.index(self.level) <= LEVELS.index(level)


class DuplicateCheckError(Exception):
    """Two checks register the same id: a defect of a check package, not a user error."""


def check(
    id: str,
    *,
    title: str | None = None,
    level: Level = "quick",
    needs_gpu: bool = True,
    limits: Iterable[Limit] = (),
    page: str | None = None,
    impact: Impact | None = None,
    explains: Iterable[str | Explains] = (),
    events: Iterable[KernelEventKind | HostEventKind] = (),
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check as `domain.name`; a second one with the same id raises DuplicateCheckError.

    Without a title, it and the level are those in `CHECKS` of the domain's package (else KeyError); one of its ids with
    a title of its own is a second check, even while the first is not imported. `limits` are its thresholds, each
    with a name. `explains` holds checks (ids or globs) whose bad findings on the same GPU follow from a bad one of this
    check, or `Explains` for finer conditions. `events` are the kinds of kernel log lines that no other check judges.
    """
    explains = tuple(explains)
    plain = tuple(each for each in explains if isinstance(each, str))
    declared = (*(each for each in explains if isinstance(each, Explains)), *([Explains(plain)] if plain else []))
    by_name = {limit.name: limit for limit in limits}
    domain = id.partition(".")[0]
    listed = _listed(domain) if domain in DOMAINS else {}
    if title is None:
        level, title = listed[id]
    elif id in listed:
        raise DuplicateCheckError(f"{id} is registered by gpudoctor.checks.{domain} already")

    def register(function: CheckFunction) -> CheckFunction:
        if id in _checks and _checks[id].function.__module__ != function.__module__:
            raise DuplicateCheckError(f"{id} is registered by {_checks[id].function.__module__} already")
        _checks[id] = Check(id, title, level, function, needs_gpu, by_name, page, impact, declared, tuple(events))
        return function

    return register


def registry(level: Level = "burn") -> tuple[Check, ...]:
    """Every registered check, by domain and in reading order; those without a place in it come last.

    For a run of level quick, those that it only lists as skipped have nothing but id, title and level.
    """
    _import_builtin_checks(level)
    outlines = {
        name: Check(name, title, own, _not_imported)
        for domain in DOMAINS
        for name, (own, title) in (_listed(domain).items() if level == "quick" else ())
    }
    return tuple(sorted({**outlines, **_checks}.values(), key=_place))


def _listed(domain: str) -> Mapping[str, tuple[Level, str]]:
    """Level and title of each check of a domain that a quick run need not import; none for other domains."""
    return getattr(import_module(f"gpudoctor.checks.{domain}"), "CHECKS", {})


def _not_imported(case: Case) -> Iterator[Finding]:
    raise AssertionError("a check above level quick was run without its module")


@cache
def _import_builtin_checks(level: Level) -> None:
    """Import every module in the domain folders that this level needs: importing registers its checks.

    pkgutil could list them, but it imports inspect, which costs start-up time that a Slurm prolog waits for.
    """
    suffixes = tuple(all_suffixes())
    for domain in DOMAINS:
        folder = import_module(f"gpudoctor.checks.{domain}")
        above = {each.partition(".")[2] for each in _listed(domain)} if level == "quick" else set()
        if above and above.issuperset(READING_ORDER[domain]):
            continue
        names = {file.partition(".")[0] for file in os.listdir(folder.__path__[0]) if file.endswith(suffixes)}  # noqa: PTH208
        for name in sorted(names - {"__init__"} - {name.replace("-", "_") for name in above}):
            if name.isidentifier():  # skips editor locks (.#xid.py) and the macOS files ._xid.py
                import_module(f"{folder.__name__}.{name}")


def _place(check: Check) -> tuple[int, str, int, str]:
    domain = DOMAINS.index(check.domain) if check.domain in DOMAINS else len(DOMAINS)
    _, _, name = check.id.partition(".")
    names = READING_ORDER.get(check.domain, ())
    return domain, check.domain, names.index(name) if name in names else len(names), check.id


def impact_of(check_id: str) -> Impact | None:
    """What a bad finding of a registered check means for a training; None if not declared or not registered."""
    return _checks[check_id].impact if check_id in _checks else None


class _HasCheckId(Protocol):
    """A check or a check result."""

    @property
    def id(self) -> str: ...

    @property
    def domain(self) -> str: ...


def matches(check: _HasCheckId, word: str) -> bool:
    """Whether `word` (an id, a domain or a glob) names this check."""
    return word in (check.id, check.domain) or fnmatchcase(check.id, word)


def select(
    checks: Iterable[Check], named: Iterable[str] = (), skipped: Iterable[str] = (), required: Iterable[str] = ()
) -> tuple[Check, ...]:
    """The wanted checks (all if none is named) without the skipped ones.

    Raise UserError for a word that matches no check, with the nearest names.
    """
    everything = tuple(checks)
    named, skipped = tuple(named), tuple(skipped)
    for word in (*named, *skipped, *required):
        if not any(matches(c, word) for c in everything):
            hint = "; blanks part the names of checks" if "," in word else _nearest(word, everything)
            raise UserError(f"no check is called {word!r}{hint}")
    chosen = [c for c in everything if not named or any(matches(c, w) for w in named)]
    return tuple(c for c in chosen if not any(matches(c, s) for s in skipped))


def _nearest(word: str, checks: Iterable[Check]) -> str:
    names = [c.id for c in checks] + sorted({c.domain for c in checks})
    close = nearest_names(word, names, 3, 0.5) or [n for n in names if n.endswith("." + word)][:3]
    return f"; did you mean {' or '.join(close)}?" if close else "; see: gpudoctor list"


def all_checks(level: Level = "burn") -> tuple[Check, ...]:
    """The built-in checks and those of every installed plugin (importing a plugin registers them), see `registry`.

    Raise UserError for a plugin that cannot be loaded: a check that is silently missing would be a false OK.
    """
    if any(_declares_checks(folder) for folder in sys.path):
        from importlib.metadata import entry_points

        _import_builtin_checks(level)  # first: an id that is taken twice is the plugin's mistake
        for point in entry_points(group=GROUP):
            try:
                point.load()
            except (ImportError, AttributeError, SyntaxError, DuplicateCheckError) as error:
                raise UserError(f"plugin {point.name} ({point.value}) cannot be loaded: {error}") from None
    return registry(level)


def _declares_checks(folder: str) -> bool:
    """Whether a distribution in this folder of sys.path declares the entry point group.

    importlib.metadata could answer this, but importing it costs a third of a quick check, and few nodes have a plugin.
    """
    try:
        with os.scandir(folder or ".") as entries:
            return any(
                _contains(f"{entry.path}/entry_points.txt", b"[%s]" % GROUP.encode())
                for entry in entries
                if entry.name.endswith((".dist-info", ".egg-info"))
            )
    except OSError:
        return False


def _contains(path: str, word: bytes) -> bool:
    # not `open`: it makes six more system calls a file, and there are a hundred distributions beside torch
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        found, part = b"", os.read(file, 1 << 16)
        while part:
            found += part
            part = os.read(file, 1 << 16)
        return word in found
    except OSError:
        return False
    finally:
        os.close(file)
