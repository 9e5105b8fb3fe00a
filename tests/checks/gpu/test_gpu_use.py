"""One rule for which processes are in the way: for gpu.in-use, for load, for the screen and for plan --try."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest

from gpudoctor.api.load import other_users
from gpudoctor.api.load.devices import devices_to_load
from gpudoctor.api.load.request import LoadRequest, not_run
from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.gpu_use import use_of_gpu
from gpudoctor.facts.model.gpu import GpuProcess, Power, Utilization, system_program
from gpudoctor.facts.model.missing import NOT_READ, UNSUPPORTED, Missing
from gpudoctor.facts.model.node import Node, Source
from gpudoctor.facts.nvml.samples import Sample, SampleRecording
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.facts.stream.messages import GpuTick, Opening, ProcessTick, Tick
from gpudoctor.report.judge import Question
from gpudoctor.report.judge import judge as report_on
from gpudoctor.tui.check_runner import users_of_gpus
from gpudoctor.tui.state import State
from tests.checks.one_check import judge


class Machine(NamedTuple):
    """The processes on GPU 3 of eight H100, what gpu.in-use makes of them, and whether load would disturb one."""

    leaves: dict[str, Any]
    in_use: Status
    in_the_way: bool


def process(name: str | Missing, kind: str = "C", mib: int | Missing = 30, **facts: Any) -> GpuProcess:
    return GpuProcess(4711, name, kind=kind, memory_mib=mib, **facts)


def machine(in_use: Status, in_the_way: bool, used_mib: int | Missing, *listed: GpuProcess, **leaves: Any) -> Machine:
    return Machine({"processes": listed, "memory_used_mib": used_mib, **leaves}, in_use, in_the_way)


XORG, SHELL = process("Xorg", "G", 300), process("/usr/bin/gnome-shell", "C+G", 150)
MPS = process("nvidia-cuda-mps-server")
OTHERS = Missing("asked in vain", "failed")
MACHINES = {
    "an MPS server that serves nobody": machine(Status.PASS, False, 600, MPS),
    "a client of the MPS server": machine(Status.WARN, True, 9600, MPS, process("python", "M", 9000)),
    "an MPS server whose clients live in a container": machine(Status.WARN, True, 60_000, MPS),
    "a workstation with its desktop": machine(Status.PASS, False, 900, XORG, SHELL),
    "a desktop that shows a film": machine(Status.PASS, True, 900, XORG, SHELL, utilization=Utilization(gpu_pct=45)),
    "a game beside the desktop": machine(Status.WARN, True, 4600, XORG, process("Isaac-Sim", "C+G", 4000)),
    "the exporter of DCGM": machine(
        Status.PASS, False, 800, process("nv-hostengine", mib=380), process("dcgm-exporter")
    ),
    "a diagnosis of DCGM": machine(Status.WARN, True, 70_500, process("nvvs", mib=70_000)),
    "another user's train": machine(Status.WARN, True, 40_500, process("python", mib=40_000, user="ada")),
    "a train whose name begins like a desktop's": machine(Status.WARN, True, 9500, process("swayformer", mib=9000)),
    "a process of another PID namespace": machine(
        Status.WARN, True, 500, process(Missing("no process 4711 is seen here"))
    ),
    "memory that a zombie holds": machine(Status.WARN, True, 40_000),
    "memory that a zombie holds beside the desktop": machine(Status.WARN, True, 40_000, XORG, SHELL),
    "a GPU whose memory the driver scrubs after waking it": machine(
        Status.PASS, False, 4, utilization=Utilization(gpu_pct=99)
    ),
    "utilization latched by a process that died in a kernel": machine(
        Status.PASS, False, 0, utilization=Utilization(gpu_pct=100)
    ),
    "a small model of another container": machine(
        Status.PASS, True, 460, utilization=Utilization(gpu_pct=35, memory_pct=0)
    ),
    "work whose memory cannot be read": machine(
        Status.UNKNOWN,
        True,
        UNSUPPORTED,
        utilization=Utilization(gpu_pct=99),
        power=Power(draw_w=610.0, limit_w=700.0),
    ),
    "gpudoctor's own": machine(Status.PASS, False, 900, process("python", mib=500, is_own=True)),
    "a list that could not be read": machine(Status.UNKNOWN, True, 4, processes=OTHERS),
    "a list that was never asked for": machine(Status.UNKNOWN, True, 4, processes=NOT_READ),
    "a list that only the peers have": machine(Status.UNKNOWN, False, 900, processes=UNSUPPORTED),
    "a GPU that lists nothing, as its peers do, and is full": machine(
        Status.UNKNOWN, True, 40_000, processes=UNSUPPORTED
    ),
    "a GPU that tells neither list nor memory": machine(Status.UNKNOWN, True, UNSUPPORTED, processes=UNSUPPORTED),
    "a GPU that nobody uses": machine(Status.PASS, False, 4),
}
EACH = pytest.mark.parametrize("seen", MACHINES.values(), ids=MACHINES)


def node_of(seen: Machine) -> Node:
    node = load_node("hgx-h100-8")
    gpus = [msgspec.structs.replace(gpu, processes=(), memory_used_mib=4) for gpu in node.gpus]
    gpus[3] = msgspec.structs.replace(gpus[3], **seen.leaves)
    return msgspec.structs.replace(node, source=Source("live", "here"), gpus=tuple(gpus))


@EACH
def test_gpu_in_use_warns_of_what_would_be_in_the_way(seen: Machine) -> None:
    result = judge("gpu.in-use", node_of(seen))
    [found] = {f.status for f in result.findings if f.subject.gpu == 3}
    assert found is seen.in_use


@EACH
def test_load_and_plan_try_go_where_nobody_is_in_the_way(seen: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_users, "SECOND_LOOK_S", 0.0)
    args = LoadRequest(backend="auto", gpu=None, ranks=None, force=False)
    node = node_of(seen)
    found = devices_to_load(node, args)
    assert isinstance(found, Missing) is seen.in_the_way
    if isinstance(found, Missing):
        assert found.kind == ("denied" if use_of_gpu(node.gpus[3]).others else "failed")
        assert "GPU 3" in found.reason
        assert "--force" in found.reason


class LaterReadings:
    """A sampler that reads this a few seconds later."""

    def __init__(self, **readings: float) -> None:
        self.readings = readings

    def __call__(self, gpus: list[tuple[int, str]]) -> LaterReadings:
        self.gpus = gpus
        return self

    def stop(self) -> None:
        pass

    def recording(self) -> SampleRecording:
        return SampleRecording(self.gpus, [Sample(1.0, index, self.readings) for index, _ in self.gpus])


@pytest.mark.parametrize(("utilization_pct", "power_w", "loaded"), [(0.0, 640.0, True), (97.0, 640.0, False)])
def test_readings_of_a_gpu_that_wakes_are_taken_again(
    utilization_pct: float, power_w: float, loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_users, "SECOND_LOOK_S", 0.0)
    monkeypatch.setattr(
        "gpudoctor.facts.nvml.sampler.Sampler", LaterReadings(utilization_pct=utilization_pct, power_w=power_w)
    )
    power = Power(draw_w=600.0, limit_w=700.0)
    scrubbed = machine(Status.PASS, True, 4, utilization=Utilization(gpu_pct=99), power=power)
    found = devices_to_load(node_of(scrubbed), LoadRequest())
    assert isinstance(found, Missing) is not loaded


@pytest.mark.parametrize(
    ("name", "verdict", "exit_code"),
    [
        ("a small model of another container", "unknown", 3),
        ("a list that could not be read", "unknown", 3),
        ("another user's train", "warn", 0),
    ],
)
def test_load_refused_on_a_node_that_nobody_is_seen_to_use_is_no_pass(name: str, verdict: str, exit_code: int) -> None:
    node = node_of(MACHINES[name])
    refused = other_users.used_by_others(msgspec.structs.replace(node, source=Source("facts", "there")), node.gpus)
    assert refused is not None
    report = report_on(node, not_run(refused), Question(level="standard"))
    assert (report.verdict, report.exit_code) == (verdict, exit_code)
    if name.startswith("a small model"):
        assert report.reason.startswith("UNKNOWN load refused: GPU 3: 35 % busy")
    required = report_on(node, not_run(refused), Question(level="standard", required=("train",)))
    assert (required.verdict, required.exit_code) == ("unknown", 3)


@EACH
def test_the_screen_asks_by_its_facts_where_the_command_line_refuses(seen: Machine) -> None:
    assert bool(asked(seen)) is seen.in_the_way


@pytest.mark.parametrize("ticks", [False, True])
@pytest.mark.parametrize("name", ["an MPS server that serves nobody", "a client of the MPS server"])
def test_the_screen_asks_by_what_it_last_saw(name: str, ticks: bool) -> None:
    assert bool(asked(MACHINES[name], ticks=ticks)) is MACHINES[name].in_the_way


def asked(seen: Machine, *, ticks: bool = False) -> tuple[str, ...]:
    """What the screen would ask about: known by the facts, or by ticks that brought the processes too."""
    node = node_of(seen)
    state = State(opening=Opening("gpudoctor.watch/1", 0.0, 1.0, node))
    listed = node.gpus[3].processes
    processes = None
    if ticks and not isinstance(listed, Missing):
        processes = tuple(
            ProcessTick(3, p.pid, str(p.name), kind=p.kind, memory_mib=float(str(p.memory_mib))) for p in listed
        )
    gpu = node.gpus[3]
    readings = {
        "memory_used_mib": gpu.memory_used_mib,
        "utilization_pct": gpu.utilization.gpu_pct,
        "power_w": gpu.power.draw_w,
    }
    told = {name: float(value) for name, value in readings.items() if not isinstance(value, Missing)}
    state.take(Tick(1.0, gpus=(GpuTick(3, told),), processes=processes))
    return users_of_gpus(state)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("/usr/lib/xorg/Xorg", "xorg"),
        ("Xorg.bin", "xorg"),
        ("kwin_x11", "kwin"),
        ("gdm3", "gdm"),
        ("chromium-browser", "chromium"),
        ("nvidia-cuda-mps-server", "nvidia-cuda-mps"),
        ("nvidia-cuda-mps", "nvidia-cuda-mps"),
        ("swayformer", None),
        ("chromedriver-train", None),
        ("python", None),
    ],
)
def test_a_program_is_known_by_its_whole_name(name: str, known: str | None) -> None:
    assert system_program(name) == known
