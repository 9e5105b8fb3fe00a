"""Whether the readings of a GPU can be trusted, and whether this process can see all GPUs."""

from __future__ import annotations

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.readings import unreadable
from gpudoctor.checks.core.scope import confined
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.nvml.error_cost import LOST, RESET_REQUIRED, UNKNOWN, condemning

# worst first
_STATES = {LOST: "lost", RESET_REQUIRED: "waiting for a reset", UNKNOWN: "answering with driver errors"}


def untrusted(gpu: Gpu) -> str | None:
    """Why no reading of this GPU may be judged, as text for `unknown(...)`; None if they may.

    A GPU is untrusted after errors that condemn it as a whole (see `condemning`): its other readings may be stale
    or nonsense. So is one of which hardly anything was read, or with impossible readings: see `unreadable`.
    """
    errors = condemning(gpu)
    if not errors:
        return unreadable(gpu)
    order = list(_STATES)
    error = min(errors, key=lambda e: order.index(e.code) if e.code in order else len(order))
    words = _STATES.get(error.code, _STATES[UNKNOWN])
    return f"the GPU is {words} ({error.code}, {error.call}): its readings cannot be trusted"


def narrowed(case: Case) -> str | None:
    """Why this process may see fewer GPUs than the node has, as text; None if it sees all.

    Reasons are a container, NVIDIA_VISIBLE_DEVICES with a list, or a job confined to its GPUs: fewer GPUs are then
    the scope, not a fault. A denied handle excuses only its own GPU: see `refused_handles`.
    """
    return hidden(case.node) or confined(case.node)


def hidden(node: Node) -> str | None:
    """Why GPUs may be hidden without any trace of which (a container or a list), as text; None if they are not."""
    engine = known(node.host.container)
    if engine or known(node.host.virtualization) == "container":
        return f"inside a container ({engine or 'unknown engine'})"
    visible = node.environment.get("NVIDIA_VISIBLE_DEVICES")
    if visible not in (None, "", "all", "void", "none"):
        return f"NVIDIA_VISIBLE_DEVICES={visible}"
    return None


REFUSED = "the driver denies this process some GPUs (device cgroup or permissions)"


def refused_handles(node: Node) -> int:
    """The number of GPUs whose handle the driver denied this process."""
    return sum(denied(words) for words in node.driver.handle_errors)


def denied(handle_error: str) -> bool:
    """Whether a GPU's handle was refused for lack of permission (NVML 4, or 17 from a device cgroup)."""
    words = handle_error.lower()
    return any(sign in words for sign in ("permission", "operating system", "(4)", "(17)", "code 4", "code 17"))
