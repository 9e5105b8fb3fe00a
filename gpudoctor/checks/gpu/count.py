"""gpu.count: does the driver show all GPUs of the node?"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.driver_messages import failed_starts
from gpudoctor.checks.core.each_gpu import shown_by_driver
from gpudoctor.checks.core.explains import VIEWS, Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.scope import pci_gpus, shown_count, slurm_allocation, why_confined
from gpudoctor.checks.core.subject import NODE, Subject
from gpudoctor.checks.core.unread import first_failed, unread
from gpudoctor.checks.core.visibility import (
    REFUSED,
    HiddenGpus,
    bus_gpus,
    drained_gpus,
    excluded_gpus,
    hidden_gpus,
    refused_handles,
    why_narrowed,
)
from gpudoctor.checks.driver.loaded import INIT_OK
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.profiles.profile import compute_gpus

# numbers of SXM sockets on a board: HGX, DGX and GB200 trays
_BOARDS = (4, 8)
# GPUs of these generations also came in servers with 6 sockets (IBM AC922)
_OTHER_BOARDS = ("Pascal", "Volta")
_SEE_BUS = Advice("See what is on the bus.", "lspci -d 10de:")
_GONE_FROM_BUS: list[Advice | str] = [_SEE_BUS, "Power-cycle the node; still gone: hardware case."]


@check(
    "gpu.count",
    title="Every GPU of the node is shown by the driver",
    needs_gpu=False,
    explains=(
        "driver.responsive",
        "gpu.xid",
        "gpu.lost",
        *VIEWS,
        # a list for all GPUs has too many entries if one is gone; a list that shows none has another cause
        Explains(("env.cuda-visible-devices",), found=tuple(range(1, 64))),
    ),
)
def count(case: Case) -> Iterator[Finding]:
    """PCI bus, driver and expectation must agree; a smaller scope is reported, not failed."""
    shown = _number_shown(case)
    if shown is None:
        yield from _without_number(case)
        return
    hidden, why_limited = hidden_gpus(case.node), why_narrowed(case.node)
    problems = (
        *_gone(case, shown, hidden),
        *_failed_to_start(case, hidden, why_limited),
        *_against_expectation(case, shown, why_limited),
    )
    # a GPU that an operator took from use is no reason for another one to be missing
    problems = (*_taken_from_use(case), *(problems or _empty_sockets(case, why_limited)))
    yield from problems
    silent = shown - len(case.node.gpus) - refused_handles(case.node)
    if silent > 0:
        yield unknown(NODE, f"the driver counts {shown} GPUs, and only {len(case.node.gpus)} of them told anything")
    elif not problems:
        yield _as_shown(case, shown, why_limited)


def _shown_by_driver(shown: int) -> Evidence:
    return Evidence("number of GPUs, driver", str(shown))


def _number_shown(case: Case) -> int | None:
    """The driver's number of GPUs, or that of the GPUs that it shows; None if it shows none and counts none."""
    reported = known(case.node.driver.device_count)
    return reported if reported is not None else sum(shown_by_driver(case.node, gpu) for gpu in case.node.gpus) or None


def _without_number(case: Case) -> Iterator[Finding]:
    driver = case.node.driver
    failed = tuple(failed_starts(case))
    if failed:
        yield from failed
    elif not isinstance(driver.init_code, Missing) and driver.init_code != INIT_OK:
        yield skip(NODE, "the driver does not answer: judged by the driver checks")
    else:
        missing = driver.device_count
        yield unread(NODE, "the driver's number of GPUs", missing if isinstance(missing, Missing) else Missing("?"))


def _failed_to_start(case: Case, hidden: HiddenGpus, why_limited: str | None) -> Iterator[Finding]:
    """GPUs that did not start, by the kernel log, unless the driver shows a part of them only."""
    node = case.node
    part = node.driver.init_code == INIT_OK and isinstance(node.driver.device_count, Missing) and bool(node.gpus)
    if not part and not why_limited:
        missing = {device.bus_id for device in hidden.missing}
        yield from (finding for finding in failed_starts(case) if finding.subject.bus_id not in missing)


