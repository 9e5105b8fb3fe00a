"""`gpudoctor watch` as a user runs it: lines, pipes, signals, and a driver that is a fake."""

from __future__ import annotations

import fcntl
import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from gpudoctor.cli.commands.watch import ClosedError, LineWriter, follow
from gpudoctor.errors import UserError
from gpudoctor.facts.collect import collect_live
from gpudoctor.facts.model.gpu import GpuProcess
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.stream.driver import DriverWatch
from gpudoctor.facts.stream.messages import Opening, Tick, WatchLine
from gpudoctor.facts.stream.sources import LiveSource
from gpudoctor.testing.fake_nvml import FakeNvml, Script, ScriptedFault, from_file, write_script
from tests.cli.conftest import Gpudoctor, assert_refused
from tests.conftest import ROOT
from tests.facts.nvml_nodes import make_node, make_root, with_gpu
from tests.imported_torch import own_children
from tests.needs import needs

PATIENT_S = 60.0
Start = Callable[..., "subprocess.Popen[bytes]"]
Told = Callable[..., list[Any]]  # an Opening or a Tick each
decode = msgspec.json.Decoder(WatchLine).decode


@pytest.fixture
def start() -> Iterator[Start]:
    """Run `gpudoctor watch ...` as a process; whatever a test leaves is ended."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*argv: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "gpudoctor", "watch", *argv]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def lines_of(child: subprocess.Popen[bytes], count: int) -> list[Any]:
    assert child.stdout is not None
    return [decode(child.stdout.readline()) for _ in range(count)]


# simulated nodes, captures, recordings


def test_the_facts_come_first_and_then_a_tick_at_each_interval(start: Start) -> None:
    opening, *ticks = lines_of(start("--node", "hgx-h100-8", "--fault", "pcie-width-x8@5", "--interval", "0.2"), 5)
    assert opening.interval_s == 0.2
    assert (opening.node.source.kind, opening.node.source.faults) == ("simulated", ("pcie-width-x8@5",))
    times = [tick.at_s for tick in ticks]
    assert times == sorted(times)
    assert all([gpu.gpu for gpu in tick.gpus] == list(range(8)) for tick in ticks)
    assert ticks[0].gpus[5].readings["pcie_width"] == 8


def test_it_ends_without_a_word_when_nobody_reads_any_more(start: Start) -> None:
    child = start("--node", "rtx4090-4", "--interval", "3600")
    lines_of(child, 2)
    assert child.stdout is not None
    child.stdout.close()  # an hour before the next line
    assert child.wait(PATIENT_S) == 0
    assert child.stderr is not None
    assert child.stderr.read() == b""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_with_the_shells_code(start: Start, number: signal.Signals, code: int) -> None:
    child = start("--node", "rtx4090-4", "--interval", "3600")
    lines_of(child, 2)
    child.send_signal(number)
    out, err = child.communicate(timeout=PATIENT_S)
    assert (child.returncode, out) == (code, b"")
    assert err.decode() == f"gpudoctor: interrupted by {number.name}\n"


def test_a_signal_ends_it_while_its_reader_sleeps(start: Start) -> None:
    child = start("--node", "hgx-h100-8")
    assert child.stdout is not None
    fcntl.fcntl(child.stdout, getattr(fcntl, "F_SETPIPE_SZ", 1031), 4096)
    os.read(child.stdout.fileno(), 1)  # the rest of the line is longer than the pipe: it waits
    child.send_signal(signal.SIGTERM)
    assert child.wait(PATIENT_S) == 143


@pytest.mark.parametrize("value", ["0.1", "0", "-1", "3601", "nan", "inf", "x", ""])
def test_an_interval_that_cannot_be_is_refused(gpudoctor: Gpudoctor, value: str) -> None:
    outcome = gpudoctor("watch", "--node", "rtx4090-4", f"--interval={value}")
    assert_refused(outcome, "a number of seconds from 0.2 to 3600 is wanted")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--node", "no-such-node"), "no-such-node: no such file, and no simulated node of that name"),
        (("--node", "x" * 300), "xxx: no such file, and no simulated node of that name"),  # longer than a name may be
        (("--fault", "thermal@2"), "--fault is for simulated nodes and captures"),
        (("--node", "rtx4090-4", "--fault", "thermal@9"), "thermal@9: there is no GPU '9'"),
    ],
)
def test_a_source_that_cannot_be_is_one_line(gpudoctor: Gpudoctor, argv: tuple[str, ...], words: str) -> None:
    assert_refused(gpudoctor("watch", *argv), words)


def record(folder: Path, name: str = "w.jsonl") -> Path:
    from gpudoctor.facts.simulated.live import ticks_of
    from gpudoctor.facts.simulated.load import apply_faults, load_node

    node = apply_faults(load_node("hgx-h100-8"), ["pcie-width-x8@5"])
    lines = [Opening("gpudoctor.watch/1", 1.8e9, 1.0, node), *(ticks_of(node, n, 1.8e9 + n) for n in range(4))]
    data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["w.jsonl", "w.jsonl.gz"])
def test_a_recording_is_checked_by_its_facts(gpudoctor: Gpudoctor, tmp_path: Path, name: str) -> None:
    path = str(record(tmp_path, name))
    outcome = gpudoctor("check", "pcie.link-width", "--json", "--level", "quick", "--node", path)
    assert outcome.code == 1
    assert outcome.json["faults"][0]["check"] == "pcie.link-width"
    facts = gpudoctor("facts", "--node", path)
    assert len(facts.json["gpus"]) == 8


def test_a_recording_is_told_again_with_its_own_times(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = record(tmp_path)
    outcome = gpudoctor("watch", "--node", str(path), "--interval", "0.2")
    assert (outcome.code, outcome.err) == (0, "")
    assert [decode(line) for line in outcome.out.splitlines()] == [
        decode(line) for line in path.read_bytes().splitlines()
    ]


def test_a_recording_cut_in_its_first_line_is_one_line_of_error(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_bytes(record(tmp_path).read_bytes()[:1000])
    for command in ("watch", "facts"):
        assert_refused(gpudoctor(command, "--node", str(path)), f"{path}: line 1: cut off")


@needs("/dev/full")
def test_a_full_disk_is_an_error_of_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpudoctor", "watch", "--node", "rtx4090-4"],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == b"gpudoctor: error: stdout could not take the line (No space left on device)\n"


def test_what_only_the_screen_needs_is_not_imported() -> None:
    code = (
        "import sys\n"
        "from gpudoctor.cli.main import main\n"
        "main(['watch', '--node', 'rtx4090-4'])\n"
        "print([m for m in ('rich', 'textual', 'psutil', 'torch', 'pynvml') if m in sys.modules], file=sys.stderr)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    lines_of(child, 2)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.wait(PATIENT_S) == 0
    assert child.stderr.read() == b"[]\n"
    child.stderr.close()


# this machine, with a scripted driver


class Read(BytesIO):
    """A reader that closes the pipe after this many lines."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count
        self.lines: list[Any] = []

    def write(self, data: object) -> int:
        if not self.left:
            raise BrokenPipeError
        line = bytes(data)  # type: ignore[call-overload]
        self.left -= 1
        self.lines.append(decode(line))
        return len(line)


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """The first lines from this machine with a fake driver; every process must have exited afterwards."""
    root = make_root(tmp_path / "root")
    # on a busy machine the child that calls the driver takes seconds to start, which would be reported as silence
    patient = partial(DriverWatch, patience_s=60.0, call_deadline_s=60.0)
    monkeypatch.setattr("gpudoctor.facts.stream.driver.DriverWatch", patient)

    def live(node: Node, *faults: ScriptedFault, count: int = 3, maker: str = "") -> list[Any]:
        spec = write_script(tmp_path / "script.json", Script(node, faults))
        if maker:
            spec = f"{maker}:{spec.rpartition(':')[2]}"
        reader = Read(count)
        source = LiveSource(0.2, root, spec)
        try:
            with pytest.raises(ClosedError):
                follow(source, LineWriter(reader), 0.2)
        finally:
            source.close()
        return reader.lines

    yield live
    assert own_children(recursive=True) == []


