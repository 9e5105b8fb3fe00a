"""driver.fabric-manager: does the service that sets up the NVSwitches run, and does it fit the driver?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.explains import ENDS, VIEWS, Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.nvlink.link_state import wired_directly
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.lazy import lazy_pattern

_SERVICE = "nvidia-fabricmanager"
# HGX boards with this many GPUs connect them through switches; boards with four have direct links
_SWITCHED_GPUS = 8
_RACK = lazy_pattern(r"\bG[BH]\d{3}\b")
# log lines on machines without work for it; source: Fabric Manager user guide
_NOTHING_TO_DO = lazy_pattern(r"NV_WARN_NOTHING_TO_DO|no NVSwitch|NVSwitch.{0,40}not (?:found|present|detected)", re.I)
# "fabric manager NVIDIA GPU driver interface version 535.54.03 don't match with driver version 535.86.10", or its begin
_OTHER_DRIVER = lazy_pattern(
    r"interface version (\d[\d.]*)(?:.{0,40}match.{0,20}driver version (\d[\d.]*)| do(?:n|es))", re.I
)


@check(
    "driver.fabric-manager",
    title="On an NVSwitch node the fabric manager runs, in the driver's version",
    impact="no-work",
    needs_gpu=False,
    explains=(
        Explains(
            ("nvlink.*", "link.peer", "collective.bandwidth", "collective.pairs", "train.scaling", *VIEWS),
            anywhere=True,
        ),
        Explains(("collective.*", "train.*"), anywhere=True, found=ENDS),
    ),
)
def fabric_manager(case: Case) -> Iterator[Finding]:
    """Judge service, version and log if NVSwitches connect the GPUs; nvlink.fabric judges what the GPUs report."""
    facts, needed = case.node.fabric_manager, _needed(case)
    service, errors = known(facts.service), known(facts.errors) or ()
    idle = any(_NOTHING_TO_DO.search(line) for line in errors)
    if idle and needed is None and not case.node.gpus:
        why = "the fabric manager found no NVSwitch and stopped: it is not needed there, if the GPUs have none"
        yield unknown(NODE, why, *_last(errors))
        return
    if needed is False or (idle and not needed):
        yield skip(NODE, "no NVSwitch here that it would have to set up")
        return
    if service is None and not errors and isinstance(facts.version, Missing):
        yield _not_read(case, needed)
        return
    # a service of another version cannot run: report one fault, not two
    reported = [*_other_version(case)] or [*_state(case, needed)]
    reported += _complaints(case, errors, needed) if not reported else ()
    yield from reported
    if reported:
        return
    if service is None and isinstance(facts.service, Missing):
        yield unread(NODE, f"state of {_SERVICE}", facts.service)
        return
    version = known(facts.version)
    yield ok(NODE, f"{service}" + (f", version {version}" if version else ""), None, *_evidence(case))


def _needed(case: Case) -> bool | None:
    """Whether NVSwitches that this system sets up connect the GPUs; None if not known."""
    gpus = case.node.gpus
    if _has_switch_on_bus(case.node):
        return True
    if not gpus:
        return None
    # a rack (GB200) manages the switches outside its trays, a guest's host those of the guest
    of_a_rack = any(_RACK.search(known(gpu.name) or "") for gpu in gpus)
    if case.node.host.is_guest or of_a_rack or wired_directly(case):
        return False
    links = [link for gpu in gpus for link in known(gpu.nvlinks) or ()]
    models = [case.model_of(gpu) for gpu in gpus]
    switched = [m for m in models if m is not None and m.nvlink is not None and m.nvlink.kind == "switch"]
    if any(known(link.remote_kind) == "switch" for link in links) or len(switched) >= _SWITCHED_GPUS:
        return True
    return None if switched or None in models else False


def _has_switch_on_bus(node: Node) -> bool:
    devices = known(node.pci.nvidia_devices) or ()
    return any(device.pci_class.lower().removeprefix("0x").startswith("0680") for device in devices)


def _not_read(case: Case, needed: bool | None) -> Finding:
    service = case.node.fabric_manager.service
    reason = service if isinstance(service, Missing) else Missing("not told")
    if needed is None:
        return skip(NODE, f"{_SERVICE}: {reason.reason}; whether there is an NVSwitch is not known either")
    return unread(NODE, f"state of {_SERVICE}", reason)


def _evidence(case: Case) -> list[Evidence]:
    facts = case.node.fabric_manager
    rows = [
        (f"systemctl status {_SERVICE}", known(facts.service), known(facts.result)),
        ("fabric manager, version", known(facts.version), None),
        ("driver, version", known(case.node.driver.module_version) or known(case.node.driver.library_version), None),
    ]
    return [Evidence(what, f"{value} ({more})" if more else value) for what, value, more in rows if value]


def _last(errors: tuple[str, ...]) -> list[Evidence]:
    return [Evidence("fabric manager's log", line[:300]) for line in errors[-3:]]


def _other_version(case: Case) -> Iterator[Finding]:
    facts, driver = case.node.fabric_manager, case.node.driver
    module = known(driver.module_version) or known(driver.library_version)
    own, errors = known(facts.version), known(facts.errors) or ()
    reported = next((found for line in reversed(errors) if (found := _OTHER_DRIVER.search(line))), None)
    if reported is not None:
        own, module = reported[1], reported[2].rstrip(".") if reported[2] else module
    if own is None or (module is None and reported is None) or own.strip() == (module or "").strip():
        return
    branch = module.partition(".")[0] if module else "BRANCH"
    expected = f"both {module}" if module else "the same version"
    yield fail(
        NODE,
        f"fabric manager {own}, driver {module or 'of another version'}",
        Expected(expected, "==", module, source="Fabric Manager user guide: the versions must be the same"),
        *_evidence(case),
        *_last(errors),
        likely="one of the two packages was updated without the other: the fabric manager refuses this driver",
        advice=(
            Advice(
                "Install the driver's own version.",
                f"apt-get install nvidia-fabricmanager-{branch}={module or 'VERSION'}-1",
            ),
            Advice(
                "Then start it, and see that the GPUs join.", f"systemctl restart {_SERVICE}; nvidia-smi -q -d FABRIC"
            ),
        ),
    )


def _state(case: Case, needed: bool | None) -> Iterator[Finding]:
    """A finding if the service does not run; only a warning if the GPUs are in the fabric all the same."""
    facts = case.node.fabric_manager
    service = known(facts.service)
    if service is None or service == "active":
        return
    joined = bool(case.gpus) and all(known(gpu.fabric.state) == "completed" for gpu in case.gpus)
    certain = needed or service == "failed"
    result = f" ({known(facts.result)})" if known(facts.result) else ""
    text = {
        "failed": f"the fabric manager failed{result}",
        "inactive": "the fabric manager does not run",
        "not-found": "the fabric manager is not installed",
        "activating": "the fabric manager is still starting",
        "deactivating": "the fabric manager was stopped",
    }.get(service, f"the fabric manager is {service}")
    judge = fail if certain and not joined and service != "activating" else warn
    yield judge(
        NODE,
        Found(text + ("; the GPUs are in the fabric since it last ran" if joined else ""), service),
        Expected("active", "==", "active", source="Fabric Manager user guide"),
        *_evidence(case),
        *_last(known(facts.errors) or ()),
        likely="without it no CUDA program starts on GPUs behind NVSwitches (error 802, system not yet initialized)",
        advice=(
            Advice("Read why.", f"systemctl status {_SERVICE}; tail -n 50 /var/log/fabricmanager.log"),
            Advice("Start it, now and at every boot.", f"systemctl enable --now {_SERVICE}"),
            Advice("It fails again: its version must be the driver's; else look for SXids.", "dmesg | grep -i sxid"),
        ),
    )


def _complaints(case: Case, errors: tuple[str, ...], needed: bool | None) -> Iterator[Finding]:
    if not errors:
        return
    likely = "an NVSwitch, or the link to one of its GPUs, did not come up as it should"
    if not needed:
        likely += "; or there is no NVSwitch here, and nothing needs it"
    yield warn(
        NODE,
        Found(f"the fabric manager's log holds {len(errors)} error{'s' * (len(errors) > 1)}", len(errors), "lines"),
        Expected("none since its start", source="fabric manager's log"),
        *_last(errors),
        *_evidence(case),
        likely=likely,
        advice=(
            Advice("See which GPU or switch they name.", "tail -n 50 /var/log/fabricmanager.log"),
            Advice("Restart it with no job running.", f"systemctl restart {_SERVICE}"),
        ),
    )
