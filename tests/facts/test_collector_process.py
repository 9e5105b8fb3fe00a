"""The collector as a process: how it is started, what it may import, and what ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gpudoctor.facts.collect import collect_live
from gpudoctor.facts.missing import Missing
from gpudoctor.facts.node import Host
from gpudoctor.testing.fake_nvml import FakeNvml, Fault, Script, from_file, write_script
from tests.conftest import ROOT
from tests.facts.live_nodes import as_read, collect
from tests.facts.nvml_nodes import make_node, make_root

pytestmark = pytest.mark.usefixtures("no_process_stays")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "root")


def garbled(path: str) -> FakeNvml:
    """A driver that writes into a file that is not its own."""
    order = json.loads(sys.argv[1])
    os.write(order["pipe"], b"NVRM: \xff\n")
    return from_file(path)


def killed(path: str) -> FakeNvml:
    """A process that runs out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return from_file(path)


@pytest.mark.parametrize(("maker", "words"), [("garbled", "no message"), ("killed", "died by SIGKILL")])
def test_a_collector_that_is_killed_or_garbled_is_a_failure_and_not_the_drivers(
    root: Path, maker: str, words: str
) -> None:
    node = collect(root, make_node(1), maker=f"tests.facts.test_collector_process:{maker}")
    assert node.driver.unanswered == ()
    assert isinstance(node.driver.init_code, Missing)
    assert node.driver.init_code.kind == "failed"
    assert words in node.driver.init_code.reason
    assert node.gpus == ()


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


def run_parent(root: Path, code: str, *faults: Fault) -> subprocess.Popen[str]:
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
    hang = Fault("nvmlDeviceGetName", hang=True)
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