def _as_shown(case: Case, shown: int, why_limited: str | None) -> Finding:
    """The finding if nothing is wrong with the number: a pass if there is something to compare it with."""
    gpus = bus_gpus(case.node)
    on_bus = known(gpus)
    if shown == 0:
        return fail(NODE, Found("the driver shows no GPU", 0, "GPUs"), "at least one GPU", advice=[_SEE_BUS])
    text = f"{shown} GPU{'s' * (shown != 1)}"
    if isinstance(case.node.driver.device_count, Missing) and on_bus is None and case.expect.gpus is None:
        cut = first_failed([case.node.driver.device_count])
        alone = f"{text} in this capture: neither the driver's count nor the PCI bus to compare with"
        return unread(NODE, text, cut) if cut else skip(NODE, alone)
    if case.expect.gpus is None and isinstance(gpus, Missing) and gpus.kind == "failed":
        return unread(NODE, f"{text}; the PCI bus to compare with", gpus)
    why_limited = why_limited or (REFUSED if refused_handles(case.node) else None)
    if why_limited and on_bus is not None and len(on_bus) > shown:
        text += f" of the {len(on_bus)} on the PCI bus: {why_limited}"
    elif why_limited:
        text += f", as seen {why_limited}" if why_limited.startswith("inside") else f", as seen with: {why_limited}"
    elif on_bus is not None and len(on_bus) == shown:
        text += ", as many as on the PCI bus"
    return ok(NODE, Found(text, shown, "GPUs"), None, _shown_by_driver(shown))


def _taken_from_use(case: Case) -> Iterator[Finding]:
    for bus_id in drained_gpus(case.node):
        yield warn(
            Subject(kind="gpu", bus_id=bus_id),
            "drained by an operator: new programs do not see it",
            "in use",
            Evidence("nvmlDeviceQueryDrainState", "1"),
            likely="somebody took this GPU from use, to reset or to replace it",
            advice=[Advice("No longer meant? Give it back.", f"nvidia-smi drain -p {bus_id} -m 0")],
        )
    for bus_id in excluded_gpus(case.node):
        yield warn(
            Subject(kind="gpu", bus_id=bus_id),
            "excluded by the driver's options: no program sees it",
            "in use",
            Evidence(f"/proc/driver/nvidia/gpus/{bus_id}/information", "GPU Excluded: Yes"),
            likely="somebody, or the fabric manager in degraded mode, took a GPU that failed from use",
            advice=[
                Advice("See the option.", "grep -r ExcludedGpus /etc/modprobe.d; nvidia-smi -q | grep -i excluded"),
                "Mended or replaced? Remove the option, rebuild the initramfs and reboot.",
            ],
        )


def _gone(case: Case, shown: int, hidden: HiddenGpus) -> Iterator[Finding]:
    total = shown + hidden.outside + len(hidden.missing)
    if hidden.lacking != len(hidden.missing):
        slurm = slurm_allocation(case.node)
        given = shown + hidden.lacking
        candidates = ", ".join(device.bus_id for device in hidden.missing)
        whose = "that Slurm gave this job" if slurm else "that this process may see"
        yield fail(
            NODE,
            Found(f"the driver shows {shown} of the {given} GPUs {whose}", shown, "GPUs"),
            Expected(f"{given} GPUs", "==", given, "GPUs", slurm.variable if slurm else "PCI bus"),
            _shown_by_driver(shown),
            Evidence("GPUs on the PCI bus that may be it", candidates or "none"),
            likely="a GPU fell off the bus or did not start with the driver",
            advice=["On the node, outside of the job, run gpudoctor check gpu.count: it names the GPU."],
        )
        return
    models = [str(known(g.pci_device_id) or "").lower() for g in case.node.gpus]
    for device in hidden.missing:
        model = (known(device.device_id) or "").lower().removeprefix("0x")
        # an unbound GPU of a model that no other GPU here has may just be too old for this driver
        foreign = known(device.driver) is None and bool(models) and not any(model in m for m in models)
        yield (warn if foreign and model else fail)(
            Subject(kind="gpu", bus_id=device.bus_id),
            Found(f"on the PCI bus, but not shown by the driver ({shown} of {total} GPUs)", shown, "GPUs"),
            Expected(f"{total - hidden.outside} GPUs", "==", total - hidden.outside, "GPUs", "PCI bus"),
            _shown_by_driver(shown),
            Evidence(f"PCI function {device.bus_id}", f"driver {known(device.driver) or 'none bound'}"),
            likely="a model that this driver does not support"
            if foreign and model
            else "the GPU fell off the bus or did not start with the driver",
            advice=[
                Advice("Read why it was refused.", f"dmesg | grep -i -e {device.bus_id} -e 'fallen off'"),
                "Drain the node and power-cycle it (a plain reboot may not bring the GPU back).",
                "Still gone: reseat the GPU or its riser, then open a hardware case.",
            ],
        )


