"""What every test may use."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from gpudoctor.checks.core import registry as check_registry
from tests.golden_files import ACCEPT

ROOT = Path(__file__).parent.parent
PINNED_CHECKS = Path(__file__).parent / "golden" / "pinned_checks.txt"

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # a test run under nohup: what the tests start would ignore it too
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # the same for a test run in the background of a shell script
    signal.signal(signal.SIGINT, signal.default_int_handler)

# containers often forbid to keep what is compiled: each of thousands of processes would compile gpudoctor anew
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# the same inputs each time, and as long as it takes: make fuzz is where new ones are tried
settings.register_profile("gpudoctor", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gpudoctor")

# more than the slowest fixture takes to end what it has started
CLEAR_UP_S = 120.0


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """A test that was ended at its limit (`timeout` in pyproject.toml) may wait again in a `finally`: ended as well."""
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    if left_s:
        signal.setitimer(signal.ITIMER_REAL, left_s, CLEAR_UP_S)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """What fixtures wait for at the end has a limit of its own: of a test that has failed, its limit was taken away."""

    def late(*_: object) -> None:
        pytest.fail(f"to clear up after it took more than {CLEAR_UP_S:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, CLEAR_UP_S, CLEAR_UP_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """main() changes signals for its whole process: the next test, and what that starts, have them as they were."""
    numbers = signal.valid_signals() - {signal.SIGALRM}  # that is the limit's
    before = {number: signal.getsignal(number) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def pytest_collection_finish() -> None:
    """Take thousands of tests, which stay to the end, out of each garbage collection: a tenth of a test's time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def captures() -> Path:
    """The folder of real dumps; a test that wants it skips where it is absent."""
    folder = Path(os.environ.get("GPUDOCTOR_CAPTURES", ROOT.parent / "shared" / "captures"))
    if not folder.is_dir():
        pytest.skip(f"no captures at {folder}: set GPUDOCTOR_CAPTURES")
    return folder


@pytest.fixture
def pinned_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry holds the checks of golden/pinned_checks.txt alone: a new check changes no golden output."""
    checks = {check.id: check for check in check_registry.registry()}
    if ACCEPT:
        PINNED_CHECKS.write_text("".join(f"{check_id}\n" for check_id in checks))
    pinned = PINNED_CHECKS.read_text().split()
    monkeypatch.setattr(check_registry, "_checks", {check_id: checks[check_id] for check_id in pinned})
