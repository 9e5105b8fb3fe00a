"""env.frameworks: do torch, TensorFlow and JAX see exactly the GPUs that the driver shows?"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.cuda_device_list import Visible, bare_uuid, resolve
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, Subject, of_gpu
from gpudoctor.checks.core.unread import unread
from gpudoctor.facts.model.measured_strategies import FrameworkView
from gpudoctor.facts.model.missing import Missing, known

PROBE = "frameworks"
NAMES = {"torch": "torch", "tensorflow": "TensorFlow", "jax": "JAX"}
_CALLS = {
    "torch": "torch.cuda.device_count()",
    "tensorflow": "tf.config.list_physical_devices('GPU')",
    "jax": "jax.local_devices(backend='cuda')",
}
_BUILDS = {
    "torch": Advice("Install a build for your driver's CUDA: https://pytorch.org/get-started"),
    "tensorflow": Advice("Install it with the CUDA libraries it needs.", "pip install 'tensorflow[and-cuda]'"),
    "jax": Advice("Install it with the CUDA libraries it needs.", "pip install 'jax[cuda12]'"),
}


@check("env.frameworks")
def framework_sight(case: Case) -> Iterator[Finding]:
    """Fail if a framework opens other GPUs than the job may use; warn if one of several opens none."""
    not_run = case.measurements.not_run
    views = case.measurements.frameworks
    why = not_run.get(PROBE)
    if why is not None:
        yield unread(NODE, "what the frameworks see", why)
    for framework, name in NAMES.items():
        missing = not_run.get(f"{PROBE}.{framework}")
        if missing is not None:
            yield unread(NODE, f"what {name} sees", missing)
    if not views:
        if why is None and not any(key.startswith(PROBE) for key in not_run):
            yield skip(NODE, "what the frameworks see: not asked in this run")
        return
    environment = case.node.environment
    if isinstance(environment.variables, Missing):
        yield unread(NODE, "environment", environment.variables)
        return
    seen = resolve(environment.get("CUDA_VISIBLE_DEVICES"), case.node.gpus, environment.get("CUDA_DEVICE_ORDER"))
    if seen.unresolved is not None:
        yield unknown(NODE, f"which GPUs CUDA shows: {seen.unresolved}")
        return
    if not seen.visible:
        yield skip(NODE, "CUDA_VISIBLE_DEVICES leaves no GPU to see")
        return
    counted = known(case.node.driver.device_count)
    if counted is not None and counted > len(case.node.gpus):
        yield unknown(NODE, f"the driver counts {counted} GPUs, and only {len(case.node.gpus)} answered")
        return
    for view in views:
        yield from _judged(case, view, seen)


def _judged(case: Case, view: FrameworkView, seen: Visible) -> Iterator[Finding]:
    name = f"{NAMES[view.framework]} {view.version}"
    if view.gpu_build is False:
        # a CPU build is often intended: TensorFlow and JAX beside a torch that trains
        reported = "env.torch judges it" if view.framework == "torch" else _BUILDS[view.framework].command
        yield skip(NODE, f"{name} is a build for the CPU, which sees no GPU by nature ({reported})")
        return
    if view.held_back is not None:
        yield skip(NODE, f"{name}: {view.held_back} keeps it from the GPUs")
        return
    if isinstance(view.gpus, Missing):
        yield unread(NODE, f"what {name} sees", view.gpus)
        return
    count = len(seen.visible)
    evidence = [Evidence(_CALLS[view.framework], str(view.gpus))]
    evidence += [Evidence(NAMES[view.framework], line) for line in (view.error, *view.complaints) if line]
    expected = Expected(f"{count} GPUs", "==", count, "GPUs", "the driver, and CUDA_VISIBLE_DEVICES")
    if view.gpus == 0 or view.error:
        yield _none(view, name, expected, evidence)
        return
    unseen = _unseen(case, view, seen)
    sees = Found(f"{name} sees {view.gpus} of {count} GPUs", view.gpus, "GPUs")
    if view.gpus == count and not unseen:
        yield ok(NODE, sees, expected, *evidence)
        return
    evidence += [Evidence(NAMES[view.framework], line) for line in view.left_out]
    if view.left_out and view.gpus + len(view.left_out) == count:
        yield _left_out(view, sees, expected, evidence)
        return
    if view.gpus == count and _in_other_order(case, view, seen):
        yield _other_than_meant(case, name, sees, expected, evidence)
        return
    text = f"{name} sees {view.gpus} GPU{'s' * (view.gpus != 1)}"
    for subject in unseen or (NODE,):
        yield fail(
            subject,
            Found(f"{text}, and not this one" if unseen else text, view.gpus, "GPUs"),
            expected,
            *evidence,
            likely="a GPU that CUDA cannot open, or the device cgroup or device files of this session",
            advice=(Advice("Compare the two lists.", "nvidia-smi -L; ls -l /dev/nvidia*"),),
        )


def _left_out(view: FrameworkView, sees: Found, expected: Expected, evidence: list[Evidence]) -> Finding:
    """The framework's own rules exclude some GPUs: small ones often only drive a display."""
    number = len(view.left_out)
    if all("minimum required count" in line for line in view.left_out):
        return ok(NODE, replace(sees, text=f"{sees.text}, and leaves out {number} as too small"), expected, *evidence)
    return warn(
        NODE,
        replace(sees, text=f"{sees.text}, and leaves out {number}"),
        expected,
        *evidence,
        likely="a GPU that is too old for this build",
        advice=(Advice("Take a build for it, or count without it."),),
    )


