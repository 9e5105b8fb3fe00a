"""What single devices and their links did, in lines for people."""

from __future__ import annotations

from collections.abc import Iterable

from gpudoctor.facts.model.measured_compute import ComputeRank
from gpudoctor.facts.model.measured_links import HostLink, PeerLink
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.units import mib_text, whole_mib_text


def device_lines(measurements: Measurements) -> list[str]:
    """Host links, the matrix of copies between GPUs, and compute, a line a rank; empty where none was measured."""
    return [
        *_host_lines(measurements.host_links),
        *_peer_lines(measurements.peer_links),
        *_compute_lines(measurements.compute),
    ]


def _host_lines(links: tuple[HostLink, ...]) -> list[str]:
    if not links:
        return []
    lines = [f"  host copies of {mib_text(links[0].size_bytes)}, to and from the GPU (all at once):"]
    lines += [
        f"    rank {link.rank}: {link.h2d_alone_gb_s:.2f} and {link.d2h_alone_gb_s:.2f} GB/s "
        f"({_rate(link.h2d_together_gb_s)} and {_rate(link.d2h_together_gb_s)})"
        for link in links
    ]
    return lines


def _peer_lines(links: tuple[PeerLink, ...]) -> list[str]:
    if not links:
        return []
    ranks = sorted({link.source for link in links} | {link.target for link in links})
    rates = {(link.source, link.target): link.gb_s for link in links}
    both = [rate for link in links if (rate := known(link.both_ways_gb_s)) is not None]
    off = sum(link.p2p is False for link in links)
    notes = [f"both ways {min(both):.1f} to {max(both):.1f}"] if both else []
    notes += [f"peer-to-peer off in {off} of {len(links)} directions"] if off else []
    lines = [f"  copies from rank (row) to rank (column) in GB/s{'; ' if notes else ''}{'; '.join(notes)}:"]
    lines.append("    " + "".join(f"{rank:>8}" for rank in ("", *ranks)))
    for source in ranks:
        cells = (f"{rates[source, target]:.1f}" if (source, target) in rates else "-" for target in ranks)
        lines.append("    " + "".join(f"{cell:>8}" for cell in (str(source), *cells)))
    return lines


def _compute_lines(ranks: Iterable[ComputeRank]) -> list[str]:
    lines = []
    for each in ranks:
        if each.gemms:
            rates = ", ".join(f"{gemm.dtype} {gemm.tflops:.3g}" for gemm in each.gemms)
            lines.append(f"    rank {each.rank}: products of {each.gemms[0].size}^3 in TFLOP/s: {rates}")
        parts = [f"copy {_rate(each.copy_gb_s)}, triad {_rate(each.triad_gb_s)} GB/s"]
        covered = known(each.pattern_bytes)
        if covered is not None:
            parts.append(f"{each.pattern_passes} patterns over {whole_mib_text(covered)}")
        if each.fingerprints:
            steady = "" if len(set(each.fingerprints)) == 1 else " (not steady)"
            parts.append(f"bits {each.fingerprints[0][:8]}{steady}")
        lines.append(f"    rank {each.rank}: {'; '.join(parts)}")
    return ["  compute, all at the same time:", *lines] if lines else []


def _rate(gb_s: float | Missing) -> str:
    return "-" if isinstance(gb_s, Missing) else f"{gb_s:.2f}"
