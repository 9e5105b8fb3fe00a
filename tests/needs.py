"""What a test needs that not every machine has: the one place that skips for want of it, and says how to get it.

`@needs("slurmctld")` marks a test, and `@fixture_needs` every test that uses a fixture. A name is a program, a Python
module or a right of the tables below. `python -m tests.needs` prints the Debian packages that this machine lacks.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest

# Programs and their Debian packages: what .ci/run installs
PACKAGES = {
    **dict.fromkeys(("findmnt", "losetup", "nsenter", "prlimit", "setsid", "taskset", "unshare"), "util-linux"),
    **dict.fromkeys(("scontrol", "srun"), "slurm-client"),
    **dict.fromkeys(("ip", "tc"), "iproute2"),
    **dict.fromkeys(("prometheus", "promtool"), "prometheus"),
    **{name: name for name in ("bash", "chromium", "fio", "fish", "git", "make", "mount", "prometheus-node-exporter")},
    **{name: name for name in ("shellcheck", "slurmctld", "slurmd", "zsh")},
    "alertmanager": "prometheus-alertmanager",
    "cc": "gcc",
    "dpkg-deb": "dpkg",
    "fusermount3": "fuse3",
    "man": "man-db",
    "mkfs.ext4": "e2fsprogs",
    "mpirun": "openmpi-bin",
    "munged": "munge",
    "ps": "procps",
    "systemd-analyze": "systemd",
}
_BARE = {"bash", "cc", "git", "make"}  # what `make test` itself asks of a machine
_NAMES = {
    "alertmanager": ("prometheus-alertmanager", "alertmanager"),
    "cc": ("cc", "gcc", "clang"),
    "chromium": (os.environ.get("GPUDOCTOR_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome"),
    "fusermount3": ("fusermount3", "fusermount"),
    "prometheus-node-exporter": ("prometheus-node-exporter", "node_exporter"),
}
_MODULES = {
    *("aiohttp", "grafana_foundation_sdk", "kubernetes_validate", "mfusepy", "mkdocs", "numpy", "nvitop"),
    *("prometheus_client", "ray", "textual_serve", "torch", "zstandard"),
}
_PRIVILEGED = "as root, in a container with --privileged"
# Right or device -> whether it is there, or None if only trying shows it, and where it is
_OTHERS: dict[str, tuple[Callable[[], bool] | None, str]] = {
    "root": (lambda: os.geteuid() == 0, "as root"),
    "a user other than root": (lambda: os.geteuid() != 0, "as another user"),
    "/dev/full": (lambda: os.access("/dev/full", os.W_OK), "where /dev is complete"),
    "/dev/fuse": (lambda: os.access("/dev/fuse", os.R_OK | os.W_OK), _PRIVILEGED),
    "two processor cores": (lambda: len(os.sched_getaffinity(0)) > 1, "on a larger machine"),
    "no GPU": (lambda: not any(Path("/dev").glob("nvidia[0-9]*")), "on a machine without one"),
    "mounts": (None, _PRIVILEGED),
    "network namespaces": (None, _PRIVILEGED),
    "control groups": (None, _PRIVILEGED),
    "a running Slurm": (None, _PRIVILEGED),
    "kubectl": (lambda: find("kubectl") is not None, "from kubernetes.io/docs/tasks/tools"),
}
_PIP = "pip install -e '.[torch,dev]'"
FixtureFunction = TypeVar("FixtureFunction", bound=Callable[..., Any])
_fixtures: dict[Callable[..., Any], tuple[str, ...]] = {}
_TOOLS = ("gpustat", "zizmor")  # programs that pip installs beside Python
_REASON = "needs "


def find(name: str) -> str | None:
    """The path of a program under any of its names, beside Python or in the PATH."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    found = (shutil.which(each, path=path) for each in _NAMES.get(name, (name,)) if each)
    return next(filter(None, found), None)


