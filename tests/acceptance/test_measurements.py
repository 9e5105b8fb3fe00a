"""The ten measurements: what each says of gpudoctor's constants, with figures of healthy GPUs and of others."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from acceptance.assumptions import TITLES, beside_assumed, not_measured, overview
from acceptance.link_steps import ShmUse, copy_rates, judged_copies, judged_nvlinks, judged_shm
from acceptance.plain_loops import PlainFigures, StepTimes
from acceptance.process_steps import Ended, Moment, Watched, judged_idle, judged_processes, judged_teardown
from acceptance.quick_steps import judged_calls, judged_training
from acceptance.rate_steps import judged_all_reduce, judged_memory, judged_together
from acceptance.run import Assumption, Item, result_of
from acceptance.steps import STEPS, TAKES
from gpudoctor.facts.captures.nvidia_smi.nvlink import parse_nvlink
from gpudoctor.facts.model.measured_hardware import PeerLink
from gpudoctor.facts.model.measurements import Collective
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.telemetry import GpuUnderLoad, Spread
from gpudoctor.facts.simulated.load import load_node
from tests.acceptance.conftest import Accept
from tests.acceptance.fake_smi import nvlink
from tests.acceptance.test_run import SHORT, members, texts
from tests.needs import needs

NODE = load_node("hgx-h100-8")
GPU = NODE.gpus[0]


def said(items: Item | Iterable[Item]) -> list[Assumption]:
    """What the items say about constants; each must name those that it tests, as this version has them."""
    found = [item.assumption for item in ([items] if isinstance(items, Item) else items) if item.assumption]
    for assumption in found:
        assert assumption.constants
        for named in assumption.constants:
            path, _, value = named.partition(" = ")
            if value and "[" not in path:
                module, _, name = path.rpartition(".")
                assert hasattr(importlib.import_module(module), name), path
    return found


def results(items: Item | Iterator[Item]) -> list[str]:
    return [each.result for each in said(items)]


def idle_moments(busy_pct: float, until_s: float, power_w: float = 90.0, used_mib: float = 4.0) -> tuple[Moment, ...]:
    return tuple(
        Moment(at / 5, busy_pct if at / 5 < until_s else 0.0, used_mib, power_w if at / 5 < until_s else 90.0)
        for at in range(50)
    )


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        (idle_moments(100.0, 10.0), "confirmed"),  # utilisation alone, as while memory is scrubbed
        (idle_moments(100.0, 2.0, power_w=500.0), "confirmed"),  # over by the second look
        (idle_moments(100.0, 6.0, power_w=500.0), "refuted"),
        (idle_moments(0.0, 10.0, used_mib=2500.0), "refuted"),  # the driver holds more than UNSEEN_MIB
    ],
)
def test_an_idle_gpu_that_looks_used_after_the_second_look_refutes(moments: tuple[Moment, ...], expected: str) -> None:
    assert results(judged_idle(GPU, Watched(0, waking=moments))) == [expected]


@pytest.mark.parametrize(("power_w", "used_mib", "expected"), [(650.0, 500.0, "confirmed"), (120.0, 60.0, "refuted")])
def test_a_load_that_no_list_shows_must_show_in_the_readings(power_w: float, used_mib: float, expected: str) -> None:
    loaded = tuple(Moment(at / 5, 100.0, used_mib, power_w) for at in range(10))
    (assumption,) = said(judged_idle(GPU, Watched(0, loaded=loaded)))
    assert assumption.result == expected
    assert f"{power_w:.0f} W" in assumption.measured


@pytest.mark.parametrize(("seconds", "expected"), [(31.0, "confirmed"), (64.5, "refuted"), (None, "refuted")])
def test_a_teardown_is_measured_against_what_a_healthy_driver_is_granted(seconds: float | None, expected: str) -> None:
    (assumption,) = said(judged_teardown(Ended(8, seconds)))
    assert assumption.result == expected
    assert "rank_starter_client._TEARDOWN_S = 60.0" in assumption.constants[0]


@pytest.mark.parametrize(
    ("listed", "by_smi", "expected"),
    [
        ({4242, 4243}, {4242, 4243}, "confirmed"),
        ({0, 4242, 4294967295}, {4242, 4243}, "refuted"),  # drivers 535.43 to 535.86, read with the smaller struct
        ({4242}, {4242}, "refuted"),
        ({7, 9}, {7, 9}, "confirmed"),  # of another PID namespace, both of them
        (set(), set(), "not measured"),
    ],
)
def test_the_process_list_must_be_that_of_nvidia_smi(listed: set[int], by_smi: set[int], expected: str) -> None:
    assert results(judged_processes(GPU, listed, by_smi, {4242, 4243})) == [expected]


@pytest.mark.parametrize(("peak_mib", "expected"), [(252.6, "confirmed"), (56.0, "refuted"), (400.0, "refuted")])
def test_what_nccl_maps_is_measured_against_the_table_of_its_pools(peak_mib: float, expected: str) -> None:
    (assumption,) = said(judged_shm(ShmUse({"NCCL_CUMEM_ENABLE": "0"}, 8, 500, peak_mib, "2.27.5", 252.0)))
    assert assumption.result == expected
    assert assumption.constants[-1].endswith("_POOLS[(2, 26)] = (2048, 72, 224)")


def test_a_call_that_takes_as_long_as_its_deadline_refutes_it() -> None:
    assert results(judged_calls({"nvmlDeviceGetName on GPU 3": 9.0}, [])) == ["confirmed"]
    assert results(judged_calls({"nvmlDeviceGetName on GPU 3": 11.0}, [])) == ["refuted"]
    assert results(judged_calls({"nvmlInit": 11.0}, [])) == ["confirmed"]  # it may wake GPUs
    assert results(judged_calls({"nvmlInit": 0.1}, ["nvmlDeviceGetName did not return in 60 s"])) == ["refuted"]


@pytest.mark.parametrize(
    ("during_ms", "after_ms", "expected"),
    [(10.1, 10.0, "confirmed"), (12.0, 10.0, "refuted"), (12.0, 14.0, "not measured")],
)
def test_a_training_may_not_become_slower_beside_quick_checks(during_ms: float, after_ms: float, expected: str) -> None:
    took_ms = [10.0] * 30 + [during_ms] * 30 + [after_ms] * 30
    times = StepTimes(tuple(float(at) for at in range(90)), tuple(ms / 1e3 for ms in took_ms))
    (assumption,) = said(judged_training(times, 30.0, 60.0, 12))
    assert assumption.result == expected


def test_healthy_gpus_at_their_power_limit_refute_the_limit_of_compute_gemm() -> None:
    alone, all_ = PlainFigures((700.0,), (2500.0,)), PlainFigures((600.0, 500.0), (2500.0, 2500.0))
    spread = {"sm_mhz": Spread(1200.0, 1300.0, 1400.0), "power_w": Spread(690.0, 700.0, 705.0)}
    clocks = [GpuUnderLoad(index, None, samples=9, readings=spread) for index in range(2)]
    found = said(judged_together(NODE, NODE.gpus[:2], "bf16", alone, all_, (clocks[:1], clocks)))
    assert [each.result for each in found] == ["confirmed", "refuted", "refuted", "refuted"]
    assert "1300 MHz, 700 W" in found[1].measured


def test_one_gpu_has_nothing_to_be_measured_beside() -> None:
    alone = PlainFigures((700.0,), (2500.0,))
    assert results(judged_together(NODE, NODE.gpus[:1], "bf16", alone, alone, ((), ()))) == [
        "confirmed",
        "not measured",
    ]


@pytest.mark.parametrize(("triad", "expected"), [(2900.0, "confirmed"), (2000.0, "refuted"), (9000.0, "refuted")])
def test_memory_is_measured_against_the_data_sheet(triad: float, expected: str) -> None:
    assert results(judged_memory(NODE, NODE.gpus[:1], PlainFigures((700.0,), (1900.0,), (triad,)))) == [expected]


READ = """Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) {arrow} GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    370.00
 1    {other}       N/A

