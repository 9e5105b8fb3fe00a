"""What a job's report has on a node whose ranks failed while nodes were measured against each other."""

from __future__ import annotations

import pytest

from gpudoctor.cluster.check.messages import Answer, JoinGroup, MemberFailure, Order
from tests.cluster.puppets import Puppet, bad, job, report_of, text_of


class Broken(Puppet):
    """Its ranks break in its n-th meeting, and cannot be started again."""

    breaks_at = 2

    def answer(self, order: Order) -> Answer | None:
        if isinstance(order, JoinGroup) and len(self.meetings) + 1 >= self.breaks_at:
            self.meetings.append(order)
            return MemberFailure("rank 0 of it was ended by SIGKILL")
        return super().answer(order)


def test_a_node_whose_ranks_break_between_pairs_is_unknown_and_no_link_of_its_partner_fails() -> None:
    nodes = [*job("a", "b", "c"), Broken("d", 3)]
    # in the first round, which follows the meeting of all, the first is paired with the last
    nodes[0].rate = lambda meet: 10.0 if len(nodes[0].meetings) != 2 else "did not come back from all_reduce"
    report = report_of(nodes)
    assert bad(report) == {("cluster.pairs", "d", "unknown")}
    assert "ended by SIGKILL" in text_of(report, "cluster.pairs", "d")
    assert report.exit_code == 3


def test_pairs_that_such_a_node_has_left_open_are_not_put_down_to_the_time() -> None:
    broken = Broken("d", 3)
    broken.breaks_at = 1
    report = report_of([*job("a", "b", "c"), broken])
    assert ("cluster.all-reduce", None, "unknown") in bad(report)
    said = [finding.reason or "" for check in report.checks for finding in check.findings]
    assert "pairs with d were not measured to the end: no answer" in said
    assert not any("the time for it was up" in reason for reason in said)


def test_pairs_that_the_time_left_out_are_not_put_down_to_a_node_that_took_no_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpudoctor.cluster.check.cluster_run._ROUNDS_BOX_S", -1.0)
    nodes = job("a", "b", "c", "d", "e")
    nodes[4].ready = MemberFailure("no port is free")
    report = report_of(nodes)
    said = [finding.reason or "" for check in report.checks for finding in check.findings]
    assert any("the time for it was up" in reason for reason in said)
    assert not any("pairs with e" in reason for reason in said)
