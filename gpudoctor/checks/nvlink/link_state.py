"""Helpers of the NVLink checks: links with a known state, links that are up, GPUs that cannot be judged."""

from __future__ import annotations

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.each_gpu import untrusted
from gpudoctor.checks.core.finding import Finding, skip, unknown
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.core.unread import first_failed, unread
from gpudoctor.facts.model.gpu import Gpu, NvLink
from gpudoctor.facts.model.missing import Missing, known


def not_judged(case: Case, gpu: Gpu, *, by_state: bool = True) -> Finding | None:
    """A finding with the reason if the links of this GPU cannot be judged; None if they can.

    `by_state`: links without a known state cannot be judged.
    """
    subject = of_gpu(gpu)
    if reason := untrusted(gpu):
        return unknown(subject, reason)
    if known(gpu.settings.mig_enabled):
        return skip(subject, "MIG is on: its instances have no NVLink")
    if isinstance(gpu.nvlinks, Missing):
        return unread(subject, "NVLink", gpu.nvlinks)
    model = case.model_of(gpu)
    if not gpu.nvlinks:
        if model is not None and model.nvlink is None:
            return skip(subject, f"the {model.name} has no NVLink")
        return skip(subject, "no NVLink is shown for this GPU")
    if failed := first_failed(link.state for link in gpu.nvlinks):
        return unread(subject, "state of an NVLink", failed)
    # a link that the driver does not support is not there; any other without a state may be up or down
    missing = [link.state for link in gpu.nvlinks if isinstance(link.state, Missing)]
    hidden = [state for state in missing if state.kind != "unsupported"]
    if real_links(gpu) and hidden:
        return unread(subject, "state of an NVLink", hidden[0])
    if by_state and not real_links(gpu):
        state = gpu.nvlinks[0].state
        return unread(subject, "state of the NVLinks", state if isinstance(state, Missing) else Missing("not known"))
    return None


def wired_directly(case: Case) -> bool:
    """Whether every link that is up ends at another GPU.

    What is wired counts, not how the model is mostly sold: HGX A100 and H100 boards of 4 GPUs have no NVSwitch.
    """
    links = [link for gpu in case.node.gpus for link in known(gpu.nvlinks) or ()]
    return {known(link.remote_kind) for link in links if link.is_up} == {"gpu"}


def real_links(gpu: Gpu) -> list[NvLink]:
    """The links with a known state."""
    return [link for link in known(gpu.nvlinks) or () if not isinstance(link.state, Missing)]


def links_up(gpu: Gpu) -> int:
    """The number of links that carry data or can do so at once."""
    return sum(link.is_up for link in known(gpu.nvlinks) or ())