def has(name: str) -> bool:
    """Whether this machine has it. KeyError for a name that no table holds."""
    if name in PACKAGES or name in _TOOLS:
        return find(name) is not None
    if name in _MODULES:
        return find_spec(name) is not None
    is_there = _OTHERS[name][0]
    return is_there is None or is_there()


def how_to_get(name: str) -> str:
    """A command, or where it is."""
    if name in PACKAGES:
        return f"apt-get install {PACKAGES[name]}"
    return _PIP if name in _MODULES or name in _TOOLS else _OTHERS[name][1]


def needs(*names: str) -> pytest.MarkDecorator:
    """Mark a test, or by `pytestmark` a file, that is skipped on a machine that lacks one of the names."""
    for name in names:
        how_to_get(name)
    return pytest.mark.needs(*names)


def fixture_needs(*names: str) -> Callable[[FixtureFunction], FixtureFunction]:
    """The same for all tests that use a fixture: below `@pytest.fixture`."""
    for name in names:
        how_to_get(name)

    def mark(function: FixtureFunction) -> FixtureFunction:
        _fixtures[function] = names
        return function

    return mark


def module(name: str) -> Any:
    """Import a module, or skip the test or the file."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing(str(error.name).partition(".")[0])


def missing(name: str, detail: object = "") -> NoReturn:
    """Skip here: the machine lacks `name`, and `detail` says how that was found."""
    reason = f"{_REASON}{name}: {how_to_get(name)}" + (f" ({detail})" if detail else "")
    raise pytest.skip.Exception(reason, allow_module_level=True)


def _skip_without(names: Iterable[str]) -> None:
    for name in names:
        if not has(name):
            missing(name)


def summary(reasons: Iterable[str]) -> str:
    """One line: what was missing, for how many tests, and how to get it. Empty if nothing was."""
    tests: dict[str, dict[str, int]] = {}
    for reason in reasons:
        if reason.startswith(_REASON):
            name = reason.removeprefix(_REASON).partition(": ")[0]
            counts = tests.setdefault("apt-get install" if name in PACKAGES else how_to_get(name), {})
            counts[name] = counts.get(name, 0) + 1
    parts = []
    for how, counts in tests.items():
        packages = sorted({PACKAGES[name] for name in counts}) if how == "apt-get install" else ()
        names = ", ".join(f"{name} ({count})" for name, count in counts.items())
        parts.append(f"{names}: {' '.join((how, *packages))}")
    return f"skipped for want of {'; '.join(parts)}" if parts else ""


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "needs(*names): skipped on a machine without these, see tests/needs.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`make test-engines`: only the tests that need an engine."""
    if "GPUDOCTOR_ENGINES" not in os.environ:
        return
    chosen = [item for item in items if not (PACKAGES.keys() - _BARE).isdisjoint(_needed(item))]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def _needed(item: pytest.Item) -> list[str]:
    marks = [name for mark in item.iter_markers("needs") for name in mark.args]
    info: Any = getattr(item, "_fixtureinfo", None)  # a test in a document has none
    definitions = info.name2fixturedefs.values() if info else ()
    return marks + [name for each in definitions for name in _fixtures.get(each[-1].func, ())]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture is made: nothing is left behind."""
    _skip_without(_needed(item))


def _reasons(config: pytest.Config) -> list[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", ()) if reporter else ()  # a worker of xdist has no reporter
    places = [report.longrepr for report in reports]  # (file, line, "Skipped: reason")
    return [str(place[2]).removeprefix("Skipped: ") for place in places if isinstance(place, tuple)]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The line at the end."""
    if line := summary(_reasons(config)):
        terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """`make test-engines` fails if an engine is still missing, unless ABSENT names its package."""
    absent = os.environ.get("GPUDOCTOR_ENGINES")
    if absent is None:
        return
    names = {reason.removeprefix(_REASON).partition(": ")[0] for reason in _reasons(session.config)}
    if {PACKAGES[name] for name in names & PACKAGES.keys()} - set(absent.split()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


if __name__ == "__main__":
    print(" ".join(sorted({package for name, package in PACKAGES.items() if not has(name)})))  # noqa: T201
