"""env.cuda-visible-devices: which GPUs does the variable hide, and is that intended?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.cuda_device_list import Visible, resolve
from gpudoctor.checks.core.explains import ENDS, TOGETHER, VIEWS, Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.scope import SLURM_GPUS, indices
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node

NAME = "CUDA_VISIBLE_DEVICES"


@check(
    "env.cuda-visible-devices",
    title="CUDA_VISIBLE_DEVICES shows the GPUs that are meant",
    explains=(
        Explains(VIEWS, anywhere=True),
        Explains(TOGETHER, anywhere=True, found=ENDS),
    ),
)
def visible_devices(case: Case) -> Iterator[Finding]:
    """Fail a list that hides GPUs by mistake or hides all; warn if another setting contradicts it."""
    node = case.node
    if isinstance(node.environment.variables, Missing):
        yield unread(NODE, "environment", node.environment.variables)
        return
    value = node.environment.get(NAME)
    order = node.environment.get("CUDA_DEVICE_ORDER")
    seen = resolve(value, node.gpus, order)
    evidence = [Evidence("environment", f"{NAME}={value}" if value is not None else f"{NAME} is not set")]
    if order is not None:
        evidence.append(Evidence("environment", f"CUDA_DEVICE_ORDER={order}"))
    if seen.unresolved is not None:
        # the driver did report the GPUs: values it left out are unknown, not a reason to skip
        yield unknown(NODE, f"{NAME}={value} cannot be followed: {seen.unresolved}", *evidence)
        return
    found = Found(_in_words(node, seen), len(seen.visible), "GPUs")
    counted = known(node.driver.device_count)
    if counted is not None and counted > len(node.gpus) and seen.problems:
        reason = f"{found.text}; but the driver counts {counted} GPUs and only {len(node.gpus)} answered"
        yield unknown(NODE, reason, *evidence)
    elif seen.problems or seen.hides_all:
        yield _broken(node, seen, found, evidence)
    elif seen.order_uncertain:
        yield _other_order(seen, found, evidence)
    elif seen.hidden_by_mistake or ("," in (value or "") and any("MIG" in note for note in seen.notes)):
        yield warn(
            NODE,
            found,
            "one MIG instance a process, or GPUs that are not in MIG mode",
            *evidence,
            likely=seen.notes[0] if seen.notes else None,
            advice=(Advice("Start one process for each MIG instance, each with its own MIG UUID.", "nvidia-smi -L"),),
        )
    else:
        yield ok(NODE, found, None, *evidence)
    yield from _contradictions(node, seen)


def _in_words(node: Node, seen: Visible) -> str:
    total = len(node.gpus)
    every = f"all {total} GPUs visible" if total != 1 else "its GPU is visible"
    if seen.value is None:
        head = f"{NAME} is not set: {every}" if not seen.hidden else f"{NAME} is not set"
        return "; ".join((head, *seen.notes))
    shown = seen.value if len(seen.value) <= 120 else seen.value[:117] + "..."
    sees = f"CUDA sees {_gpus(seen.visible)} of {total}" if seen.visible else "CUDA sees no GPU"
    if not seen.hidden:
        sees = every
    parts = [f"{NAME}={shown}: {sees}", *seen.problems, *seen.notes]
    if seen.hidden_by_mistake:
        parts.append(f"named, and yet hidden: {_gpus(seen.hidden_by_mistake)}")
    if seen.hidden_on_purpose:
        parts.append(f"left out: {_gpus(seen.hidden_on_purpose)}")
    return "; ".join(parts)


def _gpus(numbers: tuple[int, ...]) -> str:
    return "GPU " + ", ".join(str(n) for n in numbers)


def _broken(node: Node, seen: Visible, found: Found, evidence: list[Evidence]) -> Finding:
    every = ",".join(str(i) for i in range(len(node.gpus)))
    if seen.problems:
        likely = "a slip in the list: CUDA says nothing about it, a program just finds fewer GPUs"
        listed = indices(node.environment.get("NVIDIA_VISIBLE_DEVICES"))
        if listed and len(listed) == len(node.gpus):
            likely = "the list was written for the whole host: inside this container GPUs are numbered from 0"
    elif (seen.value or "").strip() == "NoDevFiles":
        likely = "Slurm sets NoDevFiles where a job asked for no GPU"
    else:
        likely = "an empty value or -1 hides every GPU: often a leftover of a run that was meant for the CPU"
    return fail(
        NODE,
        found,
        Expected("every entry names one GPU of this node, once", source="CUDA programming guide"),
        *evidence,
        likely=likely,
        advice=(
            Advice("Show all GPUs again by clearing it,", f"unset {NAME}"),
            Advice("or name those that you mean, each once.", f"export {NAME}={every}"),
            Advice("In a Slurm job, ask for GPUs and let Slurm set it.", "srun --gpus-per-node=N ..."),
        ),
    )


def _other_order(seen: Visible, found: Found, evidence: list[Evidence]) -> Finding:
    return warn(
        NODE,
        Found(
            f"{NAME}={seen.value} names GPUs by index on a node of mixed models without CUDA_DEVICE_ORDER=PCI_BUS_ID:"
            " CUDA counts the fastest GPU first, so its numbers need not be those of nvidia-smi",
            seen.value,
        ),
        "indices in bus order, or UUIDs",
        *evidence,
        likely="CUDA's default order is FASTEST_FIRST; it equals the bus order only where all GPUs are of one model",
        advice=(
            Advice("Make CUDA count as nvidia-smi does,", "export CUDA_DEVICE_ORDER=PCI_BUS_ID"),
            Advice("or name the GPUs by UUID.", "nvidia-smi -L"),
        ),
    )


def _contradictions(node: Node, seen: Visible) -> Iterator[Finding]:
    """Warn if the scheduler or the container runtime assigned other GPUs than the variable shows."""
    if seen.value is None or not seen.visible or seen.order_uncertain:
        return
    for name in (*SLURM_GPUS, "NVIDIA_VISIBLE_DEVICES"):
        given = node.environment.get(name)
        allowed = _allowed(node, given)
        strangers = tuple(i for i in seen.visible if allowed is not None and i not in allowed)
        if not strangers:
            continue
        giver = "the container was given" if name.startswith("NVIDIA") else "Slurm gave the job"
        yield warn(
            NODE,
            f"{NAME}={seen.value} shows {_gpus(strangers)}, but {name}={given}",
            f"only GPUs that {giver}",
            Evidence("environment", f"{name}={given}"),
            likely=f"{NAME} was set by hand, over the GPUs that {giver}: another job may be using these",
            advice=(Advice(f"Take {NAME} out of the job script: it is set for you.", f"unset {NAME}"),),
        )
        return


def _allowed(node: Node, given: str | None) -> set[int] | None:
    """NVML indices that a list allows; None if it allows all or cannot contradict.

    In a job that is confined to its GPUs the indices start again at 0, so the two lists cannot be compared.
    """
    listed = indices(given)
    if listed is not None:
        return listed if len(node.gpus) > len(listed) and not known(node.driver.denied_gpus) else None
    if given is None or not given.startswith("GPU-"):
        return None  # all, none, void (which CDI sets although it assigns GPUs), MIG names
    names = [name.strip() for name in given.split(",")]
    if any(isinstance(gpu.uuid, Missing) for gpu in node.gpus):
        return None
    return {gpu.index for gpu in node.gpus if any(n and (known(gpu.uuid) or "").startswith(n) for n in names)}
