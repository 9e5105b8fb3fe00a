"""What each hook does on each verdict: which drains it asks for, and whether Slurm may go on."""

from __future__ import annotations

import fcntl
import os
import re
from typing import Any

import pytest

from gpudoctor.errors import UserError
from gpudoctor.slurm import HOOKS, Hook
from gpudoctor.slurm.drain import drain_reason
from gpudoctor.slurm.quick_check import HookVerdict
from gpudoctor.slurm.settings import HookSettings
from tests.slurm.conftest import Node

_JOB_HOOKS: tuple[Hook, ...] = ("prolog", "epilog")
_REASON = "gpudoctor: SIMULATED FAIL gpu.xid GPU 3 (0000:4b:00.0): Xid 79: GPU has fallen off the bus"
_DRAIN = f"update nodename=n1 state=drain reason={_REASON}"

# no fault of hardware: it returns without a check under load
_SOFT = "gpudoctor: SIMULATED FAIL gpu.settings GPU 3 (0000:4b:00.0): compute mode is prohibited: no CUDA pro"


def test_a_failure_drains_a_node_in_service_the_prolog_refuses_the_job_and_the_epilog_does_not_fail(node: Node) -> None:
    go_on = [node.run(hook).go_on for hook in HOOKS]

    assert go_on == [False, True, True]
    assert node.updates() == [_DRAIN] * 3


def test_a_job_that_does_not_have_the_bad_gpu_starts(node: Node) -> None:
    assert node.run("prolog", SLURM_JOB_GPUS="0,1,2").go_on
    node.settings["GPUDOCTOR_SCOPE"] = "node"
    assert not node.run("prolog", SLURM_JOB_GPUS="0,1,2").go_on


