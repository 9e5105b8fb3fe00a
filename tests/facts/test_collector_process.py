"""The collector as a process: how it is started, what it may import, and what ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.collect import collect_live
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Host
from gpudoctor.facts.nvml.spawn import DriverProcess
from gpudoctor.testing import fake_nvml
from gpudoctor.testing.fake_nvml import FakeNvml, Script, ScriptedFault, from_file, write_script
from tests.checks.one_check import judge
from tests.conftest import ROOT
from tests.facts.live_nodes import as_read, collect
from tests.facts.nvml_nodes import make_node
from tests.imported_torch import own_children

pytestmark = pytest.mark.usefixtures("no_process_stays")


@pytest.mark.wide(every=2)
@pytest.mark.parametrize(("maker", "words"), [("garbled", "no message"), ("killed", "died by SIGKILL")])
def test_a_collector_that_is_killed_or_garbled_is_a_failure_and_not_the_drivers(
    root: Path, maker: str, words: str
) -> None:
    node = collect(root, make_node(1), maker=f"tests.facts.broken_drivers:{maker}")
    assert node.driver.unanswered == ()
    assert isinstance(node.driver.init_code, Missing)
    assert node.driver.init_code.kind == "failed"
    assert words in node.driver.init_code.reason
    assert node.gpus == ()


def dying(number: signal.Signals) -> Callable[[str], FakeNvml]:
    """A driver that kills the process with this signal in the calls in which the script has a crash."""

    def make(path: str) -> FakeNvml:
        def die(_: int) -> None:
            os.kill(os.getpid(), number)
            threading.Event().wait()

        vars(fake_nvml)["ctypes"] = SimpleNamespace(string_at=die)
        return from_file(path)

    return make


by_sigkill, by_sigabrt, by_sigterm = dying(signal.SIGKILL), dying(signal.SIGABRT), dying(signal.SIGTERM)
DRAW = "nvmlDeviceGetTemperature"


@pytest.mark.wide(every=2)
@pytest.mark.parametrize(("name", "status"), [("SIGKILL", Status.UNKNOWN), ("SIGABRT", Status.FAIL)])
def test_a_collector_that_dies_in_a_call_names_that_call_and_gpu_and_keeps_the_other(
    root: Path, name: str, status: Status
) -> None:
    told = make_node(2)
    # it waits until the other GPU is done
    slow, crash = ScriptedFault(DRAW, gpu=1, delay_s=1.0), ScriptedFault(DRAW, gpu=1, crash=True)
    maker = f"tests.facts.test_collector_process:by_{name.lower()}"
    node = collect(root, told, slow, crash, maker=maker)
    (died,) = node.driver.unanswered
    assert (died.call, died.gpu, died.reason) == (DRAW, 1, f"the collector died by {name} in {DRAW}")
    assert as_read(node.gpus[0]) == told.gpus[0]
    assert isinstance(node.gpus[1].thermal.gpu_c, Missing)
    [finding] = judge("driver.responsive", node).findings
    assert finding.status is status, "memory that ran out kills like an Oops does, and is no fault of the driver"
    assert f"the collector died by {name} in {DRAW} on GPU 1" in str(finding.found or finding.reason)
    assert "did not return" not in str(finding.evidence)


@pytest.mark.wide(every=2)
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_gpus_that_a_dead_collector_did_not_reach_are_not_called_lost(root: Path, name: str) -> None:
    # the last memory of a container was taken while the GPUs woke: all eight were to be power-cycled
    wakes = "nvmlDeviceGetHandleByIndex"
    # it waits until the other GPU is done
    slow, crash = ScriptedFault(wakes, gpu=1, delay_s=1.0), ScriptedFault(wakes, gpu=1, crash=True)
    maker = f"tests.facts.test_collector_process:by_{name.lower()}"
    node = collect(root, make_node(2), slow, crash, maker=maker)
    assert node.driver.handle_errors == ()
    assert [words.partition(":")[0] for words in node.driver.unread_handles] == ["GPU 1"]
    for check in ("gpu.lost", "driver.responsive"):
        result = judge(check, node)
        assert result.status is Status.UNKNOWN
        assert f"died by {name}" in " ".join(str(finding.reason) for finding in result.findings)


@pytest.mark.wide
def test_where_nobody_knows_in_which_call_it_was_killed_no_gpu_is_convicted(root: Path) -> None:
    hang, crash = ScriptedFault(DRAW, gpu=0, hang=True), ScriptedFault(DRAW, gpu=1, crash=True)
    slow = ScriptedFault(DRAW, gpu=1, delay_s=1.0)
    node = collect(root, make_node(2), hang, slow, crash, maker="tests.facts.test_collector_process:by_sigkill")
    (died,) = node.driver.unanswered
    assert died.gpu is None
    assert f"{DRAW} on GPU 0, {DRAW} on GPU 1" in died.reason


def test_a_collector_that_somebody_asked_to_end_is_no_fault_of_the_driver(root: Path) -> None:
    crash = ScriptedFault(DRAW, gpu=1, crash=True)
    node = collect(root, make_node(2), crash, maker="tests.facts.test_collector_process:by_sigterm")
    assert node.driver.unanswered == ()
    assert isinstance(node.driver.calls, Missing)
    assert node.driver.calls == Missing("the collector died by SIGTERM", "failed")


def test_a_collector_that_the_kernel_does_not_let_go_is_never_waited_for(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = DriverProcess.start
    with monkeypatch.context() as patched:

        def deaf(*asked: Any) -> DriverProcess:
            process = start(*asked)
            patched.setattr(process._process, "send", lambda number, group: True)  # as in state D
            return process

        patched.setattr(DriverProcess, "start", deaf)
        node = collect(root, make_node(2), ScriptedFault(DRAW, gpu=1, hang=True), call_deadline_s=0.5)
    [stuck] = own_children()
    assert stuck.is_running()
    assert [(call.call, call.gpu) for call in node.driver.unanswered] == [(DRAW, 1)]
    stuck.kill()
    os.waitpid(stuck.pid, 0)


def test_where_no_process_can_be_started_the_driver_is_unknown_and_the_host_is_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with monkeypatch.context() as patched:
        patched.setattr("sys.executable", "/nowhere/python")
        node = collect_live(root)
    assert isinstance(node.driver.calls, Missing)
    assert node.driver.calls.kind == "failed"
    assert "could not be started" in node.driver.calls.reason
    assert node.host != Host()
    assert len(list(Path("/proc/self/fd").iterdir())) == before, "a file was left open"


def test_shared_memory_without_a_name_is_not_needed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    told = make_node(1)
    assert as_read(collect(root, told).gpus[0]) == told.gpus[0]


def test_modules_in_the_working_directory_are_not_imported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pynvml", "msgspec", "json"):
        (root / f"{name}.py").write_text("raise SystemExit('posing as another module')\n")
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "path", ["", str(root), *sys.path])
    told = make_node(1)
    assert as_read(collect(root, told).gpus[0]) == told.gpus[0]


def run_parent(root: Path, code: str, *faults: ScriptedFault) -> subprocess.Popen[str]:
    spec = write_script(root.parent / "script.json", Script(make_node(2), faults))
    program = f"from gpudoctor.facts.collect import collect_live\nfrom pathlib import Path\n{code}"
    argv = [sys.executable, "-c", program, str(root), spec]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environ, cwd=root)


def test_the_parent_imports_neither_the_binding_nor_torch(root: Path) -> None:
    code = (
        "import sys, json\n"
        "node = collect_live(Path(sys.argv[1]), nvml_module=sys.argv[2])\n"
        "print(json.dumps([len(node.gpus), [m for m in ('pynvml', 'torch', 'psutil', 'rich') if m in sys.modules]]))\n"
    )
    with run_parent(root, code) as parent:
        told, _ = parent.communicate(timeout=60)
    assert json.loads(told) == [2, []]


def test_a_collector_does_not_outlive_a_parent_that_is_killed(root: Path) -> None:
    code = (
        "import sys\n"
        "say = lambda words: print(words, flush=True)\n"
        "collect_live(Path(sys.argv[1]), 60.0, 60.0, progress=say, nvml_module=sys.argv[2])\n"
    )
    hang = ScriptedFault("nvmlDeviceGetName", hang=True)
    with run_parent(root, code, hang) as parent:
        assert parent.stdout is not None
        for line in parent.stdout:
            if line.startswith("reading GPUs"):
                break
        collectors = psutil.Process(parent.pid).children()
        assert len(collectors) == 1
        parent.kill()
        gone, alive = psutil.wait_procs(collectors, timeout=20)
        assert (gone, alive) == (collectors, [])