def test_this_machine_is_told_by_a_child_that_calls_the_driver(live: Told) -> None:
    own = GpuProcess(pid=os.getpid(), memory_mib=512)
    opening, first, second = live(with_gpu(make_node(2), 1, processes=(own,)))
    assert [gpu.index for gpu in opening.node.gpus] == [0, 1]
    assert [gpu.gpu for gpu in first.gpus] == [0, 1]
    assert first.gpus[1].readings["temperature_c"] == 41
    assert first.silence is None
    assert first.cost_ms is not None
    assert first.host is not None
    assert first.processes is not None
    [process] = first.processes
    assert (process.gpu, process.pid, process.memory_mib) == (1, os.getpid(), 512)
    assert process.user is not None
    assert process.command is not None
    assert second.processes is None


def test_without_a_driver_the_host_is_told(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/modules").write_text("")
    source = LiveSource(1.0, tmp_path)
    opening, tick = source.lines(1.0)
    source.close()
    assert isinstance(opening, Opening)
    assert isinstance(tick, Tick)
    assert (tick.gpus, tick.processes, tick.silence) == ((), None, None)
    assert tick.host is not None


def test_a_gpu_that_is_lost_while_it_is_watched_leaves_the_ticks(live: Told) -> None:
    # after the facts (the collector is another process, so it counts for itself)
    lost = ScriptedFault("nvmlDeviceGet[TUM]*", gpu=1, from_call=60, code=15)
    first = live(make_node(2), lost, count=2)[1]
    assert [gpu.gpu for gpu in first.gpus] == [0, 1]


def hangs_at_first(path: str) -> FakeNvml:
    """A driver that hangs while the facts are read, and is well afterwards."""
    fake = from_file(path)
    marker = Path(f"{path}.hung")
    if not marker.exists():
        marker.touch()
        fake._faults = (ScriptedFault("nvmlDeviceGetMemoryInfo", gpu=1, hang=True),)
    return fake


@pytest.mark.wide
def test_facts_that_were_cut_short_are_read_anew_once_the_driver_answers(
    live: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudoctor.facts.collect.collect_live", partial(collect_live, call_deadline_s=0.8))
    first, second, tick = live(make_node(2), maker="tests.cli.test_watch:hangs_at_first")
    assert [call.call for call in first.node.driver.unanswered] == ["nvmlDeviceGetMemoryInfo"]
    assert second.node.driver.unanswered == ()
    assert [gpu.gpu for gpu in tick.gpus] == [0, 1]


def test_a_reader_that_hangs_in_the_driver_dies_with_its_parent(tmp_path: Path) -> None:
    spec = write_script(tmp_path / "script.json", Script(make_node(1), (ScriptedFault("nvmlInit", hang=True),)))
    code = (
        "import sys\n"
        "from gpudoctor.facts.stream.driver import DriverWatch\n"
        f"watch = DriverWatch(((0, None),), 1.0, {spec!r}, call_deadline_s=0.2)\n"
        "while 'nvmlInit' not in watch.read()[1].why: pass\n"
        "print(watch.pid, 'pynvml' in sys.modules, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdout is not None
    pid, calls_driver = parent.stdout.readline().split()
    assert calls_driver == b"False"
    reader = psutil.Process(int(pid))
    parent.kill()
    parent.communicate()
    gone, alive = psutil.wait_procs([reader], timeout=10)
    for process in alive:
        process.kill()
    assert gone == [reader]


def test_a_stdout_that_cannot_be_written_is_a_users_error() -> None:
    class Full(BytesIO):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left on device"):
        LineWriter(Full()).write(Tick(at_s=1.0))
