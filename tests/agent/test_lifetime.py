"""Over time: restarts, kills, runs that hang, strikes, and ends that leave nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.agent.running import DEADLINE_S, FAULTY, HEALTHY, Agent, agent, refused, wait_for
from tests.cli.test_plugins import install

OFTEN = ("--interval", "1")


def state_file(folder: Path) -> Path:
    return folder / "state" / "gpudoctor" / "tried" / "agent.json"


def changed(folder: Path, change: Callable[[Any], None]) -> None:
    kept = json.loads(state_file(folder).read_text())
    change(kept)
    state_file(folder).write_text(json.dumps(kept))


def write_node(path: Path, *faults: str) -> None:
    """A facts file, whole or not at all."""
    words = [f"--fault={fault}" for fault in faults]
    subprocess.run(
        [sys.executable, "-m", "gpudoctor", "facts", "--node", "hgx-h100-8", *words, "-o", str(path)], check=True
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the state of an agent that was killed after its first run."""
    folder = tmp_path_factory.mktemp("kept")
    with agent(folder, *FAULTY) as it:
        it.after_run()
        it.end(signal.SIGKILL)
    return folder


@pytest.fixture
def left(kept: Path, tmp_path: Path) -> Path:
    state_file(tmp_path).parent.mkdir(parents=True)
    state_file(tmp_path).write_bytes(state_file(kept).read_bytes())
    return tmp_path


@pytest.mark.wide
def test_after_kill_9_the_last_report_and_its_strikes_are_there_with_their_age(left: Path) -> None:
    before = json.loads(state_file(left).read_text())["last"]
    with agent(left, *FAULTY) as it:
        metrics = it.metrics()
        assert metrics.of("gpudoctor_agent_runs_total", outcome="report") == [0]  # none was needed
        assert metrics.of("gpudoctor_agent_strikes", check="pcie.link-width", gpu="5") == [1]
        assert metrics.of("gpudoctor_verdict", verdict="fail") == [1]
        assert it.report()["run"]["id"] == before["report"]["run"]["id"]
        assert it.ask("/healthz").body.startswith("SIMULATED FAIL pcie.link-width GPU 5")

    changed(left, lambda kept: kept["last"]["ended"].update(since_boot_s=before["ended"]["since_boot_s"] - 500))
    with agent(left, *FAULTY) as it:
        assert int(it.ask("/report").headers["Age"]) >= 500
        assert "s old)" in it.ask("/healthz").body


@pytest.mark.wide(every=2)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"boot": "another"}, "before this machine's last boot"),
        ({"since_boot_s": 0.0}, "stale"),
    ],
)
def test_a_report_that_is_too_old_says_nothing_of_now(left: Path, change: dict[str, object], words: str) -> None:
    def age(kept: Any) -> None:
        kept["last"]["ended"].update(change)
        kept["last"]["report"].update(verdict="pass", exit_code=0)

    changed(left, age)
    with agent(left, *FAULTY, "--interval", "10", "--deadline", "1") as it:
        metrics, health, report = it.metrics(), it.ask("/healthz"), it.ask("/report")
        if metrics.of("gpudoctor_agent_runs_total", outcome="report") != [0]:
            pytest.skip("the machine was so slow that the next run came")
        assert (health.status, report.status) == (503, 503)
        assert health.body.startswith("SIMULATED UNKNOWN")
        assert words in health.body
        assert metrics.of("gpudoctor_verdict", verdict="unknown") == [1]
        assert metrics.of("gpudoctor_verdict", verdict="pass") == [0]
        assert metrics.of("gpudoctor_agent_report_fresh") == [0]
        for gone in ("check_status", "check_value_lanes", "faults", "gpu_info", "agent_alarms", "agent_strikes"):
            assert f"gpudoctor_{gone}" not in metrics
        assert len(metrics.of("gpudoctor_run_timestamp_seconds")) == 1


def test_a_corrupt_state_is_said_and_replaced(tmp_path: Path) -> None:
    state_file(tmp_path).parent.mkdir(parents=True)
    state_file(tmp_path).write_bytes(b"{")
    with agent(tmp_path, *HEALTHY) as it:
        assert "is not used, and will be replaced" in it.words()
        assert it.after_run().of("gpudoctor_verdict", verdict="pass") == [1]
        assert json.loads(state_file(tmp_path).read_text())["last"]["report"]["verdict"] == "pass"


@pytest.mark.wide
def test_the_report_of_another_node_is_never_shown_as_ours(left: Path) -> None:
    with agent(left, *HEALTHY) as it:
        assert "it is of another node" in it.words()
        assert it.after_run().of("gpudoctor_agent_strikes") == []
        assert it.ask("/healthz").status == 200


@pytest.mark.wide
def test_before_the_first_report_nothing_is_ok(tmp_path: Path) -> None:
    with agent(tmp_path, *HEALTHY, "--interval", "86400", jitter="86400") as it:
        metrics, health = it.metrics(), it.ask("/healthz")
        assert (health.status, it.ask("/report").status) == (503, 503)
        assert "no report yet" in health.body
        assert metrics.of("gpudoctor_verdict", verdict="unknown") == [1]
        assert "gpudoctor_agent_alarms" not in metrics