def test_a_trial_needs_no_gpu_in_slurms_eyes(node: Node) -> None:
    assert not node.run("prolog", SLURM_JOB_GPUS="").go_on
    assert node.updates() == [_DRAIN]


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN", "DOWN*", "ALLOCATED+DRAIN", "FAIL"])
def test_no_hook_writes_over_the_reason_of_somebody_else(
    node: Node, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    node.node(state, "ticket 12 gpudoctor: x")

    go_on = [node.run(hook).go_on for hook in HOOKS]

    assert go_on == [False, True, True]
    assert node.updates() == []
    assert capsys.readouterr().err.count("ticket 12 gpudoctor: x; left alone") == 3


def test_a_reason_that_slurm_kept_after_the_node_came_back_is_no_reason(node: Node) -> None:
    node.node("IDLE", "Prolog error")
    node.run("health")
    assert node.updates() == [_DRAIN]


def test_the_same_failure_is_not_written_again_and_another_one_is(node: Node) -> None:
    node.node("IDLE+DRAIN", _REASON)
    node.run("health")
    assert node.updates() == []

    node.node("IDLE+DRAIN", "gpudoctor: SIMULATED FAIL gpu.ecc GPU 1")
    node.run("health")
    assert node.updates() == [_DRAIN]


@pytest.mark.parametrize("faults", [(), ("persistence-off",)], ids=["pass", "warn"])
def test_a_healthy_node_asks_slurm_nothing_when_a_job_starts_or_ends(node: Node, faults: tuple[str, ...]) -> None:
    node.trial(*faults)
    assert [node.run(hook).go_on for hook in _JOB_HOOKS] == [True, True]
    assert node.calls() == []


def test_a_warn_says_of_what_and_a_pass_counts_the_level_that_was_asked(node: Node) -> None:
    node.trial("driver-stall@3")
    assert " WARN driver.responsive GPU 3 (0000:4b:00.0): nvmlDeviceGet" in node.run("prolog").why
    node.trial("persistence-off", "driver-stall@3")
    assert node.run("prolog").why.endswith(" (+1 more)")
    node.trial()
    why = node.run("prolog").why
    assert re.fullmatch(r"SIMULATED PASS (\d+) of (\d+) checks of level quick(, \d+ not judged)?", why), why


def test_only_our_own_drain_is_taken_back_and_only_after_healthy_checks_in_a_row(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    for state, reason in (("IDLE+DRAIN", "ticket 12"), ("IDLE+DRAIN", "bad: gpudoctor: x"), ("IDLE", "gpudoctor: x")):
        node.trial()
        node.node(state, reason)
        node.health_checks(4)
    assert node.updates() == []

    node.node("MIXED+DRAIN", _SOFT)
    for faults in ((), (), ("compute-mode-prohibited@3",), (), ()):  # the failure in between begins the count anew
        node.trial(*faults)
        node.run("health")
    assert node.updates() == []
    node.run("health")

    assert node.updates() == ["update nodename=n1 state=undrain"]
    assert (
        "healthy 3 times in a row, back in service (was: gpudoctor: SIMULATED FAIL gpu.settings"
        in capsys.readouterr().err
    )


def test_healthy_checks_count_for_one_drain_only(node: Node) -> None:
    """A prolog may have drained the node anew, for the same reason, between two health checks."""
    node.healed(_REASON)
    node.health_checks(2)
    records = node.folder / "nodes"
    records.write_text(records.read_text().replace("T12:00:00]", "T12:00:07]"))
    node.run("health")
    assert node.updates() == []


@pytest.mark.parametrize("damage", [b'{"drain": "\xff", "healthy": 9}', b'{"x": ' + b"[" * 9999, None])
def test_a_garbled_count_of_healthy_checks_or_a_pipe_in_its_place_starts_again(
    damage: bytes | None, node: Node
) -> None:
    node.healed(_REASON)
    node.run("health")
    file = next(node.folder.rglob("undrain.json"))
    file.unlink()
    if damage is None:
        os.mkfifo(file)
    else:
        file.write_bytes(damage)
    node.run("health")
    assert node.updates() == []
    assert b'"healthy":1' in file.read_bytes()


def test_a_drain_that_came_during_a_health_check_is_not_taken_back_by_it(node: Node) -> None:
    """An epilog drains for a fault that the health check, which started before, has not seen."""
    node.trial()
    node.settings["GPUDOCTOR_UNDRAIN_AFTER"] = "1"
    for before in (("IDLE", ""), ("IDLE+DRAIN", "gpudoctor: SIMULATED FAIL gpu.ecc GPU 1")):
        node.node("IDLE+DRAIN", _SOFT)
        records = node.folder / "nodes"
        records.rename(node.folder / "later")
        node.node(*before)
        node.scontrol(f'if [ "$3" = show ]; then cat {records}; cp {node.folder}/later {records}; fi')
        node.run("health")
        assert node.updates() == []

    node.run("health")
    assert node.updates() == ["update nodename=n1 state=undrain"]


def test_a_node_returns_twice_a_day_and_then_waits_for_a_person(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.healed(_SOFT, GPUDOCTOR_UNDRAIN_AFTER="1")
    node.health_checks(3)
    assert node.updates() == ["update nodename=n1 state=undrain"] * 2
    assert "still drained, returned 2 times in 24 h (GPUDOCTOR_UNDRAINS_A_DAY)" in capsys.readouterr().err

    node.settings["GPUDOCTOR_UNDRAINS_A_DAY"] = "3"
    node.run("health")
    assert len(node.updates()) == 3


def test_a_lesser_fault_does_not_take_the_place_of_one_that_needs_a_check_under_load(node: Node) -> None:
    node.trial("compute-mode-prohibited@3")
    node.node("IDLE+DRAIN", _REASON)
    node.run("health")
    assert node.updates() == []


def test_never_is_a_number_of_healthy_checks_too(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.healed(_SOFT, GPUDOCTOR_UNDRAIN_AFTER="never")
    node.health_checks(4)
    assert node.updates() == []
    assert "left drained, GPUDOCTOR_UNDRAIN_AFTER=never" in capsys.readouterr().err
    assert 'out_of_service{hook="health",simulated="true"} 1' in node.state("gpudoctor_slurm_health.prom")


def test_the_health_check_of_a_healthy_node_asks_slurm_once(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.trial()
    node.run("health")
    assert node.calls() == ["-a -o show node n1"]

    node.scontrol("exit 1")
    node.run("health")
    assert "slurmctld does not answer: state of the node not changed" in capsys.readouterr().err
    assert node.calls()[1:] == ["-a -o show node n1"]


def test_log_changes_nothing_and_says_what_drain_would_do(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.settings["GPUDOCTOR_ACTION"] = "log"
    go_on = [node.run(hook, SLURM_JOB_ID="7").go_on for hook in HOOKS]
    node.healed(_REASON)
    node.health_checks(4)

    assert go_on == [True, True, True]
    assert node.updates() == []
    said = capsys.readouterr().err
    assert "n1: job 7: not drained, GPUDOCTOR_ACTION=log: SIMULATED FAIL gpu.xid GPU 3" in said
    assert "healthy, and left drained, GPUDOCTOR_ACTION=log" in said
    assert 'gpudoctor_slurm_withheld{hook="prolog",simulated="true"} 1' in node.state("gpudoctor_slurm_prolog.prom")


@pytest.mark.parametrize("checks", ["gpu.ecc", "pcie, nvlink.*"])
def test_a_failure_of_another_check_than_those_that_drain_lets_the_job_run(
    node: Node, checks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    node.settings["GPUDOCTOR_DRAIN_CHECKS"] = checks
    assert [node.run(hook).go_on for hook in HOOKS] == [True, True, True]
    assert node.updates() == []
    assert capsys.readouterr().err.count("not drained, no failure of GPUDOCTOR_DRAIN_CHECKS: SIMULATED FAIL") == 3


def test_the_drain_names_the_failure_that_may_drain_and_not_the_worst_one(node: Node) -> None:
    node.trial("xid-79@3", "pcie-width-x8@5")
    node.settings["GPUDOCTOR_DRAIN_CHECKS"] = "pcie.link-width"
    node.run("health")
    (update,) = node.updates()
    assert "reason=gpudoctor: SIMULATED FAIL pcie.link-width GPU 5" in update


def test_a_drain_ends_when_the_checks_that_drain_are_fine_again(node: Node) -> None:
    """Another failure is still there, which never drained: it must not keep the node drained forever."""
    node.trial("xid-79@3")
    node.settings |= {"GPUDOCTOR_DRAIN_CHECKS": "gpu.settings", "GPUDOCTOR_UNDRAIN_AFTER": "1"}
    node.node("IDLE+DRAIN", "gpudoctor: SIMULATED FAIL gpu.settings GPU 5")
    node.run("health")
    assert node.updates() == ["update nodename=n1 state=undrain"]


_WRONG = {
    "GPUDOCTOR_ACITON=log": "GPUDOCTOR_ACITON: no setting is called that; did you mean GPUDOCTOR_ACTION?",
    "GPUDOCTOR_ACTION=lgo": "GPUDOCTOR_ACTION=lgo: it must be drain or log",
    "GPUDOCTOR_DRAIN_CAP=25": "GPUDOCTOR_DRAIN_CAP=25: it must be a share of a partition, from 1% to 100%",
    "GPUDOCTOR_DRAIN_CAP=0%": "GPUDOCTOR_DRAIN_CAP=0%: it must be a share",
    "GPUDOCTOR_UNDRAIN_AFTER=soon": "GPUDOCTOR_UNDRAIN_AFTER=soon: it must be `never` or a number of healthy checks",
    "GPUDOCTOR_DRAIN_CHECKS=gpu.xyd": "GPUDOCTOR_DRAIN_CHECKS: no check is called gpu.xyd",
    "GPUDOCTOR_SKIP=gpu.xyd": "gpu.xyd",
    "GPUDOCTOR_TRIAL=no-such-node": "no-such-node",
    "GPUDOCTOR_TEXTFILE=here": "GPUDOCTOR_TEXTFILE=here: it must be a path that begins with /",
}


@pytest.mark.parametrize("setting", _WRONG)
def test_what_is_not_understood_is_no_verdict_and_seen_in_log_and_metric(
    node: Node, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does a typo in a file that all nodes read drain them, whatever else it asks for."""
    name, _, value = setting.partition("=")
    go_on = [node.run(hook, GPUDOCTOR_ON_ERROR="hold", **{name: value}).go_on for hook in HOOKS]

    assert (go_on, node.updates()) == ([True, True, True], [])
    said = capsys.readouterr().err
    assert said.count("no verdict: ") == 3
    assert said.count(_WRONG[setting]) >= 3
    for hook in HOOKS:
        assert f'{{hook="{hook}"' in node.state(f"gpudoctor_slurm_{hook}.prom")
        assert 'verdict="unknown"} 1' in node.state(f"gpudoctor_slurm_{hook}.prom")


def test_without_a_verdict_hold_keeps_jobs_off_within_the_cap(node: Node) -> None:
    node.settings |= {"GPUDOCTOR_ON_ERROR": "hold", "GPUDOCTOR_DRAIN_CAP": "25%"}
    node.trial("storage-hang")
    node.nodes(("n1", "IDLE", ""), ("n2", "IDLE", ""))
    first = node.run("prolog")
    node.nodes(("n1", "IDLE", ""), ("n2", "IDLE+DRAIN", "gpudoctor: no verdict"))
    second = node.run("prolog")

    assert (first.go_on, second.go_on) == (False, True)
    assert [update.partition("reason=")[2] for update in node.updates()] == [
        "gpudoctor: no verdict: SIMULATED UNKNOWN storage.mount"
    ]
    assert 'withheld_reason{hook="prolog",simulated="true",reason="cap"} 1' in node.state("gpudoctor_slurm_prolog.prom")


def test_a_simulated_answer_without_a_trial_is_no_verdict(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpudoctor.api import node_check

    request = node_check.CheckRequest(level="quick", node="hgx-h100-8", faults=("xid-79@3",))
    monkeypatch.setattr(node_check, "run_prepared", lambda prep: real(node_check.prepare(request)))
    del node.settings["GPUDOCTOR_TRIAL"]

    assert [node.run(hook).go_on for hook in HOOKS] == [True, True, True]
    assert node.updates() == []
    assert " unknown SIMULATED FAIL" in node.state("prolog")


def real(prep: object) -> object:
    """`node_check.run_prepared` before it was replaced."""
    from gpudoctor.api.node_check import Prepared, read_source, report_on

    assert isinstance(prep, Prepared)
    return report_on(prep, read_source(prep.request.node, prep.request.faults, 60).node, None)


@pytest.mark.parametrize(
    "answer", ["exit 1", '[ "$3" = show ] && cat "$(dirname "$0")/nodes"'], ids=["none", "refused"]
)
def test_where_scontrol_does_not_answer_slurm_itself_drains_and_with_a_cap_nobody_does(
    node: Node, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    node.scontrol(answer)
    assert [node.run(hook).go_on for hook in HOOKS] == [False, False, True]
    said = capsys.readouterr().err
    assert said.count("slurmctld does not answer, not drained by gpudoctor: SIMULATED FAIL gpu.xid") == 1
    assert said.count("not drained by gpudoctor; Slurm drains it in its own words: SIMULATED FAIL gpu.xid") == 2

    node.settings["GPUDOCTOR_DRAIN_CAP"] = "50%"
    assert [node.run(hook).go_on for hook in HOOKS] == [True, True, True]
    assert "not drained, GPUDOCTOR_DRAIN_CAP is set and slurmctld does not answer" in capsys.readouterr().err


def test_a_health_check_that_still_runs_keeps_a_second_one_out(node: Node) -> None:
    node.run("health")
    before = len(node.calls())
    with (node.folder / "state" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = node.run("health")
    assert (result.go_on, len(node.calls())) == (True, before)


def test_no_health_check_writes_over_the_result_of_a_check_under_load(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.healed(_REASON, GPUDOCTOR_UNDRAIN_AFTER="1")
    beside: list[str] = []

    def check_beside_a_health_check(settings: HookSettings, gpus: str | None, *how: Any) -> HookVerdict:
        if how[1:] == ("standard",):
            beside.append(node.run("health").why)
        return HookVerdict("pass", "PASS")

    monkeypatch.setattr("gpudoctor.slurm.hooks.check", check_beside_a_health_check)
    loaded = node.load()
    before = node.updates()
    node.run("health")

    assert (loaded.go_on, beside) == (True, ["another one runs, and will give the answer"])
    assert (before, node.updates()) == ([], ["update nodename=n1 state=undrain"])


def test_a_check_under_load_waits_for_a_health_check_and_says_so_if_it_does_not_end(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.node("IDLE+DRAIN", _REASON)
    monkeypatch.setattr("gpudoctor.slurm.hooks._HEALTH_CHECK_S", 0)
    node.run("health")
    with (node.folder / "state" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"state: another check of this node runs"):
            node.load()
    assert not node.load().go_on


def test_a_child_that_outlives_a_health_check_keeps_none_after_it_out(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forked process that hangs in the driver has a copy of every file that was open."""
    node.trial()
    ends: list[int] = []

    def check_with_a_child(*_: object) -> HookVerdict:
        reader, writer = os.pipe()
        if os.fork() == 0:
            for end in (*ends, writer):
                os.close(end)
            os.read(reader, 1)  # until the test is over
            os._exit(0)
        os.close(reader)
        ends.append(writer)
        return HookVerdict("pass", "PASS")

    monkeypatch.setattr("gpudoctor.slurm.hooks.check", check_with_a_child)
    try:
        whys = [node.run("health").why for _ in range(2)]
    finally:
        for end in ends:
            os.close(end)
        for _ in ends:
            os.wait()
    assert whys == ["PASS", "PASS"]


def test_a_health_check_that_cannot_keep_its_state_is_no_verdict(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    (node.folder / "state").touch()
    node.settings["GPUDOCTOR_TEXTFILE"] = str(node.folder)
    assert node.run("health").go_on
    assert "no verdict: no lock could be made" in capsys.readouterr().err
    assert 'verdict="unknown"} 1' in (node.folder / "gpudoctor_slurm_health.prom").read_text()


def test_a_folder_for_metrics_that_cannot_be_written_is_said_and_changes_nothing(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.settings["GPUDOCTOR_TEXTFILE"] = str(node.folder / "nowhere")
    assert not node.run("prolog").go_on
    assert "nowhere/gpudoctor_slurm_prolog.prom: cannot write" in capsys.readouterr().err
    assert 'verdict="fail"} 1' in node.state("gpudoctor_slurm_prolog.prom")


def test_a_log_that_cannot_be_written_leaves_the_line_in_the_state_folder(node: Node) -> None:
    node.settings["GPUDOCTOR_LOG"] = str(node.folder / "nowhere" / "slurmd.log")
    assert not node.run("prolog").go_on
    assert "n1: drain: gpudoctor: SIMULATED FAIL gpu.xid GPU 3" in node.state("log")


def test_the_reason_is_one_plain_line_of_100_characters() -> None:
    reason = drain_reason(f"""FAIL "it's" 5 \N{DEGREE SIGN}C `here`\n{"x" * 200}""")
    assert len(reason) == 100
    assert reason.startswith("gpudoctor: FAIL its 5 C herexxx")


def test_without_syslog_the_log_of_the_state_folder_is_kept_within_bounds(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudoctor.slurm.hooks._SOCKET", "/nowhere")
    monkeypatch.setattr("gpudoctor.slurm.hooks._LOG_BYTES_MAX", 10)
    node.run("prolog")
    first = node.state("log")
    node.run("prolog")

    assert "n1: drain: gpudoctor: SIMULATED FAIL gpu.xid GPU 3" in first
    assert node.state("log.1") == first
    assert len(node.state("log").splitlines()) == 1
