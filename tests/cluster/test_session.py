"""Verdicts of a check of many nodes when nodes are silent, slow, wrong or set up badly; the members are made up."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from functools import partial

import msgspec
import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.registry import Level
from gpudoctor.cluster.check import cluster_run as examination
from gpudoctor.cluster.check.hub import Hub
from gpudoctor.cluster.check.member import Member
from gpudoctor.cluster.check.messages import CheckOrder, JoinGroup, MemberFailure, Ready
from gpudoctor.cluster.check.model import ClusterReport
from gpudoctor.cluster.check.text import render_cluster_text
from gpudoctor.errors import UserError
from gpudoctor.facts.model.measurements import Launch, Measurements, RankInfo
from gpudoctor.facts.model.missing import Missing
from gpudoctor.report.model import Report
from tests.cluster.puppets import (
    TOKEN,
    Puppet,
    RealMember,
    bad,
    findings,
    four,
    job,
    loaded_json,
    report_of,
    simulated_json,
    text_of,
)
from tests.narrowed import missing, present


def with_slow(slow: Mapping[frozenset[str], float | str], names: str = "abcd") -> ClusterReport:
    """The report on these nodes, whose pairs reach 10 GB/s, except those in `slow`; also when measured again."""
    told: dict[str, set[str]] = {}

    def rate(puppet: Puppet, meet: JoinGroup) -> float | str:
        if meet.size > 2:
            return 5.0
        # the order does not name the peer: it is the other node with the same key
        told.setdefault(meet.key, set()).add(puppet.hostname)
        deadline = time.monotonic() + 30
        while len(told[meet.key]) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(told[meet.key]) == 2, "the peer did not come"
        return slow.get(frozenset(told[meet.key]), 10.0)

    nodes = job(*names)
    for node in nodes:
        node.rate = partial(rate, node)
    return report_of(nodes)


def test_healthy_nodes_pass_and_nobody_is_named() -> None:
    report = report_of(four())
    assert bad(report) == set()
    assert (report.verdict, report.exit_code) == ("pass", 0)
    assert [node.verdict for node in report.nodes] == ["pass"] * 4
    assert present(report.between.everyone).busbw_gb_s == pytest.approx(10.0)
    assert [pair.busbw_gb_s for pair in report.between.pairs] == [pytest.approx(10.0)] * 6
    assert report.simulated


def test_a_slow_node_fails_and_a_slow_link_between_others_fails_beside_it() -> None:
    slow = {frozenset(("c", other)): 1.0 for other in "abdef"} | {frozenset("ab"): 0.5}
    report = with_slow(slow, "abcdef")
    assert bad(report) == {("cluster.pairs", "c", "fail"), ("cluster.pairs", "a - b", "fail")}
    node = findings(report, "cluster.pairs")["c"]
    assert "1 GB/s (8 Gbit/s) at worst with a, b, d, e, f" in text_of(report, "cluster.pairs", "c")
    assert "15% of the 10 GB/s" in present(node.expected).text
    assert len(node.evidence) == 5
    assert report.exit_code == 1
    again = {frozenset(pair.nodes) for pair in report.between.pairs if pair.again}
    assert again == set(slow), "only what was slow is measured once more"


def test_what_was_slow_only_once_is_not_named() -> None:
    nodes = four()
    seen: list[str] = []

    def at_first_slow(meet: JoinGroup) -> float:
        seen.append(meet.key)
        return 1.0 if len(seen) == 2 else 10.0  # the first meeting is that of all

    nodes[0].rate = at_first_slow
    report = report_of(nodes)
    assert bad(report) == set()
    assert [pair.again for pair in report.between.pairs].count(True) == 1


def test_what_there_was_no_time_to_measure_or_to_measure_again_is_said_and_nobody_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examination, "_ROUNDS_BOX_S", -1.0)
    report = with_slow({frozenset("bc"): 1.0})
    assert bad(report) == {("cluster.pairs", "b - c", "unknown")}
    told = text_of(report, "cluster.pairs", None, Status.SKIP)
    assert told == "4 of 6 pairs were not measured: the time for it was up"


def test_a_slow_link_that_is_not_as_slow_only_warns() -> None:
    assert bad(with_slow({frozenset("ab"): 2.0})) == {("cluster.pairs", "a - b", "warn")}


def test_with_two_nodes_the_link_is_judged_by_what_was_asked_for_only() -> None:
    report = report_of(job("a", "b"))
    assert bad(report) == set()
    assert "no other to compare with; --at-least" in text_of(report, "cluster.pairs", None)
    report = report_of(job("a", "b"), floor_gb_s=12.5)
    assert bad(report) == {("cluster.pairs", "a - b", "fail")}
    link = findings(report, "cluster.pairs")["a - b"]
    assert present(link.expected).source == "--at-least"
    assert link.likely == "with two nodes nobody can tell whose end it is"
    assert bad(report_of(job("a", "b"), floor_gb_s=9.0)) == set()


def test_a_node_that_no_other_can_form_a_group_with_fails_while_links_of_the_others_do_not() -> None:
    report = with_slow({frozenset(("d", other)): "Connection refused" for other in "abc"})
    assert bad(report) == {("cluster.pairs", "d", "fail")}
    assert "no other node could form a group with it" in text_of(report, "cluster.pairs", "d")
    assert "Connection refused" in findings(report, "cluster.pairs")["d"].evidence[0].value


def test_where_no_two_nodes_can_form_a_group_nobody_is_named_and_nothing_passes() -> None:
    nodes = job("a", "b", "c")
    for node in nodes:
        node.rate = lambda meet: "no route to host"
    report = report_of(nodes)
    assert bad(report) == {("cluster.all-reduce", None, "unknown"), ("cluster.pairs", None, "unknown")}
    assert (report.verdict, report.exit_code) == ("unknown", 3)


def test_a_node_that_dies_in_the_middle_is_unknown_and_the_others_are_measured_to_the_end() -> None:
    nodes = four()

    def dies(meet: JoinGroup) -> float:
        if len(nodes[2].meetings) > 1:
            raise ConnectionAbortedError
        return 10.0

    nodes[2].rate = dies
    report = report_of(nodes)
    assert bad(report) == {("cluster.nodes", "c", "unknown")}
    assert "ended before it was asked to, during: pairs of nodes, round 1" in text_of(report, "cluster.nodes", "c")
    assert [node.verdict for node in report.nodes] == ["pass", "pass", "unknown", "pass"]
    assert {pair.nodes for pair in report.between.pairs if pair.busbw_gb_s} == {("a", "d"), ("b", "d"), ("a", "b")}
    assert report.exit_code == 3
    assert all(node.ended.is_set() for node in nodes)


def test_a_node_that_is_silent_is_named_within_the_limit_and_sent_away() -> None:
    nodes = job("a", "b", "c")
    nodes[2].instead[CheckOrder] = None
    report = report_of(nodes, limit_s=2.0, slack_s=0.1)
    assert bad(report) == {("cluster.nodes", "c", "unknown"), ("cluster.checks", "c", "unknown")}
    assert "did not answer within" in report.nodes[2].reason
    assert nodes[2].ended.is_set()


def test_nodes_that_do_not_come_are_named() -> None:
    report = report_of([Puppet("node1", 0), Puppet("node3", 2)], count=4, names=("node1", "node2", "node3", "node4"))
    assert {name for _, name, _ in bad(report)} == {"node2", "node4"}
    assert [(node.name, node.verdict) for node in report.nodes[2:]] == [("node2", "unknown"), ("node4", "unknown")]
    assert report.exit_code == 3
    report = report_of([Puppet("x", 1)], count=2)
    assert ("cluster.nodes", "node number 0", "unknown") in bad(report)


def test_who_does_not_know_the_jobs_token_and_who_takes_a_taken_number_is_not_let_in() -> None:
    stranger, twin = Puppet("stranger", 2), Puppet("twin", 1)
    stranger.token = "another"
    nodes = [Puppet("a", 0), Puppet("b", 1), stranger]
    hub = Hub(TOKEN)
    for node in (*nodes, twin):
        node.port = hub.port
        node.start()
    hub.gather(4, 1.0, lambda: False)
    names = {member.hostname for member in hub.members}
    hub.close()
    assert "stranger" not in names
    assert len(names & {"b", "twin"}) == 1
    assert all(node.ended.wait(30) for node in (*nodes, twin))


def test_words_that_are_no_answer_cost_the_node_and_nobody_else() -> None:
    nodes = job("a", "b", "c")
    nodes[2].instead[CheckOrder] = Missing("what?")  # type: ignore[assignment]
    report = report_of(nodes)
    assert ("cluster.nodes", "c", "unknown") in bad(report)
    assert {name for _, name, _ in bad(report)} == {"c"}


def test_a_report_that_is_half_written_or_of_another_version_is_no_pass() -> None:
    nodes = job("a", "b", "c")
    nodes[1].report = '{"schema": "gpudoctor.rep'
    nodes[2].report = Missing("its check took longer than 30 s", "failed")
    report = report_of(nodes)
    assert {(name, status) for _, name, status in bad(report)} == {("b", "unknown"), ("c", "unknown")}
    assert [node.verdict for node in report.nodes] == ["pass", "unknown", "unknown"]


def test_a_check_that_could_not_do_its_work_says_why() -> None:
    nodes = job("a", "b", "c")
    broken = msgspec.json.decode(simulated_json(), type=Report)
    nodes[2].report = msgspec.json.encode(msgspec.structs.replace(broken, error="no simulated node xyz")).decode()
    report = report_of(nodes)
    assert bad(report) == {("cluster.checks", "c", "unknown")}
    assert report.nodes[2].reason == "UNKNOWN no simulated node xyz"


def test_wrong_sums_fail_the_node_that_got_them() -> None:
    nodes = four()
    nodes[1].right = False
    report = report_of(nodes)
    assert {(name, status) for _, name, status in bad(report)} == {("b", "fail")}
    assert report.exit_code == 1


def test_without_torch_nothing_is_measured_and_that_is_said() -> None:
    nodes = job("a", "b")
    for node in nodes:
        node.ready = MemberFailure("PyTorch is not installed", absent=True)
    report = report_of(nodes)
    assert bad(report) == set()
    assert missing(report.between.not_run).reason == "a: PyTorch is not installed"
    assert (findings(report, "cluster.pairs")[None].status, report.exit_code) == (Status.SKIP, 0)


def test_a_node_whose_ranks_cannot_start_is_unknown_and_the_others_are_measured() -> None:
    nodes = four()
    nodes[3].ready = MemberFailure("torch was not there within 60 s")
    report = report_of(nodes)
    assert bad(report) == {("cluster.all-reduce", "d", "unknown")}
    assert len(report.between.pairs) == 3


def test_a_nodes_own_verdict_is_the_jobs_and_its_faults_are_shown() -> None:
    nodes = four()
    nodes[1].report = simulated_json("xid-79@3")
    report = report_of(nodes)
    assert bad(report) == {("cluster.checks", "b", "fail")}
    assert "Xid 79" in text_of(report, "cluster.checks", "b")
    assert text_of(report, "cluster.checks", None) == "3 of 4 nodes pass their own check"
    assert [node.verdict for node in report.nodes] == ["pass", "fail", "pass", "pass"]
    assert report.nodes[1].faults
    assert report.reason.startswith("FAIL checks b")


def test_gpus_that_the_nodes_own_checks_loaded_are_measured_with_nccl() -> None:
    nodes = four()
    launch = Launch("nccl", 1, (RankInfo(0, "cuda", 0, "GPU-0"),))
    for node in nodes[:3]:
        node.report = loaded_json(Measurements(launch=launch))
    nodes[3].ready = MemberFailure("its own check put no load on its GPUs", absent=True)
    report = report_of(nodes, backend="auto", level="standard")
    assert report.between.backend == "nccl"
    assert [node.name for node in report.nodes if node.ranks] == ["a", "b", "c"]
    assert findings(report, "cluster.all-reduce")["d"].status is Status.SKIP
    assert nodes[0].meetings[0].size_bytes == 256 << 20
    assert len(report.between.pairs) == 3


@pytest.mark.parametrize(
    ("level", "words"), [("quick", "level quick puts no load"), ("standard", "no node's own check")]
)
def test_gpus_that_may_not_be_loaded_are_not_measured_and_that_is_no_fault(level: Level, words: str) -> None:
    report = report_of(job("a", "b"), backend="auto", level=level)
    assert words in missing(report.between.not_run).reason
    assert (report.verdict, report.exit_code) == ("pass", 0)


def test_a_node_with_more_ranks_counts_them_all() -> None:
    nodes = job("a", "b")
    nodes[0].ready = Ready(8, 29500)
    report_of(nodes)
    assert [(meet.first_rank, meet.size) for meet in nodes[1].meetings] == [(8, 9), (8, 9)]


def test_the_text_names_every_node_the_slow_one_and_what_to_do() -> None:
    report = with_slow({frozenset(("c", other)): 1.0 for other in "abd"})
    text = render_cluster_text(report, width=100, color=False)
    assert text.index("PASS     a") < text.index("FAIL     cluster.pairs   c")
    assert "6 of 6 pairs of nodes: slowest 1 GB/s (8 Gbit/s)" in text
    assert "sbatch --exclude=c" in text
    assert text.splitlines()[-1] == "FAIL  not fit to train on as it is"
    assert all(len(line) <= 100 for line in text.splitlines())


def test_a_member_that_finds_nobody_says_where_it_looked() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UserError, match=f"nobody to meet at 127.0.0.1:{port} within 0.1 s"):
        Member([]).serve([("127.0.0.1", port)], TOKEN, None, 0.1)


def test_a_member_whose_hub_is_gone_ends() -> None:
    hub = Hub(TOKEN)
    member = RealMember("m", hub.port)
    member.start()
    hub.gather(1, 30, lambda: False)
    hub.members[0].channel.socket.close()
    member.join(30)
    assert member.said == "it ended"
    hub.close()
