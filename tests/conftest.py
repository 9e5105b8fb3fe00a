"""Fixtures and limits of the whole suite."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from gpudoctor.checks.core import registry as check_registry
from gpudoctor.probes.runner import launch
from tests import needs
from tests.cli.conftest import gpudoctor
from tests.golden_files import ACCEPT
from tests.imported_torch import ForkedPython, ImportedTorch

__all__ = ["gpudoctor"]  # a fixture of all folders

ROOT = Path(__file__).parent.parent
PINNED_CHECKS = Path(__file__).parent / "golden" / "pinned_checks.txt"

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # started under nohup: processes that tests start would inherit the ignored signal
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # started in the background of a shell script: the same for Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

# containers often set PYTHONDONTWRITEBYTECODE: each of thousands of processes would compile gpudoctor again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# the same inputs every time, without a deadline; `make fuzz` tries new ones
settings.register_profile("gpudoctor", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gpudoctor")

# `make test` has a cheap representative of each behaviour and leaves out what is marked `wide`: whole matrices, and
# tests from end to end that take long. With GPUDOCTOR_WIDE=1, or if a test is named by `::`, nothing is left out
WIDE = os.environ.get("GPUDOCTOR_WIDE") == "1"
LEFT_OUT = pytest.StashKey[int]()
WIDE_MARKER = "wide(but=[ids], every=n): only `make test-wide` runs it, but for these cases or each n-th"
# What takes longest, first: no worker is to begin one of these files when the others are about to end. Those that wait
# (engines, limits of time) alternate with those that compute (ranks)
SLOWEST = (
    *("cluster/test_slurm", "probes/test_strategy_layers", "acceptance/test_run", "cli/test_probes"),
    *("probes/test_endings", "cluster/test_whole_job", "acceptance/test_cold_start", "plan/test_verification"),
    *("probes/test_storage_slow", "process/test_working_directory", "fake_driver/test_programs", "probes/test_engine"),
    *("facts/test_collect", "probes/test_strategies", "cluster/test_ray_job", "cli/test_data_loader"),
    *("agent/test_lifetime", "api/test_preflight", "facts/test_collector_ahead", "cli/test_redaction"),
    *("kubernetes/test_scripts", "checks/test_faults_matrix", "facts/test_error_cost", "probes/test_collectives"),
    *("tui/test_golden", "tui/test_hostile_text", "probes/test_injections", "tui/test_keys"),
    *("checks/test_missing_leaves", "tui/test_checks_pane", "tui/test_serve", "diagnose/test_bad_input"),
    *("cluster/test_channel", "plan/test_live_bytes", "docs/test_site", "tui/test_check_list", "agent/test_answers"),
    *("fake_driver/test_cache", "tui/test_app", "tui/test_state_bounds"),
)

# more than the slowest fixture needs to end the processes it started
TEARDOWN_LIMIT_S = 120.0


def pytest_configure(config: pytest.Config) -> None:
    """Tests of programs that this machine lacks are skipped, and wide ones left out."""
    config.pluginmanager.register(needs)
    config.addinivalue_line("markers", WIDE_MARKER)
    config.stash[LEFT_OUT] = 0


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Repeat the limit of a test (`timeout` in pyproject.toml), because its `finally` may wait again."""
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    if left_s:
        signal.setitimer(signal.ITIMER_REAL, left_s, TEARDOWN_LIMIT_S)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Limit the teardown too: pytest-timeout cancels its own limit when a test fails."""

    def late(*_: object) -> None:
        pytest.fail(f"its teardown took more than {TEARDOWN_LIMIT_S:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, TEARDOWN_LIMIT_S, TEARDOWN_LIMIT_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Restore signal handlers and mask, which main() changes for the whole process."""
    numbers = signal.valid_signals() - {signal.SIGALRM}  # SIGALRM belongs to the limits
    before = {number: signal.getsignal(number) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Collect no garbage while modules are imported, which leave none: a sixth of that time."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is wide; the slowest files first, in their order."""
    by_name = any("::" in arg for arg in config.args)
    _keep_representatives(items, all_cases=not by_name)
    if not WIDE and not by_name:
        wide = [item for item in items if item.get_closest_marker("wide")]
        config.stash[LEFT_OUT] = len(wide)
        config.hook.pytest_deselected(items=wide)
        items[:] = [item for item in items if not item.get_closest_marker("wide")]
    place = {ROOT / "tests" / f"{name}.py": number for number, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def _keep_representatives(items: list[pytest.Item], *, all_cases: bool) -> None:
    """Take the marker from the cases that `wide(but=[ids])` or `wide(every=8)` spares.

    UsageError for a case that does not exist.
    """
    cases: dict[str, dict[str, pytest.Item]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            cases.setdefault(item.nodeid.partition("[")[0], {})[item.callspec.id] = item
    for test, by_id in cases.items():
        mark = next(iter(by_id.values())).get_closest_marker("wide")
        if mark is None or not mark.kwargs:
            continue
        every = mark.kwargs.get("every")
        spared = list(by_id)[::every] if every else list(mark.kwargs["but"])
        if all_cases and (unknown := [case for case in spared if case not in by_id]):
            raise pytest.UsageError(f"{test}: wide(but=...) names no case: {unknown}")
        for case in set(spared) & by_id.keys():
            by_id[case].own_markers.remove(mark)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments}))
    return True


def pytest_collection_finish() -> None:
    """Exclude the collected tests, which stay until the end, from garbage collection: saves a tenth of the time.

    Of the rest nearly all is freed without it, and looking every 700 objects, as Python does, costs a tenth.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist tells how many tests it left out; each leaves out the same."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["wide"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The same, in the process that reports."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("wide", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line on what was left out."""
    if count := config.stash[LEFT_OUT]:
        terminalreporter.write_line(f"{count} wide tests left out: make test-wide runs them")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Look for no more garbage: pytest just did. It would again, and Python twice as it ends; each costs a second."""
    gc.freeze()


@pytest.fixture(scope="session")
def captures() -> Path:
    """The folder of real dumps; the test is skipped if it is absent."""
    folder = Path(os.environ.get("GPUDOCTOR_CAPTURES", ROOT.parent / "shared" / "captures"))
    if not folder.is_dir():
        pytest.skip(f"no captures at {folder}: set GPUDOCTOR_CAPTURES")
    return folder


@pytest.fixture(scope="session")
def imported_torch() -> Iterator[ImportedTorch]:
    """The process from which `forked_starters` forks."""
    process = ImportedTorch()
    yield process
    process.close()


@pytest.fixture(scope="session")
def forked_python(imported_torch: ImportedTorch) -> Callable[..., ForkedPython]:
    """forked_python(command, probes=(), ...): as subprocess.Popen, for programs whose ranks need torch."""
    return partial(ForkedPython, imported_torch)


@pytest.fixture(scope="module")
def forked_starters(imported_torch: ImportedTorch) -> Iterator[None]:
    """Ranks that this process starts on CPUs have torch already; those of processes that a test starts import it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "start", imported_torch.start)
        yield


@pytest.fixture
def pinned_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the registry to golden/pinned_checks.txt, so that a new check changes no golden output."""
    checks = {check.id: check for check in check_registry.registry()}
    if ACCEPT:
        PINNED_CHECKS.write_text("".join(f"{check_id}\n" for check_id in checks))
    pinned = PINNED_CHECKS.read_text().split()
    monkeypatch.setattr(check_registry, "_checks", {check_id: checks[check_id] for check_id in pinned})