def _in_other_order(case: Case, view: FrameworkView, seen: Visible) -> bool:
    """Whether CUDA, which counts the fastest GPU first, may map the indices to other GPUs of this node."""
    by_index = seen.value is not None and not seen.value.startswith(("GPU-", "MIG-"))
    by_bus = case.node.environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    of_node = {bare_uuid(uuid) for gpu in case.node.gpus if (uuid := known(gpu.uuid)) is not None}
    return by_index and not by_bus and {bare_uuid(uuid) for uuid in known(view.uuids) or ()} <= of_node


def _other_than_meant(case: Case, name: str, sees: Found, expected: Expected, evidence: list[Evidence]) -> Finding:
    value = case.node.environment.get("CUDA_VISIBLE_DEVICES")
    return warn(
        NODE,
        replace(sees, text=f"{name} opens other GPUs than those that nvidia-smi numbers {value}"),
        expected,
        *evidence,
        likely="CUDA counts the fastest GPU first, nvidia-smi by bus id",
        advice=(Advice("Count as nvidia-smi does.", "export CUDA_DEVICE_ORDER=PCI_BUS_ID"),),
    )


def _none(view: FrameworkView, name: str, expected: Expected, evidence: list[Evidence]) -> Finding:
    """A fail for torch, as in env.torch; only a warn for TensorFlow and JAX, whose optional CUDA is mostly left out."""
    found = Found(f"{name} opens no GPU", 0, "GPUs")
    advice = (
        _BUILDS[view.framework],
        Advice("Does CUDA itself start?", "gpudoctor check driver env.torch --level standard"),
    )
    if view.framework == "torch":
        likely = view.error or "CUDA does not start in this session, though the driver answers"
        return fail(NODE, found, expected, *evidence, likely=likely, advice=advice)
    likely = "CUDA libraries that it needs are not installed; it would train on the CPU without a word"
    if any("driver version is insufficient" in line for line in (view.error or "", *view.complaints)):
        likely = "the driver is too old for the CUDA that it brings; it would train on the CPU without a word"
        advice = (Advice("Update the driver, or take a build for an older CUDA.", "nvidia-smi | head -4"), advice[1])
    return warn(NODE, found, expected, *evidence, likely=likely, advice=advice)


def _unseen(case: Case, view: FrameworkView, seen: Visible) -> tuple[Subject, ...]:
    """The GPUs that it should list but does not, if both sides know all UUIDs."""
    listed = known(view.uuids)
    if not listed or None in seen.uuids:
        return ()
    bare = {bare_uuid(uuid) for uuid in listed}
    return tuple(
        of_gpu(gpu)
        for index, uuid in zip(seen.visible, seen.uuids, strict=True)
        for gpu in case.node.gpus
        if gpu.index == index and uuid is not None and bare_uuid(uuid) not in bare and not uuid.startswith("MIG-")
    )