SUM device_to_device_memcpy_read_ce 740.00
"""


def test_copies_are_compared_by_direction() -> None:
    rates = copy_rates(READ.format(arrow="->", other="300.00"))
    assert rates == {(0, 1): 370.0, (1, 0): 300.0}
    assert copy_rates(READ.format(arrow="<-", other="300.00")) == {(1, 0): 370.0, (0, 1): 300.0}
    own = (PeerLink(0, 1, 1 << 28, 365.0), PeerLink(1, 0, 1 << 28, 365.0))
    (assumption,) = said(judged_copies(own, rates))
    assert assumption.result == "refuted"
    assert "rank 1 to 0" in assumption.measured
    assert results(judged_copies(own, copy_rates(READ.format(arrow="->", other="371.00")))) == ["confirmed"]


ROW = "{size} 1 float sum -1 1182.4 227.03 {busbw} 0 1178.9 227.70 398.48 0"


@pytest.mark.parametrize(("busbw", "expected"), [(400.0, "confirmed"), (300.0, "refuted")])
def test_large_messages_decide_about_all_reduce(busbw: float, expected: str) -> None:
    table = f"{ROW.format(size=1 << 20, busbw=20.0)}\n{ROW.format(size=1 << 28, busbw=busbw)}\n"
    own = [
        Collective("all_reduce", size, "float32", 9, 1.0, 0.1, 9.0, gb_s)
        for size, gb_s in ((1 << 20, 5.0), (1 << 28, 390.0))
    ]
    (assumption,) = said(judged_all_reduce(own, table, "NVLS off, 8 GPUs"))
    assert assumption.result == expected
    assert "1024 KiB 5/20" in assumption.measured  # shown, although too small to decide


def test_nvlinks_are_those_of_nvidia_smi_and_as_fast_as_the_profile_says() -> None:
    shown = {dump.uuid: dump.nvlinks for dump in parse_nvlink(nvlink(NODE))}
    assert set(results(judged_nvlinks(NODE, shown))) == {"confirmed"}
    down = tuple(replace(link, state="inactive") for link in known(GPU.nvlinks) or ())
    shown[str(GPU.uuid)] = down
    slow = tuple(replace(link, speed_gb_s=12.0) for link in known(GPU.nvlinks) or ())
    found = said(judged_nvlinks(replace(NODE, gpus=(replace(GPU, nvlinks=slow),)), shown))
    assert [each.result for each in found] == ["refuted", "refuted"]


def test_each_of_the_ten_is_taken_by_a_step_and_listed_with_its_worst_result() -> None:
    assert sorted({number for _, numbers in TAKES for number in numbers}) == list(TITLES) == list(range(1, 11))
    items = (
        beside_assumed(2, True, "1 s", "60 s", "a.b = 1"),
        beside_assumed(2, False, "99 s", "60 s"),
        not_measured(3, "no GPU"),
    )
    lines = overview([result_of("contexts", "contexts", 1.0, items)], TAKES)
    assert [line.split()[1] for line in lines[:3]] == ["NOT", "REFUTED", "NOT"]
    assert len(lines) == 10


@pytest.mark.wide
@needs("torch")
def test_without_a_gpu_every_step_runs_and_says_which_of_the_ten_it_takes(accept: Accept) -> None:
    steps = [step.name for step in STEPS if step.measures and step.name not in ("under-load", "rates")]
    ran = accept(*SHORT, *(word for name in steps for word in ("--only", name)))
    assert ran.code == 0, ran.out
    found = json.loads(members(ran.archive)["acceptance.json"])["steps"]
    by_step: dict[str, set[int]] = {
        step["step"]: {item["assumption"]["number"] for item in step["items"] if "assumption" in item} for step in found
    }
    assert by_step == {step.name: set(step.measures) for step in STEPS if step.name in steps}
    assert len(texts(ran, "nvlinks", "agreed")) == 2 * 8  # by the fake driver and a fake nvidia-smi
    raw: dict[str, Any] = {name: data for name, data in members(ran.archive).items() if name.startswith("measured-")}
    assert len(json.loads(raw["measured-idle.json"])) == 8
    assert json.loads(raw["measured-shm.json"])[0]["readings"] > 0
    assert json.loads(raw["measured-training.json"])["took_s"]
    assert "10 CONFIRMED    NVLinks against nvidia-smi nvlink -s (step nvlinks)" in ran.out
