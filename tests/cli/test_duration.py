"""--duration: how long a burn lasts, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from gpudoctor.api.load import storage
from gpudoctor.api.load.burn import burn_duration_s, count_again
from gpudoctor.api.load.measure import CPU_PROBE_DEADLINE_S, RUN_DEADLINE_S
from gpudoctor.checks.core.registry import Level, registry
from gpudoctor.errors import UserError
from gpudoctor.facts import collect
from gpudoctor.facts.model.gpu import Gpu, PcieLink
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import KernelEvent, KernelLog, Node, Source
from gpudoctor.facts.model.telemetry import Burn
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.probes.runner import launch
from tests.cli.conftest import Gpudoctor, assert_error, assert_refused, read_terminal
from tests.needs import needs

BURN = ("check", "--node", "hgx-h100-8", "--level", "burn", "--backend", "gloo")


class Asked(msgspec.Struct):
    """The launcher's arguments, recorded instead of starting ranks."""

    plan: launch.ProbePlan
    deadline_s: float
    probe_deadline_s: float


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    taken: list[Asked] = []

    def run_probes(plan: launch.ProbePlan, *, deadline_s: float, probe_deadline_s: float, **_: object) -> Measurements:
        taken.append(Asked(plan, deadline_s, probe_deadline_s))
        return Measurements()

    monkeypatch.setattr(launch, "run_probes", run_probes)
    monkeypatch.setattr(storage, "with_storage", lambda node, measured, *_: measured)
    return taken


@pytest.mark.parametrize(
    ("text", "seconds"), [("10m", 600.0), ("90s", 90.0), ("1h", 3600.0), ("75", 75.0), ("1.5m", 90.0), ("24h", 86400.0)]
)
def test_a_duration_is_read_as_people_write_it(
    text: str, seconds: float, gpudoctor: Gpudoctor, asked: list[Asked]
) -> None:
    gpudoctor(*BURN, "--duration", text)
    [run] = asked
    assert run.plan.duration_s == seconds
    assert run.plan.level == "burn"


@pytest.mark.parametrize("text", ["", "ten", "10x", "-5m", "m", "1h30m", "nan", "1e3", "9s", "0", "25h", "1_0m", "١٠m"])
def test_nonsense_is_refused_with_one_line_and_exit_2_in_the_format_asked_for(
    text: str, gpudoctor: Gpudoctor, asked: list[Asked]
) -> None:
    outcome = gpudoctor(*BURN, f"--duration={text}", "--json")
    assert_error(outcome, "--duration")
    assert outcome.json["exit_code"] == 2
    assert asked == []


