"""Judges the measurements between nodes: finds the node or link that is slow, cut off, or gives wrong sums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.subject import NODE, Subject
from gpudoctor.checks.core.unread import unread
from gpudoctor.cluster.check.cluster_run import FAIL_SHARE, SLOW_SHARE, ClusterSession, Group
from gpudoctor.cluster.check.model import node_subject
from gpudoctor.cluster.outliers import name_outliers, slow_pairs, usual_rate
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.collective.merge import Pair
from gpudoctor.text.units import listed, rate_text

_OWN = "gpudoctor's own choice"
_ALIKE_MAX = 6
_GROUP_STEPS = (
    Advice("Let the nodes connect to each other on any port: NCCL and gloo choose them freely.", "nft list ruleset"),
    Advice("Run it once more with its words.", "NCCL_DEBUG=INFO GPUDOCTOR_TRACEBACK=1 gpudoctor cluster check"),
)


def all_reduce_findings(session: ClusterSession) -> Iterator[Finding]:
    """Whether the sum over all nodes is right, and its rate; slow nodes are found by `pair_findings`."""
    group = session.everyone
    if group is None:
        yield _not_measured(session)
        return
    yield from _left_out(session, "took no part", [p for p in range(len(session.nodes)) if p not in group.indexes])
    if group.trouble:
        yield unknown(NODE, f"all_reduce over {len(group.indexes)} nodes gave no figure; {_trouble(session, group)}")
        return
    if group.wrong:
        for index in group.wrong:
            yield _wrong(session, index, (group,))
        return
    rate = group.busbw_gb_s
    text = f"{group.ranks} ranks on {len(group.indexes)} nodes add exactly" + (
        f", at {rate_text(rate)}" if rate else ""
    )
    yield ok(NODE, Found(text, None if rate is None else round(rate, 3), "GB/s"))


def _left_out(session: ClusterSession, what: str, indexes: Iterable[int]) -> Iterator[Finding]:
    for index in indexes:
        node = session.nodes[index]
        if node.left_out is not None and node.lost is None:
            yield unread(_of(session, index), what, node.left_out)


def pair_findings(session: ClusterSession) -> Iterator[Finding]:
    """Every pair compared with the others, and with the plan's floor if there is one."""
    if session.backend is None or not session.pairs:
        yield _not_measured(session)
        return
    present = {pair: group for pair, group in session.pairs.items() if not any(session.nodes[p].lost for p in pair)}
    yield from _unmeasured(session, present)
    wrong = sorted({index for group in present.values() for index in group.wrong})
    for index in wrong:
        yield _wrong(session, index, [group for group in present.values() if index in group.wrong])
    paired = sorted({index for pair in session.pairs for index in pair})
    yield from _left_out(session, "was not measured with every other node", paired)
    in_vain = _in_vain(session, present)
    rates = {pair: rate for pair, group in present.items() if (rate := group.busbw_gb_s) is not None}
    if in_vain and not rates:
        first = present[in_vain[0]]
        yield unknown(NODE, f"no two nodes could form a group; {_trouble(session, first)}", advice=_GROUP_STEPS)
        return
    yield from _cut_off(session, present, in_vain)
    slow = [*_slow_ones(session, rates, present)]
    yield from slow
    if rates and not (slow or in_vain or wrong):
        yield _fine(rates, session.plan.floor_gb_s, SLOW_SHARE[session.backend])


def _slow_ones(
    session: ClusterSession, rates: Mapping[Pair, float], present: Mapping[Pair, Group]
) -> Iterator[Finding]:
    """Pairs that are slow; which node or link is to blame is said only of those that were measured once more."""
    assert session.backend is not None
    slow = slow_pairs(rates, SLOW_SHARE[session.backend])
    floor_gb_s = session.plan.floor_gb_s or 0.0
    slow += [pair for pair, rate in rates.items() if rate < floor_gb_s and pair not in slow]
    again = [pair for pair in slow if present[pair].again]
    for pair in slow:
        if pair not in again:
            text = f"{rate_text(rates[pair])}, and there was no time to measure it once more"
            yield unknown(_link(session, pair), text)
    for subject, pairs in _outlier_subjects(session, rates, again):
        yield _slow(session, subject, pairs, rates)


