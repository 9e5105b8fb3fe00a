"""However a run ends, it leaves nothing behind; and it reports what it could not do."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import venv
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest

from gpudoctor.api.load.request import Backend
from gpudoctor.facts.deadlines import Deadline
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing, MissingKind
from gpudoctor.probes.runner import launch
from gpudoctor.probes.runner import plan as probe_plan
from gpudoctor.probes.runner.launch import ProbePlan, run_probes
from gpudoctor.probes.runner.rank_starter_client import start
from gpudoctor.probes.runner.run_collector import INSTALL_TORCH
from gpudoctor.process.own_program import own_python
from gpudoctor.process.spawn import Child
from tests.imported_torch import ImportedTorch, own_children
from tests.narrowed import present
from tests.probes.conftest import DEADLINE_S, GONE_WITHIN_S, FoundFirst, goes_on, measure, raising
from tests.subprocesses import completed

TWO_GPUS = ((0, "GPU-aa", "0000:18:00.0"), (1, "GPU-bb", "0000:2a:00.0"))
_HUNG_RUN = """
import signal, sys, tempfile
from gpudoctor.probes.runner.launch import ProbePlan, run_probes
tempfile.tempdir = sys.argv[1]
def stop(number, frame):
    raise SystemExit(143)
signal.signal(signal.SIGTERM, stop)
plan = ProbePlan("gloo", 2, probes=("collective",), inject=("hang-rank=1:all_reduce",))
run_probes(plan, deadline_s=120, probe_deadline_s=120, progress=lambda text: print(text, flush=True))
"""


@pytest.fixture(autouse=True)
def own_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are examined without a process, whatever is mounted on this machine."""
    monkeypatch.setattr("gpudoctor.facts.system.path_status.may_hang", lambda *_: False)


