"""A shared login node: root runs gpudoctor in /tmp, in which another user has put modules. None of them is run."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.needs import needs
from tests.subprocesses import completed, shell_program

# what is imported first, what is imported late, and what every interpreter looks for at its start
HOSTILE = (
    *("json", "signal", "argparse", "subprocess", "runpy", "random", "typing", "ctypes", "asyncio", "tarfile"),
    *("torch", "numpy", "msgspec", "yaml", "psutil", "pynvml", "textual", "rich", "ray", "prometheus_client"),
    *("sitecustomize", "usercustomize", "readline", "secrets", "uuid", "jax", "tensorflow", "deepspeed", "aiohttp"),
)
PACKAGES = ("gpudoctor", "tests")
LIMIT_S = 180

with_torch = needs("torch")

# srun, on one machine: two tasks of one step, each of which takes itself for a node
SRUN = """\
while [ "${1#/}" = "$1" ]; do shift; done
export SLURM_STEP_ID=0 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=2
SLURM_NODEID=1 "$@" & SLURM_NODEID=0 "$@"
wait
"""

TUI = """
import asyncio, json
from gpudoctor.tui.web.serve import app_command
from gpudoctor.tui.start import TuiRequest, opened
from gpudoctor.tui.web.session import WebSession

asked = TuiRequest(node="hgx-h100-8")

async def children():
    feed, checker = opened(asked)
    async for line in feed.lines():
        assert type(line).__name__ == "Opening", line
        break
    run = await checker.run(["host"], "quick")
    assert run.error is None, run.error
    shown = asyncio.Event()
    async def show(data):
        shown.set()
    session = WebSession(app_command(asked), show)
    await session.start(80, 24)
    drawing = asyncio.create_task(session.run())
    await asyncio.wait({drawing, asyncio.create_task(shown.wait())}, return_when="FIRST_COMPLETED")
    assert shown.is_set(), drawing
    await session.stop()
    feed.close()
    feed.close()

asyncio.run(children())
"""

AGENT = """
import os, re, subprocess, sys, time, urllib.request
agent = subprocess.Popen([*sys.argv[1:], "agent", "--listen=127.0.0.1:0", "--jitter=0", "--node=hgx-h100-8",
                          "--state=" + os.environ["STATE"]], stderr=subprocess.PIPE, text=True)
address = re.search(r"http://\\S+:\\d+", agent.stderr.readline())[0]
while True:
    try:
        assert urllib.request.urlopen(address + "/healthz").status == 200
        break
    except urllib.error.HTTPError:  # the first check has not ended
        time.sleep(0.1)
