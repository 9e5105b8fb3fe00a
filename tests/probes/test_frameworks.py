"""What frameworks see is read in separate processes, whatever these do."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpudoctor.facts.model.measured_strategies import FrameworkView, StrategyShape
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.frameworks import run as frameworks
from gpudoctor.probes.frameworks.isolated import IsolatedProcess, run_isolated
from gpudoctor.probes.frameworks.isolated_child import TensorflowTask, ViewTask
from gpudoctor.probes.frameworks.run import framework_views
from tests.narrowed import present
from tests.needs import needs
from tests.probes.fake_frameworks import install, jax, tensorflow, torch

ALL = ("torch", "tensorflow", "jax")
CUDA_PLUGIN = {"jax_plugins": "", "jax_plugins/xla_cuda12": ""}
DEADLINE_S = 60.0


Asked = Callable[..., Measurements]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """asked(sources, deadline_s): what these frameworks tell."""

    def ask(sources: dict[str, str], deadline_s: float = DEADLINE_S) -> Measurements:
        install(tmp_path, monkeypatch, sources)
        # what else is installed on this machine takes seconds to import, and is not what is tested
        monkeypatch.setattr(frameworks, "FRAMEWORKS", tuple(name for name in ALL if name in sources))
        return framework_views(deadline_s)

    return ask


def view(measured: Measurements) -> FrameworkView:
    [found] = measured.frameworks
    return found


def why(measured: Measurements, name: str) -> Missing:
    assert measured.frameworks == ()
    return measured.not_run[f"frameworks.{name}"]


def test_each_framework_tells_its_version_and_the_gpus_that_it_opens(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    sources = {"torch": torch(), "tensorflow": tensorflow(2), "jax": jax(), **CUDA_PLUGIN}
    measured = asked(sources)
    assert measured.not_run == {}
    assert [(each.framework, each.version, each.gpus) for each in measured.frameworks] == [
        ("torch", "2.9.0+cu128", 2),
        ("tensorflow", "2.21.0", 2),
        ("jax", "0.10.2", 2),
    ]
    assert present(measured.frameworks[0].uuids)[0] == "GPU-11111111-0000-0000-0000-000000000000"


def test_a_torch_that_cannot_open_cuda_says_what_cuda_said(asked: Asked) -> None:
    found = view(asked({"torch": torch('raise RuntimeError("CUDA error 802\\nmore")')}))
    assert (found.gpus, found.error) == (2, "CUDA error 802")


def test_a_gpu_that_is_counted_and_cannot_be_opened_is_not_listed(asked: Asked) -> None:
    source = torch().replace("return len(cuda.uuids)", "return len(cuda.uuids) + 1  # by NVML")
    source = source.replace("return _Properties", "return exec('raise RuntimeError') if index == 2 else _Properties")
    found = view(asked({"torch": source}))
    assert found.gpus == len(present(found.uuids)) == 2


def test_gpus_that_tensorflow_leaves_out_are_kept_in_its_words_whatever_the_log_level(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    line = "Ignoring visible gpu device (device: 1)"
    told = f"import os\nif os.environ['TF_CPP_MIN_LOG_LEVEL'] == '0': os.write(2, b'I gpu_device.cc:1] {line}\\n' * 2)"
    found = view(asked({"tensorflow": tensorflow(1) + told}))
    assert (found.gpus, found.left_out, found.complaints) == (1, (line,), ())


def test_what_tensorflow_wrote_of_cuda_is_kept_where_it_opens_no_gpu(asked: Asked) -> None:
    found = view(asked({"tensorflow": tensorflow(0)}))
    assert (found.gpus, found.complaints) == (0, ("Cannot dlopen some GPU libraries.",))


def test_builds_for_the_cpu_are_known_as_such(asked: Asked) -> None:
    measured = asked({"tensorflow": tensorflow(0, cuda=False), "jax": jax()})
    assert [each.gpu_build for each in measured.frameworks] == [False, False]


def test_jax_that_is_told_to_stay_on_the_cpu_is_held_back(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    found = view(asked({"jax": jax(), **CUDA_PLUGIN}))
    assert found.held_back == "JAX_PLATFORMS=cpu"


def test_jax_that_is_told_which_gpus_to_take_is_held_back(asked: Asked) -> None:
    source = jax().replace("class config:", "class config:\n    jax_cuda_visible_devices = '0'\n   ")
    assert view(asked({"jax": source, **CUDA_PLUGIN})).held_back == "JAX_CUDA_VISIBLE_DEVICES=0"


def test_jax_that_cannot_start_cuda_sees_none_and_says_why(asked: Asked) -> None:
    source = jax("raise RuntimeError('Unable to initialize backend')")
    found = view(asked({"jax": source, **CUDA_PLUGIN}))
    assert (found.gpus, found.error) == (0, "Unable to initialize backend")


def test_an_import_that_does_not_end_is_ended_and_costs_the_others_nothing(asked: Asked, tmp_path: Path) -> None:
    hangs = f"import os, signal\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nsignal.pause()"
    measured = asked({"jax": hangs, "tensorflow": tensorflow(1)}, 3.0)
    assert measured.not_run["frameworks.jax"] == Missing("JAX did not leave 'import jax' within 3 s", "failed")
    assert view(measured).framework == "tensorflow"
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


def test_an_import_has_a_deadline_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, {"jax": "import signal; signal.pause()"})
    starts = [IsolatedProcess("JAX", ViewTask("jax"))]
    [heard] = run_isolated(starts, deadline_s=600.0, import_deadline_s=1.0, together=True)
    assert (heard.loaded, heard.failure) == (False, Missing("JAX did not leave 'import jax' within 1 s", "failed"))


@pytest.mark.wide
def test_one_that_waited_for_another_is_not_told_as_the_one_that_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = "import signal\n__version__ = '1'\nclass version: cuda = '1'\nclass cuda: init = signal.pause\n"
    install(tmp_path, monkeypatch, {"torch": waits, "jax": "import signal; signal.pause()"})
    starts = [IsolatedProcess("torch", ViewTask("torch")), IsolatedProcess("JAX", ViewTask("jax"))]
    waited, hung = run_isolated(starts, deadline_s=600.0, import_deadline_s=10.0, together=True)
    assert waited.failure == Missing("torch was ended with the others, in 'count the GPUs'", "failed")
    assert hung.failure == Missing("JAX did not leave 'import jax' within 10 s", "failed")


# Worker 0 is done first, and says whether it stays; worker 1 needs it until then.
WORKERS = """
import os, signal, sys, types
from pathlib import Path
steps, pipe = types.ModuleType("steps"), Path({pipe!r})
def told(word, act):
    return lambda *given: (pipe.write_text(word), act(*given))
