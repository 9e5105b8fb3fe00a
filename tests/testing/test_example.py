"""The worked example of the documentation, run as its reader would run it."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.subprocesses import completed
from tests.testing.user_project import ROOT, project, run_pytest


@pytest.fixture
def example(tmp_path: Path) -> Path:
    folder = ROOT / "docs" / "examples" / "pick_gpus"
    if not folder.is_dir():
        pytest.skip("the documentation is not here")
    return Path(shutil.copytree(folder, tmp_path / "mine", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.mark.wide
def test_the_example_passes_on_a_machine_without_a_gpu(example: Path) -> None:
    code, output = run_pytest(example)
    assert code == 0, output
    assert re.search(r"\b11 passed in", output), output


@pytest.mark.wide
def test_what_the_documentation_shows_runs_as_it_stands(tmp_path: Path) -> None:
    page = ROOT / "docs" / "testing.md"
    if not page.is_file():
        pytest.skip("the documentation is not here")
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) == 2
    code, output = run_pytest(project(tmp_path, blocks[0]))
    assert code == 0, output
    assert re.search(r"\b4 passed in", output)
    asks = (
        "    import pynvml; pynvml.nvmlInit(); pynvml.nvmlDeviceGetPowerUsage(pynvml.nvmlDeviceGetHandleByIndex(3))\n"
    )
    assert "    ...  # every" in blocks[1]
    script = re.sub(r"    \.\.\.  # every.*\n", asks, blocks[1])
    ran = completed([sys.executable, "-c", script], env={"PYTHONPATH": str(ROOT)}, check=True)
    assert ran.stdout == "1\n"


@pytest.mark.wide(every=6)
@pytest.mark.parametrize(
    ("right", "wrong", "caught_by"),
    [
        ("is_pending or has_failed", "has_failed", "need_repair"),
        ("return True", "return False", "does_not_answer"),
        ("        if pynvml.nvmlDeviceGetComputeRunningProcesses(handle):\n            return False\n", "", "busy"),
        ("range(pynvml.nvmlDeviceGetCount())", "range(4)", "healthy"),
        (
            "        pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)  # a lost GPU fails here\n"
            "        if pynvml.nvmlDeviceGetComputeRunningProcesses(handle):\n            return False\n",
            "",
            "fell_off_the_bus",
        ),
        ("    finally:\n        pynvml.nvmlShutdown()", "    finally:\n        pass", "let_go_of"),
    ],
)
def test_a_mistake_in_the_example_is_caught_by_its_tests(example: Path, right: str, wrong: str, caught_by: str) -> None:
    file = example / "pick_gpus.py"
    text = file.read_text()
    assert right in text
    file.write_text(text.replace(right, wrong))
    code, output = run_pytest(example)
    assert code == 1, output
    assert re.search(rf"^FAILED test_pick_gpus.py::\w*{caught_by}", output, re.MULTILINE), output