@pytest.mark.wide
def test_a_second_agent_with_the_same_state_is_refused(tmp_path: Path) -> None:
    with agent(tmp_path, *HEALTHY) as it:
        done = refused(tmp_path, "--listen", "127.0.0.1:0", *HEALTHY)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "another agent keeps its state there" in done.err
        assert it.after_run()


@pytest.mark.wide
def test_systemds_state_directory_is_taken_and_a_state_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "of-systemd"
    (folder / "agent.json").mkdir(parents=True)
    with agent(tmp_path, *HEALTHY, STATE_DIRECTORY=f"{folder}:/other") as it:
        assert it.after_run().of("gpudoctor_agent_state_kept") == [0]
        assert "the state is not kept" in it.words()
        assert it.ask("/healthz").status == 200
    assert (folder / "agent.lock").is_file()


@pytest.mark.wide
def test_a_warn_is_an_alarm_once_it_came_often_enough_and_a_fail_at_once(tmp_path: Path) -> None:
    node = tmp_path / "node.json"
    write_node(node, "persistence-off")

    def alarm(it: Agent, status: str) -> Callable[[], bool]:
        return lambda: bool(it.metrics().of("gpudoctor_agent_alarm", check="gpu.settings", status=status))

    with agent(tmp_path, "--node", str(node), "--strikes", "2", *OFTEN) as it:
        first = it.after_run()
        if first.of("gpudoctor_agent_runs_total", outcome="report") == [1]:
            assert first.of("gpudoctor_agent_alarms") == [0]
            assert first.of("gpudoctor_agent_strikes", check="gpu.settings")[0] == 1
        assert first.of("gpudoctor_check_status", check="gpu.settings", status="warn")
        assert it.ask("/healthz").status == 200
        wait_for(alarm(it, "warn"))
        health = it.ask("/healthz")
        assert health.status == 200  # it works, and reports that this needs attention
        assert "repeatedly: gpu.settings" in health.body
        write_node(node, "pcie-width-x8@5")
        wait_for(lambda: it.ask("/healthz").status == 503)
        metrics = it.metrics()
        assert metrics.of("gpudoctor_agent_alarm", status="fail", check="pcie.link-width", gpu="5") == [1]
        assert metrics.of("gpudoctor_agent_strikes", check="gpu.settings") == []
        write_node(node)
        wait_for(lambda: it.ask("/healthz").status == 200)
        assert it.metrics().of("gpudoctor_agent_alarms") == [0]
        assert it.metrics().of("gpudoctor_agent_strikes") == []


def hanging(folder: Path) -> tuple[dict[str, str], Path]:
    """A plugin that hangs while a file is there: the environment with it, and the file."""
    site, flag = folder / "site", folder / "hang"
    site.mkdir()
    code = f"import os, time\nwhile os.path.exists({str(flag)!r}): time.sleep(3600)\n"
    return install(site, code), flag


@pytest.mark.wide
def test_a_run_that_hangs_is_ended_said_and_never_doubled_and_the_agent_answers_meanwhile(tmp_path: Path) -> None:
    env, flag = hanging(tmp_path)
    node = ("--node", "hgx-h100-8", "--fault", "persistence-off")
    with agent(tmp_path, *node, "--deadline", "4", *OFTEN, **env) as it:
        it.after_run()
        flag.touch()

        def unknown() -> bool:
            assert len(it.checks()) <= 1
            return "did not end in 4 s" in it.ask("/healthz").body

        wait_for(unknown)
        health, metrics = it.ask("/healthz"), it.metrics()
        assert health.status == 503
        assert health.body.startswith("SIMULATED UNKNOWN")
        assert metrics.of("gpudoctor_verdict", verdict="unknown") == [1]
        assert "gpudoctor_check_status" not in metrics
        assert "gpudoctor_agent_alarms" not in metrics
        assert metrics.of("gpudoctor_run_exit_code") == [2]
        assert it.report()["simulated"] is True
        # earlier results are not forgotten: the row continues with the next verdict
        strikes = json.loads(state_file(tmp_path).read_text())["last"]["strikes"]
        assert {strike["check"] for strike in strikes} == {"gpu.settings"}
        flag.unlink()
        wait_for(lambda: it.ask("/healthz").status == 200)
        assert min(it.metrics().of("gpudoctor_agent_strikes", check="gpu.settings")) > min(s["in_row"] for s in strikes)


@pytest.mark.wide(every=3)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_in_the_middle_of_a_run_and_nothing_is_left(tmp_path: Path, number: signal.Signals) -> None:
    env, flag = hanging(tmp_path)
    with agent(tmp_path, *HEALTHY, *OFTEN, **env) as it:
        it.after_run()
        flag.touch()
        running = wait_for(it.checks)
        assert it.end(number) == 128 + number
        assert psutil.wait_procs(running, DEADLINE_S)[1] == []
        assert "Traceback" not in it.words()
        assert [path.name for path in state_file(tmp_path).parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.wide
def test_a_source_that_breaks_later_is_unknown_and_not_the_end(tmp_path: Path) -> None:
    node = tmp_path / "node.json"
    write_node(node)
    with agent(tmp_path, "--node", str(node), *OFTEN) as it:
        it.after_run()
        node.write_text("{")
        wait_for(lambda: it.ask("/healthz").status == 503)
        assert "node.json" in it.ask("/healthz").body
        assert it.report()["error"]
        assert it.process.poll() is None
