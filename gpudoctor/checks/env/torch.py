"""env.torch: does torch fit the driver, and see the GPUs that it should?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.cuda_device_list import bare_uuid, resolve
from gpudoctor.checks.core.explains import ENDS, TOGETHER, Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, of_gpu
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.measured.ranks import gpus_of, ranks_of
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import TorchView
from gpudoctor.facts.model.missing import Missing, known

_WHEELS = Advice("Install a build for your driver's CUDA: https://pytorch.org/get-started", "nvidia-smi | head -4")


_OLDEST_VERSION = Limit(
    2.4, "torch version", "gpudoctor's probes are made for torch 2.4 and later", name="oldest_version", status="warn"
)
_SLOW_IMPORT_S = Limit(
    20, "s", "1 to 2 s from memory, some 10 s from a local disk (ours); said, not judged", name="slow_import_s"
)


@check(
    "env.torch",
    limits=(_OLDEST_VERSION, _SLOW_IMPORT_S),
    explains=(
        Explains(("env.frameworks",), anywhere=True),
        Explains(TOGETHER, anywhere=True, found=ENDS),
    ),
)
def torch_build(case: Case) -> Iterator[Finding]:
    """Judge torch's build against the driver, and the GPUs that it saw against those it should see."""
    # for a simulated node, what torch reports on this machine would be unrelated
    view = case.measurements.torch_view if case.node.source.kind == "live" else None
    torch = view.torch if view else case.node.software.torch
    if isinstance(torch, Missing):
        yield unread(NODE, "torch", torch)
        return
    launch = case.measurements.launch
    import_s = known(launch.import_s) if launch else None
    if import_s is not None and import_s > case.limit(_SLOW_IMPORT_S):
        yield ok(NODE, f"importing torch took {import_s:.0f} s: it lies on a slow disk, and was not in memory")
    # not is_available() or device_count(), which may ask NVML: only a rank on a GPU starts CUDA and reads its UUID
    opens_gpus = view is not None and view.error is None and bool(known(view.visible_uuids))
    yield from _build(case, torch, view.cuda if view else case.node.software.torch_cuda, opens_gpus)
    if view is not None:
        yield from _sight(case, view)
    elif case.node.source.kind == "live":
        why = case.measurements.not_run.get("torch", Missing("torch was not started in this run"))
        yield unread(NODE, "which GPUs torch sees", why)
    copies = case.node.software.nccl_copies
    if len(copies) > 1:
        yield warn(
            NODE,
            Found(f"{len(copies)} copies of NCCL", len(copies), "copies"),
            "one copy of libnccl",
            *(Evidence("libnccl", copy) for copy in copies),
            likely="which of them is loaded depends on the search path; two in one process crash or hang",
            advice=(Advice("Keep torch's own copy, and take the others off LD_LIBRARY_PATH.", "pip list | grep nccl"),),
        )


def _build(case: Case, torch: str, cuda: str | Missing | None, opens_gpus: bool) -> Iterator[Finding]:
    evidence = Evidence("torch", torch)
    oldest = case.limit(_OLDEST_VERSION)
    version = _version(torch)
    if version is not None and version < (_version(f"{oldest:g}") or (0, 0)):
        yield warn(
            NODE,
            f"torch {torch}",
            Expected(f"torch {oldest:g} or later", ">=", oldest, None, case.limit_source(_OLDEST_VERSION)),
            evidence,
            likely="an old environment",
            advice=(Advice("Update torch.", "pip install -U torch"),),
        )
    if isinstance(cuda, Missing):
        yield unread(NODE, "torch's CUDA", cuda)
        return
    if cuda is None:
        rocm = "+rocm" in torch
        yield fail(
            NODE,
            f"torch {torch} is a {'ROCm (AMD)' if rocm else 'CPU-only'} build",
            "a build with CUDA, on a node with NVIDIA GPUs",
            evidence,
            likely="pip's index was that of the ROCm builds"
            if rocm
            else "pip took the CPU wheel: the wrong index, or a platform without CUDA wheels",
            advice=(_WHEELS, Advice("Then reinstall.", "pip install --force-reinstall torch")),
        )
        return
    driver = case.node.driver.cuda_version
    if isinstance(driver, Missing):
        yield unread(NODE, f"torch {torch} is built for CUDA {cuda}; the driver's CUDA version", driver)
        return
    yield _fits(torch, cuda, driver, evidence, opens_gpus)


