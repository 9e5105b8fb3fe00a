"""The collector that is forked before the checks are imported: it reads as one that is started later, and no sooner."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpudoctor.facts.nvml.fake_driver_context import write_fake_driver_context
from gpudoctor.testing.fake_nvml import Script, ScriptedFault, write_script
from gpudoctor.testing.run_program import find_compiler
from tests.conftest import ROOT
from tests.facts.nvml_nodes import make_node, make_root
from tests.needs import fixture_needs

GPUDOCTOR = (sys.executable, "-m", "gpudoctor")
QUICK = ("check", "--level", "quick", "--json")
DRAW = "nvmlDeviceGetTemperature"
# a driver library that reports when it is loaded; nvmlInit is what fails for its missing functions
LOADED = """
#include <fcntl.h>
#include <stdlib.h>
__attribute__((constructor)) static void loaded(void) { open(getenv("LOADED"), O_CREAT | O_WRONLY, 0600); }
"""
COLLECT = """
import json, sys
from pathlib import Path
from gpudoctor.facts.collect import collect_live
from gpudoctor.facts.model.node import to_json
from gpudoctor.facts.nvml.collector_ahead import order_ahead, start_ahead, take_ahead
def read():
    node = collect_live(Path(sys.argv[1]), 20.0, 5.0, nvml_module=sys.argv[2])
    sys.stdout.buffer.write(to_json(node) + b"\\n")
"""

Machine = tuple[dict[str, str], Path]
Program = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """program(words..., env={}): run it to its end; what it has started must have ended by then."""
    mark = str(uuid.uuid4())

    def run(*words: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[bytes]:
        whole = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {}), "AHEAD_TEST": mark}
        return subprocess.run(words, env=whole, capture_output=True, timeout=60, check=False, **options)

    yield run
    assert _marked(mark) == []


def _marked(mark: str) -> list[psutil.Process]:
    """The processes, of whatever parent, that carry the mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("AHEAD_TEST") == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
@fixture_needs("cc")
def machine(tmp_path: Path) -> Machine:
    """The environment of a machine whose kernel module is loaded, and the file that its driver library makes."""
    compiler = find_compiler(os.environ)
    libraries, fake_driver, loaded = tmp_path / "lib", tmp_path / "fake_driver", tmp_path / "loaded"
    libraries.mkdir()
    fake_driver.mkdir()
    source = tmp_path / "nvml.c"
    source.write_text(LOADED, encoding="utf-8")
    library = libraries / "libnvidia-ml.so.1"
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    write_fake_driver_context(fake_driver, make_node(1))
    environ = {"LD_LIBRARY_PATH": str(libraries), "GPUDOCTOR_FAKE_DRIVER": str(fake_driver), "LOADED": str(loaded)}
    return environ, loaded


@pytest.mark.wide(every=2)
@pytest.mark.parametrize("arguments", [QUICK, ("facts",)])
def test_a_driver_that_is_to_be_read_is_loaded(program: Program, machine: Machine, arguments: tuple[str, ...]) -> None:
    environ, loaded = machine
    program(*GPUDOCTOR, *arguments, env=environ)
    assert loaded.exists()


@pytest.mark.wide(every=6)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("check", "--help"), 0),
        (("check", "--no-such-option"), 2),
        (("check", "--level", "deep"), 2),
        (("check", "no.such-check"), 2),
        (("check", "--skip", "no.such-check"), 2),
        (("check", "--require", "no.such-check"), 2),
        (("check", "--config", "/nowhere.yaml"), 2),
        (("check", "--level", "burn", "--duration", "soon"), 2),
        (("check", "--fault", "gpu-lost@0"), 2),
        (("check", "--level", "quick", "--node=t4-cloud-4"), 0),
        (("facts", "--deadline", "-1"), 2),
        (("facts", "--fault", "gpu-lost@0"), 2),
    ],
)
def test_where_the_driver_is_not_to_be_read_its_library_is_not_even_loaded(
    program: Program, machine: Machine, arguments: tuple[str, ...], code: int
) -> None:
    environ, loaded = machine
    done = program(*GPUDOCTOR, *arguments, env=environ)
    assert done.returncode == code
    assert not loaded.exists()


def test_where_the_kernel_module_is_not_loaded_the_library_is_not_either(program: Program, machine: Machine) -> None:
    environ, loaded = machine
    shutil.rmtree(Path(environ["GPUDOCTOR_FAKE_DRIVER"]) / "root" / "sys" / "module" / "nvidia")
    report = json.loads(program(*GPUDOCTOR, *QUICK, env=environ).stdout)
    assert next(check["status"] for check in report["checks"] if check["id"] == "driver.loaded") == "fail"
    assert not loaded.exists()