class _Board(msgspec.Struct, frozen=True):
    """A board whose sockets are numbered in a row, and not all taken. `starts`: the numbers of its first socket."""

    size: int
    taken: tuple[int, ...]
    starts: tuple[int, ...]

    @property
    def empty(self) -> list[int]:
        return sorted(set(range(self.starts[0], self.starts[0] + self.size)) - set(self.taken))

    @property
    def empty_text(self) -> str:
        """Some boards number from 0, others from 1: if neither end is taken, either may be the empty one."""
        if len(self.starts) == 1:
            return ", ".join(map(str, self.empty))
        inner = [str(number) for number in self.empty if number not in (0, self.size)]
        return ", ".join([*inner, f"0 or {self.size}"])


def _board(node: Node) -> _Board | None:
    """The board of 8 or 4 SXM sockets that the GPUs sit on, if some of its sockets are empty; else None."""
    modules = [number for gpu in node.gpus if (number := known(gpu.module_id)) is not None]
    # cards without sockets return 0 or 1 for every GPU, and have no NVLinks
    if len(set(modules)) != shown_count(node) or not all(known(gpu.nvlinks) for gpu in node.gpus):
        return None
    size = next((size for size in _BOARDS if size // 2 < len(modules) < size), 0)
    starts = tuple(first for first in (0, 1) if set(modules) <= set(range(first, first + size)))
    board = _Board(size, tuple(sorted(modules)), starts)
    return board if starts and size and len(board.empty) == size - len(modules) else None


def _empty_sockets(case: Case, why_limited: str | None) -> Iterator[Finding]:
    """A finding for empty sockets: a board numbers them in a row, so a gap is a missing GPU.

    Only a warning if the GPUs' generation had boards of other sizes, or if it is not known that this is neither a
    virtual machine (which may have been given some of the GPUs) nor a container.
    """
    node = case.node
    board = None if why_limited or node.host.is_guest else _board(node)
    handed_on = len(known(pci_gpus(node)) or ()) - len(known(bus_gpus(node)) or ())
    if board is None or handed_on >= len(board.empty):
        return
    of_other_boards = any(known(gpu.architecture) in _OTHER_BOARDS for gpu in node.gpus)
    is_certain = known(node.host.virtualization) == "none" and not of_other_boards
    text = f"{len(board.taken)} GPUs on a board of {board.size}: module {board.empty_text} is missing"
    if handed_on:
        text += f", {handed_on} of them taken from use or handed to a virtual machine"
    yield (fail if is_certain else warn)(
        NODE,
        Found(text, len(board.taken), "GPUs"),
        Expected(f"{board.size} GPUs", "==", board.size, "GPUs", "module numbers of the others"),
        Evidence("module ids, driver", ", ".join(map(str, board.taken))),
        likely="a GPU is not even on the PCI bus",
        advice=_GONE_FROM_BUS,
    )


def _written_down_for_here(case: Case) -> bool:
    """Whether this is a container with all GPUs, and a configuration with their number."""
    visible = case.node.environment.get("NVIDIA_VISIBLE_DEVICES")
    refused = refused_handles(case.node) > 0 or why_confined(case.node) is not None
    return case.expect.gpus is not None and visible in (None, "", "all") and not refused


def _against_expectation(case: Case, shown: int, why_limited: str | None) -> Iterator[Finding]:
    expected, source = case.expect.gpus, "configuration"
    if expected is None and case.profile.node is not None:
        # a profile counts the GPUs that compute; a card that only drives the display is extra
        beside = len(case.node.gpus) - len(compute_gpus(case.node.gpus))
        expected, source = case.profile.node.gpus + beside, f"profile {case.profile.name}"
    # a GPU that this process may not open is present all the same
    shown = max(shown, len(case.node.gpus) + refused_handles(case.node))
    shown += len(drained_gpus(case.node)) + len(excluded_gpus(case.node))
    if expected is None or expected == shown or (why_limited and shown < expected and not _written_down_for_here(case)):
        return
    few = shown < expected
    yield (fail if few else warn)(
        NODE,
        Found(f"{shown} GPU{'s' * (shown != 1)} where {expected} are expected", shown, "GPUs"),
        Expected(f"{expected} GPUs", "==", expected, "GPUs", source),
        _shown_by_driver(shown),
        likely="a GPU is not even on the PCI bus" if few else "the configuration is not this node's",
        advice=_GONE_FROM_BUS if few else ["Correct the expected number of GPUs in the configuration."],
    )