def _hung_run(folder: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A run in a separate process, at the moment when its rank 1 hangs, and all of its children."""
    run = subprocess.Popen([sys.executable, "-c", _HUNG_RUN, str(folder)], stdout=subprocess.PIPE, text=True)
    assert any("16 MiB" in line for line in present(run.stdout))
    children = psutil.Process(run.pid).children(recursive=True)
    assert len(children) == 4, "the starter, its guardian and two ranks"
    return run, children


@pytest.mark.wide(every=2)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_rank_and_no_folder_outlives_the_parent(number: signal.Signals, private_folders: Path) -> None:
    run, children = _hung_run(private_folders)
    run.send_signal(number)
    _, alive = psutil.wait_procs(children, timeout=GONE_WITHIN_S)
    assert alive == []
    run.communicate()
    assert run.returncode == {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143}[number]
    assert list(private_folders.iterdir()) == []


@pytest.fixture
def forked_starter(imported_torch: ImportedTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what happens after torch was imported."""
    monkeypatch.setattr(launch, "start", imported_torch.start)


def test_ranks_die_with_their_starter_which_convicts_no_gpu(private_folders: Path, forked_starter: None) -> None:
    seen: list[str] = []

    def kill_the_starter(text: str) -> None:
        seen.append(text)
        if "16 MiB" in text:
            [starter] = own_children()
            ranks.extend(starter.children())
            starter.kill()

    ranks: list[psutil.Process] = []
    plan = ProbePlan("gloo", 2, probes=("collective",), inject=("hang-rank=1:all_reduce",))
    found = run_probes(plan, deadline_s=DEADLINE_S, probe_deadline_s=DEADLINE_S, progress=kill_the_starter)
    assert len(ranks) == 3, "two ranks and the guardian"
    assert psutil.wait_procs(ranks, timeout=GONE_WITHIN_S)[1] == []
    [problem] = found.problems
    assert (problem.probe, problem.kind) == ("launch", "error")
    assert seen.count("all_reduce of 16 MiB") == 1


@pytest.mark.wide
def test_a_starter_that_somebody_stopped_is_not_taken_for_a_driver_that_hangs(
    private_folders: Path, forked_starter: None
) -> None:
    def stop_the_starter(text: str) -> None:
        if "16 MiB" in text:
            [starter] = own_children()
            starter.suspend()

    plan = ProbePlan("gloo", 2, probes=("collective",), inject=("hang-rank=1:all_reduce",))
    found = run_probes(plan, deadline_s=DEADLINE_S, probe_deadline_s=10.0, progress=stop_the_starter)
    assert own_children() == []
    assert [(problem.probe, problem.rank) for problem in found.problems] == [("collective", 1)]
    assert list(private_folders.iterdir()) == []


def test_a_parent_that_is_killed_while_torch_loads_leaves_nothing(
    tmp_path: Path, private_folders: Path, found_first: FoundFirst
) -> None:
    marker = tmp_path / "loading"
    deaf = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"  # as native code is
    found_first("torch.py", f"{deaf}open({str(marker)!r}, 'w').close()\nsignal.pause()\n")
    run = subprocess.Popen([sys.executable, "-c", _HUNG_RUN, str(private_folders)], stdout=subprocess.DEVNULL)
    while not marker.exists():
        goes_on(run)
    children = psutil.Process(run.pid).children(recursive=True)
    run.kill()
    run.wait()
    assert len(children) == 2, "the starter and its guardian"
    assert psutil.wait_procs(children, timeout=GONE_WITHIN_S)[1] == []
    assert list(private_folders.iterdir()) == []


def test_a_parent_that_is_killed_as_soon_as_it_has_a_child_leaves_nothing(private_folders: Path) -> None:
    for _ in range(3):
        run = subprocess.Popen([sys.executable, "-c", _HUNG_RUN, str(private_folders)], stdout=subprocess.DEVNULL)
        # the folder first: a process that examines paths, in case a mount hangs, comes and goes before it
        while not (list(private_folders.iterdir()) and (children := psutil.Process(run.pid).children())):
            assert run.poll() is None
        run.kill()
        run.wait()
        assert psutil.wait_procs(children, timeout=GONE_WITHIN_S)[1] == []
        while list(private_folders.iterdir()):  # the guardian is at work; an endless wait would end this test
            assert _guardians(private_folders)


def _guardians(folder: Path) -> list[int]:
    found = psutil.process_iter(["cmdline"])
    return [process.pid for process in found if any(str(folder) in word for word in process.info["cmdline"] or ())]


_WITH_FEW_FILES = """
import os, resource, sys, tempfile
from gpudoctor.probes.runner.launch import ProbePlan, run_probes
tempfile.tempdir = sys.argv[1]
tempfile.gettempdir()
for limit in range(3, 12):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    found = run_probes(ProbePlan("gloo", 2), deadline_s=120, probe_deadline_s=120)
    print([(p.probe, p.kind, "Too many open files" in p.text) for p in found.problems], found.not_run["train"].kind)
"""


def test_a_limit_of_a_few_open_files_is_unknown_and_leaves_no_folder(private_folders: Path) -> None:
    run = completed([sys.executable, "-c", _WITH_FEW_FILES, str(private_folders)])
    assert (run.returncode, run.stderr) == (0, "")
    assert set(run.stdout.splitlines()) == {"[('launch', 'error', True)] failed"}
    assert list(private_folders.iterdir()) == []


_WITHOUT_STANDARD_FILES = """
import os, sys, tempfile
from gpudoctor.probes.runner.launch import ProbePlan, run_probes
tempfile.tempdir = sys.argv[1]
for fd in (0, 1, 2):
    os.close(fd)
found = run_probes(ProbePlan("gloo", 2, probes=("collective",)), deadline_s=120, probe_deadline_s=120)
os._exit(0 if len(found.collectives) == 3 and not found.problems else 3)
"""


@pytest.mark.wide
def test_closed_standard_files_are_no_reason_not_to_run(private_folders: Path) -> None:
    assert subprocess.call([sys.executable, "-c", _WITHOUT_STANDARD_FILES, str(private_folders)]) == 0
    assert list(private_folders.iterdir()) == []


@pytest.mark.wide
def test_a_working_directory_that_was_removed_is_no_reason_not_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    found = measure(ProbePlan("gloo", 2, probes=("collective",)))
    assert (len(found.collectives), found.problems) == (3, ())


def test_a_starter_that_can_make_no_process_says_so(found_first: FoundFirst) -> None:
    refused = "raise BlockingIOError(11, 'Resource temporarily unavailable')"
    found_first("sitecustomize.py", f"import os\ndef fork():\n    {refused}\nos.fork = fork\n")
    [problem] = measure(ProbePlan("gloo", 2)).problems
    assert (problem.probe, problem.kind) == ("launch", "error")
    assert "could not be started: [Errno 11] Resource temporarily unavailable" in problem.text


@pytest.mark.wide
def test_a_folder_that_is_removed_under_the_ranks_convicts_nobody(
    found_first: FoundFirst, private_folders: Path
) -> None:
    real = next(path for path in sys.path if (Path(path) / "torch" / "__init__.py").exists())
    found_first(
        "torch.py",
        "import os, shutil, sys\nshutil.rmtree(os.environ['TMPDIR'])\nsys.path.remove(os.path.dirname(__file__))\n"
        f"del sys.modules['torch']\nsys.path.insert(0, {real!r})\nimport torch\n",
    )
    [problem] = measure(ProbePlan("gloo", 2, probes=("collective",))).problems
    assert (problem.probe, problem.kind) == ("launch", "error")
    assert list(private_folders.iterdir()) == []


@pytest.mark.wide
def test_a_rank_that_was_stopped_by_a_signal_is_told_as_such(forked_starter: None) -> None:
    def stop_rank_one(text: str) -> None:
        if "16 MiB" in text:
            [starter] = own_children()
            # in the order of their start: the guardian, rank 0, rank 1
            sorted(starter.children(), key=lambda process: process.pid)[-1].suspend()

    plan = ProbePlan("gloo", 2, probes=("collective",), inject=("hang-rank=0:all_reduce",))
    found = run_probes(plan, deadline_s=DEADLINE_S, probe_deadline_s=3.0, progress=stop_rank_one)
    [problem] = found.problems
    assert (problem.kind, problem.rank, problem.waiting) == ("error", 1, (0,))
    assert "rank 1 is stopped (SIGSTOP)" in problem.text


def test_a_starter_that_was_stopped_by_a_signal_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: Any) -> Child:
        child = start(*arguments)
        child.send(signal.SIGSTOP)
        return child

    monkeypatch.setattr(launch, "start", stopped)
    monkeypatch.setattr(launch, "_STOPPED_S", 0.1)
    [problem] = measure(ProbePlan("gloo", 2)).problems
    assert (problem.kind, problem.rank) == ("error", None)
    assert problem.text == "the process that starts the ranks is stopped (SIGSTOP)"


