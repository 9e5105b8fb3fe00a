"""Which nodes are paired, and which are named from the measurements."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudoctor.cluster.outliers import Named, name_outliers, slow_pairs, usual_rate
from gpudoctor.probes.collective.merge import Pair, rounds_of

_SHARE = 0.8
# healthy pairs differ by less than the share at which one is slow
_HEALTHY = st.floats(0.9, 1.0)
_SLOW = st.floats(0.01, 0.5)


@given(st.integers(2, 41))
def test_every_two_meet_once_in_rounds_in_which_nobody_is_twice(count: int) -> None:
    rounds = rounds_of(count)
    pairs = [pair for meetings in rounds for pair in meetings]
    assert sorted(pairs) == list(combinations(range(count), 2))
    assert len(rounds) == count - 1 + count % 2
    for meetings in rounds:
        players = [player for pair in meetings for player in pair]
        assert len(set(players)) == len(players) == count - count % 2


@st.composite
def healthy_rates(draw: st.DrawFn, smallest: int = 2) -> dict[Pair, float]:
    count = draw(st.integers(smallest, 12))
    return {pair: draw(_HEALTHY) for pair in combinations(range(count), 2)}


def named(rates: dict[Pair, float]) -> Named:
    return name_outliers(rates, slow_pairs(rates, _SHARE))


@pytest.mark.wide
@given(healthy_rates())
def test_nobody_is_named_among_healthy_nodes(rates: dict[Pair, float]) -> None:
    assert named(rates) == Named((), ())


@given(healthy_rates(smallest=3), st.data())
def test_a_node_that_is_slow_with_everybody_is_named_and_only_it(rates: dict[Pair, float], data: st.DataObject) -> None:
    count = max(max(pair) for pair in rates) + 1
    bad = data.draw(st.integers(0, count - 1))
    for pair in rates:
        if bad in pair:
            rates[pair] = data.draw(_SLOW)
    assert named(rates) == Named((bad,), ())


@pytest.mark.wide
@given(healthy_rates(smallest=3), st.data())
def test_a_link_that_alone_is_slow_is_named_and_neither_of_its_nodes(
    rates: dict[Pair, float], data: st.DataObject
) -> None:
    bad = data.draw(st.sampled_from(sorted(rates)))
    rates[bad] = data.draw(_SLOW)
    assert named(rates) == Named((), (bad,))


@pytest.mark.wide
@given(healthy_rates(smallest=5), st.data())
def test_two_slow_nodes_and_a_slow_link_between_others_are_told_apart(
    rates: dict[Pair, float], data: st.DataObject
) -> None:
    count = max(max(pair) for pair in rates) + 1
    one, two, a, b = data.draw(st.permutations(range(count)))[:4]
    for pair in rates:
        if one in pair or two in pair or set(pair) == {a, b}:
            rates[pair] = data.draw(_SLOW)
    link = (min(a, b), max(a, b))
    expected = Named((min(one, two), max(one, two)), (link,))
    if count == 5:  # three are left beside the slow nodes: a pair of them leaves one partner with another result
        assert set(named(rates).nodes) >= {one, two}
        return
    assert named(rates) == expected


def test_with_two_nodes_only_the_link_can_be_named() -> None:
    assert name_outliers([(0, 1)], [(0, 1)]) == Named((), ((0, 1),))


def test_what_is_usual_is_not_moved_by_a_slow_node_of_three() -> None:
    assert usual_rate({(0, 1): 10.0, (0, 2): 1.0, (1, 2): 1.0}) == 10.0
    assert usual_rate({}) is None