def _in_vain(session: ClusterSession, present: Mapping[Pair, Group]) -> list[Pair]:
    """The pairs that could form no group; one with a node whose ranks broke is no evidence about the link."""
    out = {index for index, node in enumerate(session.nodes) if node.left_out is not None}
    return [pair for pair, group in present.items() if group.trouble and not out.intersection(pair)]


def _slow(session: ClusterSession, subject: Subject, pairs: Sequence[Pair], rates: Mapping[Pair, float]) -> Finding:
    assert session.backend is not None
    floor_gb_s = session.plan.floor_gb_s
    usual = usual_rate(rates) or 0.0
    worst = min(rates[pair] for pair in pairs)
    is_fail = worst < usual * FAIL_SHARE[session.backend]
    share = (FAIL_SHARE if is_fail else SLOW_SHARE)[session.backend]
    expected = Expected(
        f"at least {rate_text(usual * share)}: {share:.0%} of the {rate_text(usual)} that is usual here",
        ">=",
        round(usual * share, 4),
        "GB/s",
        _OWN,
    )
    if worst >= usual * SLOW_SHARE[session.backend] and floor_gb_s is not None:
        is_fail = True  # the user knows the network and gave the rate that it must reach
        expected = Expected(f"at least {rate_text(floor_gb_s)}", ">=", floor_gb_s, "GB/s", "--at-least")
    indexes = {index for pair in pairs for index in pair}
    others = sorted(session.nodes[p].name for p in indexes if session.nodes[p].name != subject.name)
    text, node = rate_text(worst), others[0]
    last_step: tuple[Advice, ...] = ()
    likely = "the way between these two alone: a switch or uplink in between, or a routing of its own"
    if subject.kind == "node":
        text += f" at worst with {listed(others, _ALIKE_MAX)}; those are not slow with each other"
        node = subject.name or ""
        last_step = (Advice("Leave it out until then.", f"sbatch --exclude={node}"),)
        likely = "its link came up at a lower speed, or drops and repeats packets: cable, transceiver, port, NIC slot"
    elif len(session.nodes) == 2:
        likely = "with two nodes nobody can tell whose end it is"
    ports = f"ssh {node} 'ibstatus; ethtool {_device(session, node)}'"
    return (fail if is_fail else warn)(
        subject,
        Found(text, round(worst, 4), "GB/s"),
        expected,
        *(Evidence(f"all_reduce between {_names(session, p)}", rate_text(rates[p])) for p in pairs[:_ALIKE_MAX]),
        likely=likely,
        advice=(
            Advice("Look at the speed that its ports agreed on.", ports),
            Advice("Look at the switch's side of it: speed, errors, link flaps."),
            *last_step,
        ),
    )


def _outlier_subjects(
    session: ClusterSession, measured: Iterable[Pair], outliers: Sequence[Pair]
) -> Iterator[tuple[Subject, list[Pair]]]:
    """The nodes, then the links, that explain the pairs that are outliers, each with its pairs."""
    named = name_outliers(measured, outliers)
    for index in named.nodes:
        yield _of(session, index), [pair for pair in outliers if index in pair]
    for pair in named.links:
        yield _link(session, pair), [pair]


