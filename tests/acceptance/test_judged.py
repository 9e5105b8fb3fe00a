"""What two sources report, and whether they agree: rates, leaves, settings, and steps that break."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from msgspec.structs import replace

from acceptance.children import Guardian, beside, run_child
from acceptance.command import run_steps
from acceptance.driver_child import DriverReading
from acceptance.driver_steps import judged as judged_settings
from acceptance.plain_loops import HostCopies, LoopOrder, PlainFigures
from acceptance.quick_steps import verdicts
from acceptance.rate_steps import all_reduce, bus_bandwidth, judged, rate_item
from acceptance.run import AcceptanceRequest, AcceptanceRun, Item, Step, agreed, result_of
from acceptance.smi_step import compare, compared
from acceptance.steps import level_items, wanted_steps
from gpudoctor.checks.core.finding import Status, unknown
from gpudoctor.checks.core.registry import all_checks
from gpudoctor.checks.core.subject import of_rank
from gpudoctor.errors import UserError
from gpudoctor.facts.captures.nvidia_smi.query_xml import parse_smi_xml
from gpudoctor.facts.model.gpu import Clocks, Gpu, Power, Thermal
from gpudoctor.facts.model.measured_hardware import ComputeRank, Gemm, HostLink
from gpudoctor.facts.model.measurements import Launch, Measurements, ProbeProblem
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing
from gpudoctor.facts.model.node import Source
from gpudoctor.facts.simulated.load import apply_faults, load_node
from gpudoctor.process.own_program import own_python
from gpudoctor.report.judge import Question, judge
from gpudoctor.report.model import Report, SourceSummary
from gpudoctor.report.model import Run as ReportRun
from tests.acceptance.fake_smi import dump
from tests.fake_driver.conftest import COMMAND, ROOT
from tests.needs import needs

PLAIN = {"PATH": "/usr/bin:/bin"}


def of(items: Iterable[Item], outcome: str) -> list[str]:
    return [item.text for item in items if item.outcome == outcome]


@pytest.mark.parametrize(
    ("ours", "before", "after", "outcome"),
    [
        (640.0, 650.0, 640.0, "agreed"),
        (663.0, 650.0, 640.0, "agreed"),
        (580.0, 650.0, 640.0, "did not agree"),  # 10 % below
        (710.0, 650.0, 640.0, "did not agree"),  # 10 % above: a figure that no GPU reached
        (640.0, 650.0, 610.0, "could not look"),  # the loop itself moved by 6 %
        (0.0, 650.0, 650.0, "did not agree"),
        (640.0, 0.0, 0.0, "could not look"),
        (Missing("no memory", "failed"), 650.0, 650.0, "did not agree"),
    ],
)
def test_a_rate_agrees_within_3_percent_of_a_plain_loop_that_is_steady(
    ours: float | Missing, before: float, after: float, outcome: str
) -> None:
    assert rate_item("GPU 0: bf16 GEMM", "TFLOP/s", ours, before, after).outcome == outcome


def test_the_figure_of_one_gpu_that_is_off_is_named_and_no_other() -> None:
    ours = Measurements(
        compute=tuple(
            ComputeRank(rank=rank, gemms=(Gemm("bf16", 8192, tflops, 1.0),), copy_gb_s=2500.0, triad_gb_s=2610.0)
            for rank, tflops in enumerate((640.0, 570.0))
        ),
        host_links=tuple(HostLink(rank, 1 << 28, h2d_alone_gb_s=55.0, d2h_alone_gb_s=54.0) for rank in range(2)),
    )
    order = LoopOrder(("GPU-a", "GPU-b"), "bf16", 8192, 3.0, (HostCopies(0, 1 << 28), HostCopies(1, 1 << 28)))
    plain = PlainFigures((640.0, 640.0), (2490.0, 2490.0), (2600.0, 2600.0), (55.2, 55.2), (54.1, 60.0))
    items = list(judged(ours, ["GPU 0", "GPU 1"], order, plain, plain))
    assert of(items, "did not agree") == [
        "GPU 1: bf16 GEMM: gpudoctor 570, plain loop 640 TFLOP/s (-10.9%); allowed are 3%",
        "GPU 1: GPU to host: gpudoctor 54, plain loop 60 GB/s (-10.0%); allowed are 3%",
    ]
    assert len(of(items, "agreed")) == 8


@pytest.mark.wide
@needs("torch")
def test_the_plain_loops_run_on_a_cpu() -> None:
    order = msgspec.json.encode(LoopOrder((), "fp32", 128, 0.1)).decode()
    done = subprocess.run(
        own_python("acceptance.plain_loops", "main", order), capture_output=True, check=True, timeout=120
    )
    figures = msgspec.json.decode(done.stdout, type=PlainFigures)
    assert len(figures.gemm_tflops) == len(figures.copy_gb_s) == 1
    assert figures.gemm_tflops[0] > 0
    assert figures.copy_gb_s[0] > 0


OUT, IN = "1182.4  227.03  397.30", "1178.9  227.70  398.48"
NCCL_ROW = f"   268435456      67108864     float     sum      -1   {OUT}      0   {IN}      0"
OLDER_ROW = f"   268435456      67108864     float     sum   {OUT}  0e+00   {IN}  0e+00"


@pytest.mark.parametrize("row", [NCCL_ROW, OLDER_ROW])
def test_the_bus_bandwidth_of_nccl_tests_is_the_one_out_of_place_with_and_without_a_root(row: str) -> None:
    text = f"# nThread 1 nGpus 8 minBytes 268435456\n#       size         count      type\n{row}\n# Avg bus bandwidth"
    assert bus_bandwidth(text, 268435456) == 397.30
    assert bus_bandwidth(text, 1024) is None


BEFORE = Gpu(
    0,
    "0000:1b:00.0",
    name="NVIDIA H100 80GB HBM3",
    vbios="96.00.74.00.01",
    power=Power(draw_w=70.1, limit_w=700.0, default_limit_w=Missing("no permission", "denied")),
    thermal=Thermal(gpu_c=30, slowdown_c=UNSUPPORTED, slowdown_margin_c=-2),
    clocks=Clocks(sm_mhz=345, sm_max_mhz=1980),
    pcie=replace(Gpu(0, "").pcie, replays=3, width=16),
)
AFTER = replace(BEFORE, pcie=replace(BEFORE.pcie, replays=9))


def test_a_leaf_agrees_with_what_was_read_around_it() -> None:
    smi = replace(
        BEFORE,
        name="nvidia H100 80GB HBM3",  # capitals say nothing
        power=Power(draw_w=450.0, limit_w=700.004, default_limit_w=700.0),
        thermal=Thermal(gpu_c=34, slowdown_c=87, slowdown_margin_c=-2),
        clocks=Clocks(sm_mhz=1980, sm_max_mhz=1980),
        pcie=replace(BEFORE.pcie, replays=5),  # it grew meanwhile
    )
    made = compare(BEFORE, AFTER, smi)
    assert (made.differ, made.denied) == ([], ["power.default_limit_w"])
    assert made.same >= 8


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"vbios": "96.00.74.00.02"}, "vbios: gpudoctor 96.00.74.00.01, nvidia-smi 96.00.74.00.02"),
        ({"vbios": Missing("nvidia-smi says N/A", "unsupported")}, "vbios: gpudoctor 96.00.74.00.01, nvidia-smi none"),
        ({"pcie": replace(BEFORE.pcie, replays=2)}, "pcie.replays: gpudoctor 3, nvidia-smi 2"),
        ({"thermal": replace(BEFORE.thermal, gpu_c=60)}, "thermal.gpu_c: gpudoctor 30, nvidia-smi 60"),
        ({"clocks": replace(BEFORE.clocks, sm_mhz=UNSUPPORTED)}, "clocks.sm_mhz: gpudoctor 345, nvidia-smi none"),
    ],
)
def test_a_leaf_that_is_outside_of_what_was_read_around_it_is_named(change: dict[str, object], named: str) -> None:
    (said,) = compare(BEFORE, AFTER, replace(BEFORE, **change)).differ
    assert said.startswith(named)


def test_a_gpu_that_only_one_of_the_two_sees_is_named() -> None:
    node = load_node("t4-cloud-4")
    shown = parse_smi_xml(dump(replace(node, gpus=node.gpus[:3])))
    said = of(compared(node, node, shown), "did not agree")
    assert f"GPU {node.gpus[3].bus_id}: only gpudoctor sees it" in said
    assert "number of GPUs: gpudoctor 4, nvidia-smi 3" in said


def test_a_captured_dump_agrees_with_the_facts_that_were_read_from_it(captures: Path) -> None:
    for name in ("qx-h100.xml", "qx-t4.xml", "qx-gb200.xml", "qx-l40s.xml"):
        shown = parse_smi_xml((captures / name).read_text(encoding="utf-8"))
        node = replace(load_node("t4-cloud-4"), driver=shown.driver, gpus=shown.gpus)
        items = list(compared(node, node, shown))
        assert of(items, "did not agree") == [], name
        assert int(of(items, "agreed")[0].split()[0]) > 40


def quick_report(*faults: str) -> Report:
    node = apply_faults(load_node("hgx-h100-8"), list(faults))
    run = ReportRun("test", "", 0.0, "quick", SourceSummary("simulated", ""))
    return judge(node, question=Question(checks=all_checks(), level="quick"), run=run)


def test_a_cap_must_be_named_on_its_gpu_and_nothing_else_may_be() -> None:
    gpu, may_say = load_node("hgx-h100-8").gpus[3], frozenset({"gpu.power-limit"})
    healthy = quick_report()

    def said(*faults: str) -> list[Item]:
        return list(judged_settings(healthy, quick_report(*faults), gpu, "a power cap", may_say))

    assert [item.outcome for item in said("power-cap@3")] == ["agreed"]
    assert of(said(), "did not agree") == [f"a power cap on {gpu.label} is named by no check"]
    other = of(said("power-cap@5"), "did not agree")
    assert len(other) == 2
    assert "gpu.power-limit warn of 0000:" in other[1]
    both = of(said("power-cap@3", "pcie-width-x8@5"), "did not agree")
    assert both
    assert all("has nothing to do with it" in line for line in both)


def test_a_level_tells_what_its_ranks_met_and_what_was_not_put_under_load() -> None:
    report = quick_report()
    trouble = Measurements(
        launch=Launch("nccl", 8, ()), problems=(ProbeProblem("train", "crash", "rank 3 died", rank=3),)
    )
    assert of(level_items(replace(report, measurements=trouble)), "did not agree") == [
        "train crash: rank 3: rank 3 died"
    ]
    idle = Measurements(not_run={"train": Missing("GPU 2 is in use by pid 77")})
    assert of(level_items(replace(report, measurements=idle)), "could not look") == [
        "level quick under load: GPU 2 is in use by pid 77"
    ]


@pytest.mark.parametrize(("backend", "outcome"), [("gloo", "could not look"), ("nccl", "did not agree")])
def test_a_rank_too_noisy_to_judge_is_no_disagreement_on_a_cpu_and_is_one_on_a_gpu(
    backend: Literal["gloo", "nccl"], outcome: str
) -> None:
    report = quick_report()
    noisy = unknown(of_rank(1), "too noisy to judge")
    checks = tuple(
        replace(check, status=Status.UNKNOWN, findings=(noisy,)) if check.id == "gpu.count" else check
        for check in report.checks
    )
    report = replace(report, checks=checks, verdict="unknown", measurements=Measurements(Launch(backend, 2, ())))
    assert [item.outcome for item in verdicts(report)] == [outcome]


def test_a_step_that_breaks_off_did_not_agree_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(run: AcceptanceRun) -> Iterator[Item]:
        yield agreed("the beginning")
        raise KeyError("busbw")

    def hangs(run: AcceptanceRun) -> Iterator[Item]:
        done = run.child(["sleep", "600"])
        yield agreed("it ended") if not done.late else Item("did not agree", done.words)

    def says_nothing(run: AcceptanceRun) -> Iterator[Item]:
        yield from ()

    run = AcceptanceRun(AcceptanceRequest(), tmp_path, "mark", lambda _: None)
    monkeypatch.setattr("acceptance.command.first_look", lambda run: None)
    steps = (
        Step("a", "breaks", 60.0, breaks),
        Step("b", "hangs", 0.5, hangs),
        Step("c", "silent", 60.0, says_nothing),
    )
    results, interrupted = run_steps(run, steps)
    assert interrupted is None
    assert [result.outcome for result in results] == ["did not agree"] * 3
    assert results[0].items[1].text == "the step broke off: KeyError: 'busbw'"
    assert "did not end in" in results[1].items[0].text
    assert "without a word" in results[2].items[0].text


def test_a_step_of_which_nothing_could_be_seen_did_not_agree_silently() -> None:
    assert result_of("x", "", 0.0, (Item("could not look", "no GPU"),)).outcome == "could not look"
    assert result_of("x", "", 0.0, (Item("could not look", ""), agreed(""))).outcome == "agreed"
    assert result_of("x", "", 0.0, ()).outcome == "did not agree"


def test_what_the_guardian_cannot_put_back_it_says_with_the_command(tmp_path: Path) -> None:
    done, refused = tmp_path / "done", [sys.executable, "-c", "print('Insufficient Permissions'); exit(4)"]
    guardian = Guardian([["touch", str(done)], refused])
    assert not done.exists()
    assert guardian.close() == (f"{' '.join(refused)}: Insufficient Permissions",)
    assert done.exists()


def test_a_child_that_leaves_a_grandchild_with_its_pipe_is_not_waited_for(tmp_path: Path) -> None:
    script = "sleep 300 & echo $!"
    done = run_child(["sh", "-c", script], deadline_s=60, environ=PLAIN, cwd=tmp_path)
    os.kill(int(done.stdout), signal.SIGKILL)  # still there, for the step left-behind to see
    assert (done.code, done.late) == (0, False)


@pytest.mark.wide
def test_a_driver_call_that_hangs_is_named_and_ends_the_reading(cache: Path) -> None:
    """A GPU on which one call never returns: reading its driver reports which call, and does not wait forever."""
    command = [*COMMAND, "--node", "hgx-h100-8", "--fault", "driver-hang@3", "--"]
    done = subprocess.run(
        [*command, *own_python("acceptance.driver_child", "main", "1")],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    reading = msgspec.json.decode(done.stdout, type=DriverReading)
    assert sorted(reading.read) == [0, 1, 2, 4, 5, 6, 7]
    assert [said for said in reading.hung if "on GPU 3 did not return in 1 s" in said] == reading.hung != []


def test_a_load_that_ends_too_early_is_no_load(tmp_path: Path) -> None:
    with beside(["sh", "-c", "echo running; cat"], environ=PLAIN, cwd=tmp_path, deadline_s=60) as said:
        assert said == "running"
    with (
        pytest.raises(UserError, match="ended too early: exit code 7"),
        beside(["sh", "-c", "echo running; exit 7"], environ=PLAIN, cwd=tmp_path, deadline_s=60) as said,
    ):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    with beside(["sh", "-c", "exit 3"], environ=PLAIN, cwd=tmp_path, deadline_s=60, may_end_with=3) as said:
        assert said == ""  # no torch: nothing to run


@pytest.mark.parametrize(
    ("script", "deadline_s", "words"),
    [("exit 1", 60, "ended too early: exit code 1"), ("exec sleep 600", 0.5, "had not begun after 0 s")],
)
def test_a_load_that_breaks_before_it_begins_is_no_missing_torch(
    tmp_path: Path, script: str, deadline_s: float, words: str
) -> None:
    """A GPU on which CUDA does not start, or hangs."""
    command = ["sh", "-c", script]
    with (
        pytest.raises(UserError, match=words),
        beside(command, environ=PLAIN, cwd=tmp_path, deadline_s=deadline_s, may_end_with=3) as said,
    ):
        assert said == ""


def test_all_reduce_of_one_gpu_asks_for_no_program(tmp_path: Path) -> None:
    """A node with one GPU: nccl-tests is not what is missing."""
    run = AcceptanceRun(AcceptanceRequest(), tmp_path, "mark", lambda _: None)
    run.node = replace(load_node("hgx-h100-8"), source=Source("live"), gpus=load_node("hgx-h100-8").gpus[:1])
    assert [item.outcome for item in all_reduce(run)] == ["could not look"]
    assert "two or more" in next(all_reduce(run)).text


def test_no_title_of_a_step_is_cut_off() -> None:
    for step in wanted_steps(AcceptanceRequest()):
        assert len(f"{'DID NOT AGREE':<15} {step.name:<12} {1000.0:6.1f} s  {step.title}") <= 80, step.title
