"""nvlink.fabric: did the NVSwitch fabric register every GPU, and is it healthy?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.each_gpu import each_gpu
from gpudoctor.checks.core.explains import ENDS, Explains
from gpudoctor.checks.core.finding import (
    Advice,
    Evidence,
    Expected,
    Finding,
    Found,
    Status,
    fail,
    jointly,
    ok,
    skip,
    unknown,
    warn,
)
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.core.unread import first_failed, unread
from gpudoctor.checks.nvlink.link_state import links_up
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.lazy import lazy_pattern
from gpudoctor.statements.xids import LINK_CODES

# compute trays with an NVLink domain that spans several machines
_MULTI_NODE = lazy_pattern(r"\bGB[23]00\b", re.IGNORECASE)


_SETTLING_S = Limit(
    600, "s since boot", "the fabric manager is still at work shortly after boot (ours)", name="settling_s"
)
_MANAGER = (
    Advice("On a node with its own NVSwitches:", "systemctl status nvidia-fabricmanager"),
    "Its version must equal the driver's. Restart it with no job running, then reset the GPUs or reboot.",
    Advice("Look for switch errors:", "sudo dmesg | grep -i sxid"),
)


@check(
    "nvlink.fabric",
    title="The NVSwitch fabric has registered every GPU and is healthy",
    impact="costs",
    limits=(_SETTLING_S,),
    explains=(
        "nvlink.links",
        "nvlink.topology",
        "nvlink.errors",
        "collective.bandwidth",
        "collective.pairs",
        "link.peer",
        "train.scaling",
        Explains(("collective.correct", "train.sync"), found=ENDS),
        Explains(("gpu.xid",), found=LINK_CODES),
        Explains(("strategy.*",), found=ENDS, after=("gpu.ecc", "gpu.xid")),
    ),
)
def fabric(case: Case) -> Iterator[Finding]:
    """Fail a GPU that the fabric did not register or serves badly; skip if there is no fabric."""
    findings = list(_all_gpus(case))
    bad = [f for f in findings if f.status in (Status.FAIL, Status.WARN)]
    rest = [f for f in findings if f.status in (Status.SKIP, Status.UNKNOWN)]
    texts = {(f.status, f.found.text if f.found else "") for f in bad}
    if len(bad) < 2 or len(bad) + len(rest) < len(findings) or len(texts) > 1:
        yield from findings
        return
    # the same on every GPU that answered: one finding for the node
    text = f"all {len(bad)} GPUs{' that answer' if rest else ''}: {texts.pop()[1]}"
    yield from rest
    yield jointly(bad, Found(text))


@each_gpu
def _all_gpus(case: Case, gpu: Gpu) -> Finding:
    subject, seen = of_gpu(gpu), gpu.fabric
    if isinstance(seen.state, Missing):
        # a text may show its health alone
        health = _health(gpu, Expected("healthy"), [])
        return health if health.status in (Status.FAIL, Status.WARN) else unread(subject, "fabric", seen.state)
    state, status = seen.state.lower(), known(seen.status)
    expected = Expected("completed, success", source="nvmlDeviceGetGpuFabricInfo")
    evidence = [Evidence("nvidia-smi -q, Fabric", f"state {state}, status {status or 'not shown'}")]
    if state.startswith("value "):
        return unknown(subject, f"the driver tells a state of the fabric unknown to this version: {state}", *evidence)
    if state != "completed":
        return _unregistered(case, gpu, state, expected, evidence)
    if isinstance(seen.status, Missing):
        return unread(subject, "fabric completed, but its status", seen.status)
    if seen.status.lower() != "success":
        return fail(
            subject,
            f"registration ended with: {seen.status}",
            expected,
            *evidence,
            likely="the fabric manager could not give this GPU its share of the fabric",
            advice=_MANAGER,
        )
    return _health(gpu, expected, evidence)


def _unregistered(case: Case, gpu: Gpu, state: str, expected: Expected, evidence: list[Evidence]) -> Finding:
    subject = of_gpu(gpu)
    if known(gpu.settings.mig_enabled):
        return skip(subject, f"fabric {state}: MIG is on, its instances use no NVLink")
    if len(case.node.gpus) == 1 and not links_up(gpu):
        if state == "in-progress" and known(case.node.driver.device_count) is None:
            return unknown(subject, "fabric in-progress, and not known whether this is the only GPU", *evidence)
        return skip(subject, f"fabric {state}: the only GPU here has no NVLink peer")
    uptime = known(case.node.host.uptime_s)
    settling = state == "in-progress" and uptime is not None and uptime < case.limit(_SETTLING_S, gpu)
    return (warn if settling else fail)(
        subject,
        f"registration {state}",
        expected,
        *evidence,
        likely="the node has just booted: the fabric manager is still at work"
        if settling
        else "the fabric manager is not running, too old for the driver, or stuck: CUDA will not start (error 802)",
        advice=("Wait a few minutes and check again.", *_MANAGER) if settling else _MANAGER,
    )


def _health(gpu: Gpu, expected: Expected, evidence: list[Evidence]) -> Finding:
    subject, seen = of_gpu(gpu), gpu.fabric
    bandwidth, summary = (known(seen.health_bandwidth) or "").lower(), (known(seen.health_summary) or "").lower()
    wrong = (known(seen.incorrect_configuration) or "").lower()
    worse = ["an unhealthy route"] * (known(seen.route_unhealthy) is True) + ["unhealthy"] * (summary == "unhealthy")
    if wrong not in ("", "none", "not supported", "n/a", "false"):
        worse.append(f"wrong configuration: {wrong}")
    may_slow = {
        "bandwidth degraded": bandwidth == "degraded",
        "recovering from access timeouts": known(seen.access_timeout_recovery) is True,
        "limited capacity": summary == "limited capacity",
    }
    concerns = [text for text, is_so in may_slow.items() if is_so]
    if worse or concerns:
        evidence.append(Evidence("nvidia-smi -q, Fabric, Health", ", ".join(worse + concerns)))
        return (fail if worse else warn)(
            subject,
            f"{'' if isinstance(seen.state, Missing) else 'registered, but '}{', '.join(worse + concerns)}",
            Expected("full bandwidth, healthy routes", source="nvmlDeviceGetGpuFabricInfoV"),
            *evidence,
            likely="an NVSwitch, a trunk link or a port of this GPU is out: traffic takes fewer links",
            advice=_MANAGER,
        )
    if new := [word for word in (summary, bandwidth) if word.startswith("value ")]:
        return unknown(subject, f"the driver tells a health of the fabric unknown to this version: {new[0]}", *evidence)
    if _MULTI_NODE.search(known(gpu.name) or "") and _no_domain(gpu):
        evidence.append(Evidence("clique id, cluster UUID", f"{known(seen.clique_id)}, {known(seen.cluster_uuid)}"))
        return warn(
            subject,
            "registered in no NVLink domain (clique or cluster is zero)",
            Expected("a clique id and a cluster UUID", source="azhpc-images#506"),
            *evidence,
            likely="IMEX or the NVLink domain is not set up: other trays are reached over the network only",
            advice=(Advice("Look at the domain service:", "systemctl status nvidia-imex"), *_MANAGER),
        )
    health = (seen.health_summary, seen.health_bandwidth, seen.route_unhealthy, seen.incorrect_configuration)
    if failed := first_failed(health):
        return unread(subject, "health of the fabric", failed)
    return ok(subject, "completed, success", expected, *evidence)


def _no_domain(gpu: Gpu) -> bool:
    uuid = known(gpu.fabric.cluster_uuid)
    zero_uuid = uuid is not None and not uuid.replace("-", "").strip("0")
    return known(gpu.fabric.clique_id) == 0 or zero_uuid