def train(task, answers):
    if not task.worker:
        os._exit, signal.pause = told("left", os._exit), told("stays", signal.pause)
    elif pipe.read_text() != "stays":
        raise RuntimeError("worker 0 is gone")
steps.train = train
sys.modules["gpudoctor.probes.frameworks.tensorflow_steps"] = steps
"""


@pytest.mark.wide
@needs("numpy")
def test_a_worker_stays_until_the_others_are_done_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow's workers fetch from each other what the last step has summed: if one leaves first, another fails."""
    os.mkfifo(tmp_path / "pipe")
    install(tmp_path, monkeypatch, {"tensorflow": WORKERS.format(pipe=str(tmp_path / "pipe"))})
    shape = StrategyShape(1, 8, 1, 8, 4, 2)
    tasks = [TensorflowTask(shape, 1, on_gpu=False, worker=number, ports=(1, 2)) for number in range(2)]
    starts = [IsolatedProcess(f"worker {task.worker}", task) for task in tasks]
    assert [each.failure for each in run_isolated(starts, deadline_s=DEADLINE_S, together=True)] == [None, None]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ImportError('libcudart.so.12: cannot open')", "JAX: ImportError: libcudart.so.12: cannot open"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGBUS)", "JAX was ended by SIGBUS in 'import jax'"),
        ("import os; os.write(2, b'Aborted!\\n'); os._exit(3)", "JAX ended with 3 in 'import jax': Aborted!"),
        ("import os; os.close(2); raise ValueError('no stderr')", "JAX: ValueError: no stderr"),
        ("raise ValueError('half \\ud800')", "JAX: ValueError: half ?"),
    ],
)
def test_how_a_framework_ends_before_its_answer_is_said(asked: Asked, source: str, said: str) -> None:
    assert why(asked({"jax": source}), "jax") == Missing(said, "failed")


def test_an_abort_at_exit_takes_nothing_from_the_answer(asked: Asked) -> None:
    source = tensorflow(1) + "\nimport atexit, os\natexit.register(os.abort)"
    assert view(asked({"tensorflow": source})).gpus == 1


def test_a_folder_called_like_a_framework_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jax").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in ("torch", "tensorflow", "jax"):  # another test may have imported it
        monkeypatch.delitem(sys.modules, name, raising=False)
    measured = framework_views(DEADLINE_S)
    assert "none of PyTorch, TensorFlow, JAX is installed" in measured.not_run["frameworks"].reason
    assert measured.not_run["frameworks"].kind == "absent"


def test_a_package_in_the_working_directory_is_none_where_that_is_searched_for_us_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path)])  # PYTHONPATH names it too
    assert frameworks.missing_library("jax") is None
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # python -m gpudoctor
    assert frameworks.missing_library("jax") == Missing("JAX is not installed")


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_one_that_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    told, pipe = os.pipe()
    os.set_inheritable(pipe, True)
    hangs = f"import os, signal\nos.write({pipe}, str(os.getpid()).encode())\nsignal.pause()"
    install(tmp_path, monkeypatch, {"jax": hangs})
    code = (
        "from gpudoctor.probes.frameworks import run as frameworks; frameworks.FRAMEWORKS = ('jax',); "
        f"import subprocess; popen = subprocess.Popen; "
        f"subprocess.Popen = lambda *a, **k: popen(*a, **{{**k, 'pass_fds': [*k['pass_fds'], {pipe}]}}); "
        "frameworks.framework_views(600)"
    )
    asking = subprocess.Popen([sys.executable, "-c", code], pass_fds=[pipe], stderr=subprocess.DEVNULL)
    os.close(pipe)
    assert os.read(told, 64).isdigit()
    asking.send_signal(ending)
    asking.wait(60)
    assert select.select([told], [], [], 60)[0]  # at its end: the child held the last other end of the pipe
    assert os.read(told, 64) == b""
    os.close(told)


def test_orders_and_answers_are_json_that_both_sides_read(asked: Asked) -> None:
    garbled = "import json, os, sys\nos.write(json.loads(sys.argv[1])['fd'], b'{]\\n')\nimport signal; signal.pause()"
    assert why(asked({"jax": garbled}), "jax").reason == "JAX: its answer could not be read"