@pytest.mark.parametrize("level", ["quick", "standard", "full"])
def test_a_duration_without_a_burn_is_refused(level: str, gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("check", "--node", "hgx-h100-8", "--level", level, "--duration", "10m")
    assert_refused(outcome, "--level burn")


def test_without_a_duration_the_configuration_says_how_long(
    gpudoctor: Gpudoctor, asked: list[Asked], tmp_path: Path
) -> None:
    gpudoctor(*BURN)
    config = tmp_path / "c.yaml"
    config.write_text("level: burn\nburn_duration_s: 1800\n")
    gpudoctor("check", "--node", "hgx-h100-8", "--backend", "gloo", "--config", str(config))
    gpudoctor("check", "--node", "hgx-h100-8", "--backend", "gloo", "--config", str(config), "--duration", "60s")
    assert [run.plan.duration_s for run in asked] == [600.0, 1800.0, 60.0]
    config.write_text("burn_duration_s: 5\n")
    refused = gpudoctor("check", "--node", "hgx-h100-8", "--config", str(config))
    assert (refused.code, "burn_duration_s" in refused.err) == (2, True)


@pytest.mark.parametrize("level", ["standard", "full", "burn"])
def test_the_whole_run_and_each_probe_have_the_deadline_of_their_level(
    level: Level, gpudoctor: Gpudoctor, asked: list[Asked]
) -> None:
    gpudoctor("check", "--node", "hgx-h100-8", "--level", level, "--backend", "gloo")
    [run] = asked
    assert run.deadline_s == RUN_DEADLINE_S[level] + (600.0 if level == "burn" else 0.0)
    assert run.probe_deadline_s == CPU_PROBE_DEADLINE_S[level]
    assert (run.plan.duration_s is None) is (level != "burn")
    assert RUN_DEADLINE_S["standard"] < RUN_DEADLINE_S["full"]


def test_a_burn_repeats_all_probes_where_none_is_named_and_else_those_that_are(
    gpudoctor: Gpudoctor, asked: list[Asked]
) -> None:
    gpudoctor("check", "burn", *BURN[1:])
    gpudoctor("check", "burn", "train", *BURN[1:])
    gpudoctor("check", "gpu", *BURN[1:])
    assert [run.plan.probes for run in asked] == [("collective", "link", "compute", "train"), ("train",)]


def test_no_level_claims_any_more_that_it_adds_nothing(gpudoctor: Gpudoctor, asked: list[Asked]) -> None:
    for level in ("full", "burn"):
        outcome = gpudoctor("check", "--node", "hgx-h100-8", "--level", level, "--backend", "gloo", "--json")
        assert outcome.json["run"]["notes"] == []


def test_a_burn_that_cannot_load_anything_is_no_pass(gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("check", "burn", "--node", "hgx-h100-8", "--level", "burn", "--json")
    assert outcome.code == 3
    assert {check["status"] for check in outcome.json["checks"]} == {"skip"}
    assert {check["id"] for check in outcome.json["checks"]} == {c.id for c in registry() if c.domain == "burn"}


def test_after_the_load_the_counters_are_read_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    event = KernelEvent("xid", "NVRM: Xid 79", 79)
    before = Node(
        source=Source("live", "here"),
        gpus=(Gpu(0, "0000:10:00.0", uuid="GPU-a", pcie=PcieLink(replays=3)),),
        kernel_log=KernelLog(events=(), source="/dev/kmsg"),
    )
    again = msgspec.structs.replace(
        before,
        gpus=(msgspec.structs.replace(before.gpus[0], pcie=PcieLink(replays=9)),),
        kernel_log=KernelLog(events=(event,), source="/dev/kmsg"),
    )
    monkeypatch.setattr(collect, "collect_live", lambda **_: again)
    found = count_again(before, Measurements(burn=Burn(60.0, 61.0, 3)), 10.0, None).burn
    assert found is not None
    assert not isinstance(found.counters, Missing)
    assert found.counters[0].growth == {"pcie_replays": 6}
    assert found.kernel_events == (event,)
    assert found.counted_s == 61.0


@pytest.mark.parametrize("burn", [None, Burn(60.0, 61.0, 3, counters=Missing("CPU ranks put no load on a GPU"))])
def test_where_no_gpu_was_loaded_nothing_is_read_again(burn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "collect_live", lambda **_: pytest.fail("the driver was asked"))
    measured = Measurements(burn=burn)
    assert count_again(load_node("hgx-h100-8"), measured, 10.0, None) is measured


def test_a_duration_is_told_apart_from_the_one_of_another_level() -> None:
    assert burn_duration_s(None, "standard", 600.0) is None
    assert burn_duration_s(None, "burn", 600.0) == 600.0
    with pytest.raises(UserError, match="this is full"):
        burn_duration_s("10m", "full", 600.0)


@pytest.mark.wide
@needs("torch")
def test_ctrl_c_in_a_later_round_keeps_what_was_known_and_leaves_no_rank(tmp_path: Path) -> None:
    reading, writing = os.openpty()  # progress is shown on a terminal only, with the round
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            # CPU ranks have no links, so that the rounds are short
            [sys.executable, "-m", "gpudoctor", *BURN[:1], "link", "burn", *BURN[1:], "--duration", "1h", "--json"],
            stdout=out,
            stderr=writing,
        )
    os.close(writing)
    assert b"min" in read_terminal(reading, lambda seen: b"round 3" in seen)
    ranks = psutil.Process(process.pid).children(recursive=True)
    assert len(ranks) >= 2
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    os.close(reading)
    _, alive = psutil.wait_procs(ranks, timeout=10)
    assert alive == []
    document = json.loads((tmp_path / "out").read_text())
    assert (document["run"]["interrupted"], document["verdict"]) == ("SIGINT", "unknown")
    assert document["measurements"]["burn"]["rounds"] >= 2
    assert document["measurements"]["burn"]["asked_s"] == 3600
    assert {check["id"]: check["status"] for check in document["checks"]}["burn.drift"] == "unknown"