def _fits(torch: str, cuda: str, driver: str, evidence: Evidence, opens_gpus: bool) -> Finding:
    """A driver runs programs of its own CUDA version and older, and from CUDA 11 on of its whole major version."""
    built, offered = _version(cuda), _version(driver)
    shown = (evidence, Evidence("driver", f"CUDA {driver}"))
    if built is None or offered is None:
        return unknown(NODE, f"cannot compare torch's CUDA {cuda!r} with the driver's {driver!r}", *shown)
    text = f"torch {torch} is built for CUDA {cuda}, the driver offers CUDA {driver}"
    if built <= offered:
        return ok(NODE, text, None, *shown)
    if built[0] == offered[0] >= 11:
        return ok(NODE, f"{text}: minor version compatibility carries it", None, *shown)
    if opens_gpus:
        return ok(NODE, f"{text}, and torch opens the GPUs: a forward compatibility package carries it", None, *shown)
    return fail(
        NODE,
        text,
        Expected(f"CUDA {driver} or older", "<=", driver, None, "CUDA compatibility guide"),
        *shown,
        likely="the driver is too old for this torch: CUDA error 35, and no GPU is found",
        advice=(Advice(f"Take a torch build for CUDA {offered[0]}, or update the driver."), _WHEELS),
    )


def _sight(case: Case, view: TorchView) -> Iterator[Finding]:
    launch = case.measurements.launch
    evidence = [Evidence("torch.cuda.device_count()", str(view.device_count))]
    if view.error:
        evidence.append(Evidence("torch.cuda", view.error))
    on_gpus = launch is None or launch.backend == "nccl"
    if view.cuda is None or (not on_gpus and not view.error):
        if view.cuda is not None:
            yield skip(NODE, "which GPUs torch sees: the ranks ran on CPUs")
        return
    given = _given(case)
    expected = Expected(f"{len(given)} GPUs", "==", len(given), "GPUs", "the driver, and what the job may use")
    if given and (view.error or not view.cuda_available):
        yield fail(
            NODE,
            Found("torch cannot open the GPUs", view.device_count, "GPUs"),
            expected,
            *evidence,
            likely=view.error or "CUDA did not initialise, though the driver answers",
            advice=(Advice("See what CUDA says.", "python -c 'import torch; torch.cuda.init()'"),),
        )
        return
    unseen = _unseen(given, view)
    if view.device_count == len(given) and not unseen:
        of_all = f"{view.device_count} of {len(case.node.gpus)} GPUs"
        yield ok(NODE, f"torch sees {of_all}, all that it was given", None, *evidence)
        return
    if case.measurements.problems:
        # a rank that ended early did not report its GPU
        yield unknown(NODE, f"which GPUs torch sees: {case.measurements.problems[0].text}", *evidence)
        return
    likely = "the device cgroup or device files of this session, or a GPU that CUDA cannot open"
    advice = (Advice("Compare the two lists.", "nvidia-smi -L; python -m torch.utils.collect_env"),)
    text = f"torch sees {view.device_count} GPU{'s' * (view.device_count != 1)}"
    blamed = [(of_gpu(gpu), f"{text}: not this one") for gpu in unseen]
    for subject, what in blamed or [(NODE, text)]:
        found = Found(what, view.device_count, "GPUs")
        yield fail(subject, found, expected, *evidence, likely=likely, advice=advice)


def _given(case: Case) -> tuple[Gpu, ...]:
    """The GPUs that torch should see: those the ranks used, else what CUDA_VISIBLE_DEVICES shows of the scope."""
    if ranks := ranks_of(case):
        return tuple(gpus_of(case, ranks))
    environment = case.node.environment
    seen = resolve(environment.get("CUDA_VISIBLE_DEVICES"), case.node.gpus, environment.get("CUDA_DEVICE_ORDER"))
    return tuple(gpu for gpu in case.gpus if gpu.index in seen.visible)


def _unseen(given: tuple[Gpu, ...], view: TorchView) -> tuple[Gpu, ...]:
    """GPUs that torch should list but does not, if both sides know UUIDs; MIG is not compared."""
    listed = known(view.visible_uuids)
    if not listed or any(uuid.startswith("MIG-") for uuid in listed):
        return ()
    bare = {bare_uuid(uuid) for uuid in listed}
    whole = [gpu for gpu in given if known(gpu.settings.mig_enabled) is not True]
    return tuple(gpu for gpu in whole if (uuid := known(gpu.uuid)) is not None and bare_uuid(uuid) not in bare)


def _version(text: str) -> tuple[int, int] | None:
    """The first two numbers of a version.

    >>> _version("2.13.0+cpu")
    (2, 13)
    """
    parts = text.split("+")[0].split(".")
    major, minor = parts[0], parts[1] if len(parts) > 1 else "0"
    digits = minor[: len(minor) - len(minor.lstrip("0123456789"))] or "0"
    return (int(major), int(digits)) if major.isascii() and major.isdigit() else None