def _fake_driver(program: Program, *words: str, faults: tuple[str, ...] = (), **options: Any) -> Any:
    """What a program prints before the fake driver of a healthy node of 8."""
    struck = [word for fault in faults for word in ("--fault", fault)]
    return program(*GPUDOCTOR, "fake-driver", "--node", "hgx-h100-8", *struck, "--", *words, **options)


@pytest.mark.wide
def test_it_is_not_started_by_the_name_that_python_has_for_itself(program: Program) -> None:
    # an embedded interpreter, or one that was replaced by an update while it ran, cannot be started again
    code = f"import sys; sys.executable, sys.argv = '/nowhere', ['gpudoctor', *{QUICK!r}]\n"
    done = _fake_driver(program, sys.executable, "-c", f"{code}from gpudoctor.__main__ import run; sys.exit(run())")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "pass"


# each takes longer to import than a node takes to judge
_SLOW_TO_IMPORT = {"yaml", "pynvml", "pkgutil", "statistics", "importlib.metadata", "email", "rich", "torch", "psutil"}


def test_a_live_check_imports_nothing_that_is_slow(program: Program) -> None:
    said = "os._exit = lambda code: print('loaded', *sys.modules, file=sys.stderr)"  # the last that it does
    code = f"import os, sys; sys.argv = ['gpudoctor', *{QUICK!r}]; {said}; from gpudoctor.__main__ import run; run()"
    done = _fake_driver(program, sys.executable, "-c", code)
    loaded = done.stderr.decode().partition("loaded ")[2].split()
    assert json.loads(done.stdout)["profile"]["name"] == "hgx-h100-8"
    assert "gpudoctor.profiles.load" in loaded
    assert _SLOW_TO_IMPORT & set(loaded) == set()


def test_nor_does_the_process_that_asks_the_driver_before_it_asks(program: Program) -> None:
    code = "import gpudoctor.facts.nvml.collector_child, sys; print(*sys.modules)"
    done = program(sys.executable, "-c", code)
    assert _SLOW_TO_IMPORT & set(done.stdout.decode().split()) == set()


def test_nor_does_the_binding_which_still_finds_libraries_if_it_looks_for_one(program: Program, tmp_path: Path) -> None:
    binding = "import ctypes.util\nfrom ctypes.util import find_library\n"
    binding += "def find(name): return ctypes.util.find_library(name)\n"
    (tmp_path / "pynvml.py").write_text(binding)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from gpudoctor.facts.nvml.client import load_pynvml; "
    code += "binding = load_pynvml(); print(*sys.modules); "
    code += "print(binding.find('c') == binding.find_library('c')); "
    code += (
        "import ctypes.util; print(binding.find('c') == ctypes.util.find_library('c'), hasattr(ctypes.util, 'shutil'))"
    )
    loaded, *found = program(sys.executable, "-c", code).stdout.decode().splitlines()
    assert "pynvml" in loaded.split()
    assert not {"ctypes.util", "subprocess", "tempfile"} & set(loaded.split())
    assert found == ["True", "True True"]


@pytest.mark.wide
def test_a_driver_that_hangs_costs_that_gpu_only(program: Program) -> None:
    done = _fake_driver(program, *GPUDOCTOR, *QUICK, faults=("driver-hang@3",))
    report = json.loads(done.stdout)
    assert done.returncode == 1
    [fault] = report["faults"]
    assert (fault["check"], fault["subject"]["gpu"]) == ("driver.responsive", 3)