def _cut_off(session: ClusterSession, present: Mapping[Pair, Group], in_vain: Sequence[Pair]) -> Iterator[Finding]:
    """Nodes and links that could not even form a group, while others could."""
    for subject, pairs in _outlier_subjects(session, present, in_vain):
        what = "no other node could form a group with it" if subject.kind == "node" else "the two could form no group"
        yield fail(
            subject,
            f"{what}, while other nodes could",
            "a process group between every two nodes",
            *(
                Evidence(f"group of {_names(session, pair)}", _trouble(session, present[pair]))
                for pair in pairs[:_ALIKE_MAX]
            ),
            likely="a firewall, a wrong interface or route, or a network port that is down",
            advice=_GROUP_STEPS,
        )


def _unmeasured(session: ClusterSession, present: Mapping[Pair, Group]) -> Iterator[Finding]:
    # pairs were planned only among nodes whose ranks were ready
    ready = {index for index, node in enumerate(session.nodes) if node.ranks is not None}
    lost = {p for p in ready if session.nodes[p].lost is not None or session.nodes[p].left_out is not None}
    planned = session.pairs_planned - sum(1 for pair in session.pairs if pair not in present)
    left = planned - len(present)
    if left > 0 and not lost:
        yield skip(NODE, f"{left} of {session.pairs_planned} pairs were not measured: the time for it was up")
    elif left > 0 or len(present) < len(session.pairs):
        names = listed([session.nodes[index].name for index in sorted(lost)], _ALIKE_MAX)
        yield skip(NODE, f"pairs with {names} were not measured to the end: no answer")


def _wrong(session: ClusterSession, index: int, groups: Sequence[Group]) -> Finding:
    return fail(
        _of(session, index),
        "got sums that are wrong",
        "sums that are exactly right: small whole numbers were added",
        *(
            Evidence("all_reduce among", listed([session.nodes[p].name for p in g.indexes], _ALIKE_MAX))
            for g in groups[:_ALIKE_MAX]
        ),
        likely="data is damaged on the way, or in a GPU or NIC: gradients would be wrong without a word",
        advice=(Advice("Check that node by itself.", f"ssh {session.nodes[index].name} gpudoctor check --level full"),),
    )


def _fine(rates: Mapping[Pair, float], floor_gb_s: float | None, share: float) -> Finding:
    low, high = min(rates.values()), max(rates.values())
    if len(rates) == 1 and floor_gb_s is None:
        text = f"1 pair, at {rate_text(low)}: there is no other to compare with; --at-least GBIT_S judges it"
        return skip(NODE, text)
    text = f"{len(rates)} pairs" if len(rates) > 1 else "1 pair"
    span = rate_text(low) if len(rates) == 1 else f"{rate_text(low)} to {rate_text(high)}"
    expected = (
        Expected(f"at least {rate_text(floor_gb_s)}", ">=", floor_gb_s, "GB/s", "--at-least")
        if floor_gb_s is not None
        else Expected(f"each at least {share:.0%} of what is usual", source=_OWN)
    )
    return ok(NODE, Found(f"{text} at {span}", round(low, 4), "GB/s"), expected)


def _not_measured(session: ClusterSession) -> Finding:
    why = session.not_run or Missing("the check ended before it", "failed")
    reason = f"not measured: {why.reason}"
    return unknown(NODE, reason) if why.kind == "failed" else skip(NODE, reason)


def _of(session: ClusterSession, index: int) -> Subject:
    return node_subject(session.nodes[index].name)


def _link(session: ClusterSession, pair: Pair) -> Subject:
    return Subject(kind="pair", name=f"{session.nodes[pair[0]].name} - {session.nodes[pair[1]].name}")


def _names(session: ClusterSession, pair: Pair) -> str:
    return f"{session.nodes[pair[0]].name} and {session.nodes[pair[1]].name}"


def _device(session: ClusterSession, name: str | None) -> str:
    node = next((node for node in session.nodes if node.name == name), None)
    interface = node.reach.interface_of(node.address) if node is not None and node.reach is not None else None
    return interface.name if interface is not None else "eth0"


def _trouble(session: ClusterSession, group: Group) -> str:
    return "; ".join(f"{session.nodes[index].name}: {text}" for index, text in group.trouble.items())