agent.terminate()
assert agent.wait() == 143
"""


class Attack:
    """A working directory full of modules that leave a trace when they are imported, and a gpudoctor to run there."""

    def __init__(self, folder: Path) -> None:
        self.here, self.traces = folder / "here", folder / "traces"
        for made in (self.here, self.traces, folder / "bin"):
            made.mkdir()
        trace = "import os, sys\nopen(os.path.join({!r}, {!r}), 'a').write(repr(sys.argv))\n"
        for name in HOSTILE:
            (self.here / f"{name}.py").write_text(trace.format(str(self.traces), name))
        for name in PACKAGES:
            (self.here / name).mkdir()
            (self.here / name / "__init__.py").write_text(trace.format(str(self.traces), name))
        # as pip makes it
        self.program = folder / "bin" / "gpudoctor"
        self.program.write_text("import sys\nfrom gpudoctor.__main__ import run\nsys.exit(run())\n")
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.environ |= {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(folder / "config"), "STATE": str(folder / "s")}
        self.environ |= {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(folder / "cache")}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, str(self.program), *words]

    def run(self, *words: str, program: list[str] | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        done = completed(
            [*(self.command() if program is None else program), *words], cwd=self.here, env={**self.environ, **more}
        )
        assert self.imported() == {}, done.stderr
        return done

    def imported(self) -> dict[str, str]:
        return {trace.name: trace.read_text() for trace in self.traces.iterdir()}


@pytest.fixture
def attack(tmp_path: Path) -> Attack:
    return Attack(tmp_path)


def test_the_attack_would_be_seen(attack: Attack) -> None:
    subprocess.run([sys.executable, "-c", "import gpudoctor, torch"], cwd=attack.here, env=attack.environ, check=True)
    assert set(attack.imported()) == {"gpudoctor", "torch"}


@pytest.mark.wide(every=4)
@pytest.mark.parametrize(
    "words",
    [
        ("check", "--level", "quick", "--json"),  # the collector of the driver, and the commands of the host
        ("bundle", "-o", "../made.tar.gz"),
        ("cluster", "check", "--help"),
        ("list", "--json"),  # plugins
    ],
    ids=lambda words: words[0],
)
def test_of_a_command(words: tuple[str, ...], attack: Attack) -> None:
    assert attack.run(*words).returncode != 2


@pytest.mark.wide(but=["frameworks"])
@with_torch
@pytest.mark.parametrize("method", ["ranks", "frameworks"])
def test_of_the_ranks_and_of_the_frameworks_views(method: str, attack: Attack) -> None:
    ids = {"ranks": ("collective", "train.sync"), "frameworks": ("env.torch",)}[method]
    done = attack.run("check", *ids, "--backend", "gloo", "--ranks", "2", "--node", "hgx-h100-8")
    assert done.returncode == 0, done.stderr
    assert "pass" in done.stdout.lower()


@pytest.mark.wide
@with_torch
def test_of_a_trial_of_a_plan(attack: Attack) -> None:
    done = attack.run("plan", "350m", "--node", "cpu-only", "--try", "--backend", "gloo", "--ranks", "2")
    assert done.returncode == 0, done.stderr


@pytest.mark.wide
@needs("textual_serve")
def test_of_the_screen_and_its_browsers(attack: Attack, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "children.py"
    script.write_text(TUI)
    done = attack.run(program=[sys.executable, str(script)])
    assert done.returncode == 0, done.stderr


@pytest.mark.wide
@needs("prometheus_client")
def test_of_the_agent(attack: Attack, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "asking.py"
    script.write_text(AGENT)
    done = attack.run(program=[sys.executable, str(script), *attack.command()])
    assert done.returncode == 0, done.stderr


@pytest.mark.wide
@with_torch
def test_of_all_nodes_of_a_cluster(attack: Attack, tmp_path: Path) -> None:
    shell_program(tmp_path / "bin" / "srun", SRUN)
    asked = ("--level", "quick", "--backend", "gloo", "--node", "hgx-h100-8", "--launcher", "slurm", "-N", "2")
    done = attack.run("cluster", "check", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 nodes" in done.stdout


@pytest.mark.wide
@needs("cc")
def test_of_a_program_before_the_fake_driver(attack: Attack) -> None:
    done = attack.run("fake-driver", "--node", "hgx-h100-8", "--", *attack.command("check", "gpu.count", "--json"))
    assert '"hgx-h100-8"' in done.stdout


def test_ray_is_not_told_of_it(attack: Attack, tmp_path: Path) -> None:
    """Ray has its workers search the working directory of the process that calls init."""
    package = tmp_path / "bin" / "ray"
    (package / "util").mkdir(parents=True)
    (package / "util" / "__init__.py").touch()
    (package / "util" / "scheduling_strategies.py").write_text("NodeAffinitySchedulingStrategy = None\n")
    (package / "__init__.py").write_text("import os\ndef init(**_):\n    raise ConnectionError('is ' + os.getcwd())\n")
    done = attack.run("cluster", "check", "--launcher", "ray", PYTHONPATH=f"{package.parent}:{ROOT}")
    assert "(ConnectionError: is /)" in done.stderr


@pytest.mark.wide(every=4)
@pytest.mark.parametrize("pythonpath", ["{root}:", ":{root}", "{root}:.", "{root}::{root}"])
def test_of_an_empty_entry_in_pythonpath(pythonpath: str, attack: Attack) -> None:
    """export PYTHONPATH=$PYTHONPATH:/opt/x: Python itself looks there for the first modules of all, we do not."""
    for name in ("sitecustomize", "usercustomize", "gpudoctor", "tests"):
        path = attack.here / name
        shutil.rmtree(path) if path.is_dir() else (attack.here / f"{name}.py").unlink()
    started = "import sys; before = set(sys.modules); from gpudoctor.__main__ import run; sys.exit(run())"
    done = attack.run(
        *("-P", "-c", started)[sys.version_info < (3, 11) :],
        *("check", "--level", "quick", "--json"),
        program=[sys.executable],
        PYTHONPATH=pythonpath.format(root=ROOT),
    )
    assert done.stdout.startswith("{")


@pytest.mark.wide
def test_of_python_m(attack: Attack) -> None:
    """torchrun starts us by -m: Python searches the working directory for our package, and then for nothing else."""
    shutil.rmtree(attack.here / "gpudoctor")
    (attack.here / "runpy.py").unlink()  # until 3.11 Python looks here for it before our code runs
    done = attack.run("check", "--level", "quick", "--json", program=[sys.executable, "-m", "gpudoctor"])
    assert done.stdout.startswith("{")


def test_nothing_else_in_the_package_starts_a_python() -> None:
    """The next child must not bring the working directory back."""
    elsewhere: list[str] = []
    for path in sorted((ROOT / "gpudoctor").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "executable" not in text and "multiprocessing" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "multiprocessing" for name in names) or (
                isinstance(node, ast.Attribute)
                and ast.unparse(node) in ("sys.executable", "sys._base_executable", "torch.multiprocessing")
            ):
                elsewhere.append(f"{path.relative_to(ROOT / 'gpudoctor')}:{ast.unparse(node)}")
    # the Python of a Ray worker, handed to own_python as it is
    assert set(elsewhere) == {"process/own_program.py:sys.executable", "cluster/check/ray_tasks.py:sys.executable"}