@pytest.mark.wide
def test_modules_in_the_working_directory_are_not_imported(program: Program, tmp_path: Path) -> None:
    for name in ("pynvml", "ctypes", "faulthandler"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('posing as another module')\n")
    code = f"import sys; sys.argv = ['gpudoctor', *{QUICK!r}]; from gpudoctor.__main__ import run; sys.exit(run())"
    done = _fake_driver(program, "sh", "-c", f'cd {tmp_path} && exec {sys.executable} -c "{code}"')
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "pass"


@pytest.mark.wide(every=4)
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_stream_that_is_closed_is_not_taken_for_the_driver_dying(
    program: Program, tmp_path: Path, closed: str
) -> None:
    # as some daemons start their children
    report = tmp_path / "report.json"
    _fake_driver(program, "sh", "-c", f"exec {' '.join((*GPUDOCTOR, *QUICK))} -o {report} {closed}")
    assert json.loads(report.read_text())["reason"].startswith("PASS")


@pytest.mark.wide(every=3)
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_in_a_hung_call_gives_a_partial_report_and_leaves_nothing(
    program: Program, name: str, code: int
) -> None:
    # it is sent once 7 of 8 GPUs are read; `program` sees what is left
    watcher = (
        "import json, os, signal, subprocess, sys\n"
        f"words = [sys.executable, '-m', 'gpudoctor', *{QUICK!r}, '--progress', '--deadline', '50']\n"
        "with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as check:\n"
        "    for line in check.stderr:\n"
        "        if b'reading GPUs: 7 of 8' in line:\n"
        "            break\n"
        f"    check.send_signal(signal.{name})\n"
        "    sys.stdout.buffer.write(check.communicate(timeout=50)[0])\n"
        "sys.exit(check.returncode)\n"
    )
    done = _fake_driver(program, sys.executable, "-c", watcher, faults=("driver-hang@3",))
    report = json.loads(done.stdout)
    assert done.returncode == code, done.stderr
    assert (report["exit_code"], report["run"]["interrupted"]) == (code, name)
    assert len(report["gpus"]) == 8


def test_its_parent_may_be_killed(tmp_path: Path) -> None:
    root = make_root(tmp_path / "root")
    code = f"{COLLECT}start_ahead()\nprint('started', flush=True)\nsys.stdin.read()\n"
    words = [sys.executable, "-c", code, str(root), ""]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        [waiting] = psutil.Process(parent.pid).children()
        parent.kill()
        assert psutil.wait_procs([waiting], timeout=20)[1] == []


@pytest.fixture
def nodes_read(program: Program, tmp_path: Path) -> Callable[..., list[Any]]:
    """nodes_read(code, faults...): the nodes that `read()` returned in a program whose driver is our fake."""

    def run(code: str, *faults: ScriptedFault) -> list[Any]:
        root = make_root(tmp_path / "root")
        spec = write_script(tmp_path / "script.json", Script(make_node(2), faults))
        done = program(sys.executable, "-c", f"{COLLECT}{code}", str(root), spec)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def _read_from_driver(node: Any) -> Any:
    return [{key: value for key, value in gpu.items() if key != "pcie"} for gpu in node["gpus"]]


def test_it_reads_what_one_reads_that_is_started_later_and_only_once(nodes_read: Callable[..., list[Any]]) -> None:
    ahead, later = nodes_read("start_ahead(); read(); read()")
    assert len(ahead["gpus"]) == 2
    assert _read_from_driver(ahead) == _read_from_driver(later)


@pytest.mark.wide
def test_one_that_was_ordered_to_read_another_root_is_not_taken(nodes_read: Callable[..., list[Any]]) -> None:
    [node] = nodes_read("start_ahead(); order_ahead(Path('/nowhere')); read()")
    assert len(node["gpus"]) == 2


def test_answers_that_came_before_anybody_listened_are_all_taken(nodes_read: Callable[..., list[Any]]) -> None:
    # it has sent everything, and has exited, before it is read
    ended = "os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)"
    [node] = nodes_read(f"import os; start_ahead(); order_ahead(Path(sys.argv[1]), sys.argv[2]); {ended}; read()")
    assert len(node["gpus"]) == 2
    assert "failed" not in json.dumps(node["driver"])


def test_one_that_crashes_in_a_call_names_it(nodes_read: Callable[..., list[Any]]) -> None:
    slow, crash = ScriptedFault(DRAW, gpu=1, delay_s=1.0), ScriptedFault(DRAW, gpu=1, crash=True)
    [node] = nodes_read("start_ahead(); read()", slow, crash)
    [died] = node["driver"]["unanswered"]
    assert (died["call"], died["gpu"]) == (DRAW, 1)
    assert died["reason"] == f"the collector died by {signal.SIGSEGV.name} in {DRAW}"


def test_one_that_was_killed_while_it_waited_is_no_fault_of_the_driver(nodes_read: Callable[..., list[Any]]) -> None:
    kill = (
        "import os, signal, psutil\n"
        "start_ahead()\n"
        "psutil.Process().children()[0].send_signal(signal.SIGKILL)\n"
        "os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)\n"
        "read()"
    )
    [node] = nodes_read(kill)
    assert "unanswered" not in node["driver"]
    assert "the collector died by SIGKILL" in json.dumps(node["driver"])


def test_a_process_with_threads_is_not_forked(nodes_read: Callable[..., list[Any]]) -> None:
    thread = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    [node] = nodes_read(f"{thread}; start_ahead(); assert take_ahead(Path('/'), None) is None; read()")
    assert len(node["gpus"]) == 2