def test_a_machine_on_which_nothing_can_start_is_unknown_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, private_folders: Path
) -> None:
    monkeypatch.setattr(subprocess, "Popen", raising(BlockingIOError(11, "Resource temporarily unavailable")))
    found = measure(ProbePlan("gloo", 2, probes=("train",)))
    [problem] = found.problems
    assert (problem.probe, problem.kind, problem.rank) == ("launch", "error", None)
    assert "Resource temporarily unavailable" in problem.text
    assert found.not_run["train"] == found.not_run["torch"] == Missing(problem.text, "failed")
    assert found.not_run["collective"] == Missing("not asked for")
    assert list(private_folders.iterdir()) == []


def test_a_full_disk_is_met_before_a_rank_could_die_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", raising(OSError(28, "No space left on device")))
    [problem] = measure(ProbePlan("gloo", 2)).problems
    assert (problem.kind, "No space left" in problem.text) == ("error", True)


def test_a_torch_that_does_not_load_in_gpu_ranks_is_no_crash_of_a_gpu(found_first: FoundFirst) -> None:
    found_first("torch.py", "raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    found = measure(ProbePlan("nccl", 2, gpus=TWO_GPUS))
    assert found.problems == ()
    assert "libcudart.so.13" in found.not_run["collective"].reason
    assert {found.not_run[name].kind for name in ("torch", "collective", "train")} == {"failed"}


def test_a_rank_that_sticks_in_nccl_dies_by_itself_whatever_the_user_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT", "TORCH_NCCL_DUMP_ON_TIMEOUT"):
        monkeypatch.setenv(name, "1")  # no watchdog; and one that waits a minute before it acts
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    seen: dict[str, str] = {}

    start: Any = subprocess.Popen

    def no_process(*arguments: object, env: dict[str, str] | None = None, **options: object) -> object:
        if env is None:  # it examines a mount of this machine
            return start(*arguments, **options)
        seen.update(env)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", no_process)
    run_probes(ProbePlan("nccl", 1, gpus=((0, "GPU-aa", "a"),)), deadline_s=50.0, probe_deadline_s=20.0)
    watchdog = {name: value for name, value in seen.items() if name.startswith("TORCH_NCCL_") and value != "0"}
    assert watchdog == {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "TORCH_NCCL_ENABLE_MONITORING": "1",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "420",  # import 180, meeting 180, the run 50, and 10 more
    }
    assert "NCCL_BLOCKING_WAIT" not in seen
    assert seen["NCCL_DEBUG"] == "INFO", "what the user wants to see of NCCL is the user's"


@pytest.mark.wide
def test_two_runs_at_once_do_not_meet(private_folders: Path, forked_starter: None) -> None:
    found: list[Measurements] = []

    def one_run() -> None:
        plan = ProbePlan("gloo", 2, probes=("collective",))
        found.append(run_probes(plan, deadline_s=DEADLINE_S, probe_deadline_s=DEADLINE_S))

    threads = [threading.Thread(target=one_run, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(m.problems, len(m.collectives)) for m in found] == [((), 3), ((), 3)]
    assert all(c.wrong_ranks == () for m in found for c in m.collectives)
    assert list(private_folders.iterdir()) == []


# CPU ranks run only for who asks for them: no answer is no skip
@pytest.mark.parametrize(("backend", "kind"), [("gloo", "failed"), ("nccl", "absent")])
def test_without_torch_every_probe_says_how_to_install_it(
    backend: Backend, kind: MissingKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    bare = functools.partial(own_python, python=str(tmp_path / "bare" / "bin" / "python"))
    monkeypatch.setattr("gpudoctor.probes.runner.rank_starter_client.own_python", bare)
    gpus = ((0, "GPU-a", "0000:01:00.0"), (1, "GPU-b", "0000:02:00.0")) if backend == "nccl" else ()
    found = run_probes(ProbePlan(backend, 2, gpus), deadline_s=DEADLINE_S, probe_deadline_s=30.0)
    asked = [found.not_run[name] for name in ("torch", "collective", "train")]
    assert asked == [Missing(INSTALL_TORCH, kind)] * 3
    assert found.problems == ()
    assert found.launch is None


@pytest.mark.parametrize(
    "error", ["ImportError('libcudnn.so.9: cannot open')", "ValueError('numpy.dtype size changed')"]
)
def test_a_torch_that_does_not_load_is_a_failure_and_not_an_absence(error: str, found_first: FoundFirst) -> None:
    found_first("torch.py", f"raise {error}\n")
    found = measure(ProbePlan("gloo", 2))
    assert found.problems == ()
    assert found.not_run["torch"].reason == f"torch does not load: {error.split(chr(39))[1]}"
    assert {found.not_run[name].kind for name in ("torch", "collective", "train")} == {"failed"}


@pytest.mark.wide
def test_a_torch_without_cuda_cannot_run_nccl_and_says_so() -> None:
    found = measure(ProbePlan("nccl", 2, gpus=TWO_GPUS, probes=("collective",)))
    if found.torch_view is not None and found.torch_view.cuda is not None:
        pytest.skip("this torch has CUDA")
    assert "has no CUDA" in found.not_run["collective"].reason
    launched = present(found.launch)
    assert launched.method == "fresh-interpreters"
    assert [rank.uuid for rank in launched.ranks] == ["GPU-aa", "GPU-bb"]


@pytest.mark.wide
def test_a_users_own_torch_py_in_the_working_directory_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('the wrong torch')\n")
    monkeypatch.chdir(tmp_path)
    assert measure(ProbePlan("gloo", 1, probes=("collective",))).torch_view is not None


@pytest.mark.parametrize("method", ["gloo", "nccl"])
def test_an_import_that_does_not_end_has_a_limit_of_its_own(
    method: Literal["gloo", "nccl"], found_first: FoundFirst, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_first("torch.py", "import signal\nsignal.pause()\n")
    monkeypatch.setattr(probe_plan, "TORCH_IMPORT", Deadline(2.0, "for the test"))
    [problem] = measure(ProbePlan(method, 2, gpus=TWO_GPUS if method == "nccl" else ())).problems
    assert (problem.probe, problem.kind, problem.phase) == ("launch", "timeout", "import torch")
    assert problem.text.startswith("importing torch did not end within 2 s")


_FAILING_PROBE = """
import sys
if "rank_starter" in " ".join(sys.orig_argv):
    import os, traceback
    from gpudoctor.probes.runner import rank_starter
    def full(*_):
        raise OSError(28, "No space left on device")
    if "FULL_DISK" in os.environ:  # on which the rank's output is
        traceback.print_exc = full
    load = rank_starter._import_torch
    def import_torch(job):
        load(job)
        from gpudoctor.probes.collective import probe
        def fail(rank):
            rank.phase("choose sizes", "collective")
            raise EOFError  # as a DataLoader whose worker is gone: neither an OSError nor a RuntimeError
        probe.run_collectives = fail
    rank_starter._import_torch = import_torch
"""


@pytest.mark.wide(but=["DISK"])
@pytest.mark.parametrize("disk", ["FULL_DISK", "DISK"])
def test_an_exception_of_any_class_in_a_rank_is_no_crash_of_its_gpu(
    disk: str, found_first: FoundFirst, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(disk, "1")
    found_first("sitecustomize.py", _FAILING_PROBE)
    [problem] = measure(ProbePlan("gloo", 1, probes=("collective",))).problems
    assert (problem.kind, problem.text) == ("error", "rank 0 failed in choose sizes: EOFError")


@pytest.mark.wide
def test_one_rank_has_nobody_to_reduce_with_but_can_train(forked_starter: None) -> None:
    found = measure(ProbePlan("gloo", ranks=1, probes=("collective", "train", "strategy")))
    assert found.not_run["collective"] == Missing("one rank has nobody to reduce with")
    assert found.not_run["strategy"] == Missing("one rank has nobody to divide the work with")
    assert found.strategies is None
    [rank] = present(found.training).ranks
    assert present(rank.loss_last) < present(rank.loss_first)
    assert found.problems == ()
