"""Copies between host and GPU and between GPUs: how fast, and is every byte right."""

from __future__ import annotations

from gpudoctor.probes.messages import LinkSample
from gpudoctor.probes.rank import Rank


def run_links(rank: Rank) -> None:
    """Measure this rank's links, and send one LinkSample; an empty one from a CPU rank."""
    rank.phase("prepare links", "link")
    rank.send(LinkSample())
