"""host.swap: does the machine swap?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, unknown, unread, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.host.ram_per_gpu import OURS, size
from gpudoctor.facts.model.missing import Missing

_USED_MIB = Limit(
    1024, "MiB", f"{OURS}: idle services of a healthy machine may be swapped out", name="used_mib", status="warn"
)
_USED_PCT = Limit(1, "% of RAM", f"{OURS}: less is noise on a machine with much RAM", name="used_pct", status="warn")


@check("host.swap", title="The machine does not swap", impact="costs", needs_gpu=False, limits=(_USED_MIB, _USED_PCT))
def swap(case: Case) -> Iterator[Finding]:
    """Warn if swap in use exceeds both limits: a data loader or rank whose pages are on disk stalls every step."""
    host = case.node.host
    if isinstance(host.swap_mib, Missing):
        yield unread(NODE, "swap", host.swap_mib)
        return
    if host.swap_mib == 0:
        yield ok(NODE, Found("no swap", 0, "MiB"), None, Evidence("SwapTotal", "0 MiB"))
        return
    if isinstance(host.swap_free_mib, Missing):
        yield unread(NODE, "free swap", host.swap_free_mib)
        return
    used_mib = host.swap_mib - host.swap_free_mib
    if used_mib < 0:
        yield unknown(NODE, f"swap: {size(host.swap_free_mib)} free of {size(host.swap_mib)} makes no sense")
        return
    most_mib, source = case.limit(_USED_MIB), case.limit_source(_USED_MIB)
    if isinstance(host.ram_mib, Missing):
        if used_mib > most_mib:
            yield unread(NODE, f"{size(used_mib)} of swap in use; the RAM to compare it with", host.ram_mib)
            return
    elif (share_mib := host.ram_mib * case.limit(_USED_PCT) / 100) > most_mib:
        most_mib, source = share_mib, case.limit_source(_USED_PCT)
    found = Found(f"{size(used_mib)} of {size(host.swap_mib)} swap in use", used_mib, "MiB")
    expected = Expected(f"at most {size(most_mib)}", "<=", round(most_mib), "MiB", source)
    evidence = Evidence("SwapTotal, SwapFree", f"{host.swap_mib} MiB, {host.swap_free_mib} MiB")
    if used_mib <= most_mib:
        yield ok(NODE, found, expected, evidence)
        return
    yield warn(
        NODE,
        found,
        expected,
        evidence,
        likely="RAM ran out under a job, or memory that nothing has touched since was moved out",
        advice=(
            Advice("See whether it still swaps: columns si and so above 0.", "vmstat 1 5"),
            Advice("See whose memory it is.", "grep VmSwap /proc/[0-9]*/status | sort -k2 -n | tail"),
            Advice(
                "Give jobs less RAM to fill (loader workers, pinned copies); with room in RAM, bring it back.",
                "swapoff -a && swapon -a",
            ),
        ),
    )
