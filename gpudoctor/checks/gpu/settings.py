"""gpu.settings: do the settings of the GPUs let training run, and are they the same on all?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.each_gpu import in_virtual_machine, trusted
from gpudoctor.checks.core.explains import TOGETHER, VIEWS, Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, of_gpu
from gpudoctor.checks.core.unread import first_unread, unread
from gpudoctor.checks.core.visibility import refused_handles, why_hidden
from gpudoctor.checks.gpu.ecc import on_or_off
from gpudoctor.checks.gpu.in_use import unified_memory
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.profiles.profile import majority

_PERSISTENCE = "nvidia-smi -pm 1  # or: systemctl enable --now nvidia-persistenced"


class _Mode(msgspec.Struct, frozen=True):
    """A mode that all GPUs should share, its names in texts, and what a mixture means."""

    name: str
    read: Callable[[Gpu], str | None]
    side: str
    odd: str
    judge: Callable[..., Finding]
    likely: str
    advice: tuple[Advice, ...]


def _switch(value: bool | Missing) -> str | None:
    return None if isinstance(value, Missing) else on_or_off(value)


_MODES = (
    _Mode(
        "MIG",
        lambda gpu: _switch(gpu.settings.mig_enabled),
        "MIG {}",
        "MIG is {}, and {} on the other GPUs",
        fail,
        "MIG set up on some GPUs only: they cannot train together with the whole ones",
        (
            Advice("Give all GPUs the same mode.", "nvidia-smi -mig 0  # with -i for single GPUs"),
            Advice("Or keep the MIG GPUs out of the job.", "export CUDA_VISIBLE_DEVICES=..."),
        ),
    ),
    _Mode(
        "ECC",
        lambda gpu: _switch(gpu.ecc.enabled),
        "ECC {}",
        "ECC is {}, and {} on the other GPUs",
        warn,
        "ECC changed on some GPUs only: memory size, speed and safety differ between ranks",
        (Advice("Give all GPUs the same ECC mode, then reboot.", "nvidia-smi -e 1"),),
    ),
    _Mode(
        "compute mode",
        # "prohibited" is reported separately
        lambda gpu: mode if (mode := known(gpu.settings.compute_mode)) != "prohibited" else None,
        "{}",
        "compute mode is {}, and {} on most of the others",
        warn,
        "set for an earlier job and not set back: a second program on one GPU starts on some only",
        (Advice("Give all GPUs the same mode.", "nvidia-smi -c DEFAULT  # or EXCLUSIVE_PROCESS"),),
    ),
)


@check(
    "gpu.settings",
    title="Settings of the GPUs let training run, and are the same on all",
    explains=(
        Explains((*VIEWS, *TOGETHER), because=("prohibited", "MIG")),
        Explains(("gpu.identical",), because=("ECC", "MIG")),
    ),
)
def settings(case: Case) -> Iterator[Finding]:
    """Judge compute mode, persistence, MIG and ECC mode; inside a container, only what it can change."""
    gpus, doubts = trusted(case.gpus)
    yield from doubts
    compute = [gpu for gpu in case.compute_gpus if gpu in gpus]
    mixtures = [finding for mode in _MODES for finding in _mixture(compute, mode)]
    for gpu in gpus:
        problems = [*_prohibited(gpu), *_persistence(case, gpu), *_mig(gpu)]
        problems += [finding for finding in mixtures if finding.subject.gpu == gpu.index]
        yield from problems or [_as_set(gpu)]
    yield from (finding for finding in mixtures if finding.subject is NODE)


def _as_set(gpu: Gpu) -> Finding:
    mode, persistence, mig = gpu.settings.compute_mode, gpu.settings.persistence, gpu.settings.mig_enabled
    if isinstance(mode, Missing):
        return unread(of_gpu(gpu), "compute mode", mode)
    failed = first_unread(
        of_gpu(gpu),
        ("persistence mode", persistence),
        ("MIG mode", mig),
        ("MIG instances", gpu.settings.mig_instances if known(mig) else None),
        ("ECC mode", gpu.ecc.enabled),
    )
    seen = [f"compute mode {mode}"]
    seen += [f"{what} {on}" for what, value in (("persistence", persistence), ("MIG", mig)) if (on := _switch(value))]
    return failed or ok(of_gpu(gpu), ", ".join(seen), None, Evidence("compute mode", mode))


def _prohibited(gpu: Gpu) -> Iterator[Finding]:
    if known(gpu.settings.compute_mode) == "prohibited":
        yield fail(
            of_gpu(gpu),
            Found("compute mode is prohibited: no CUDA program can use this GPU", "prohibited"),
            Expected("default or exclusive-process", "in", "default, exclusive-process", source="CUDA"),
            Evidence("compute mode", "prohibited"),
            likely="set by an operator to keep jobs away",
            advice=[Advice("Allow compute again.", f"nvidia-smi -i {gpu.smi_id} -c DEFAULT")],
        )


def _persistence(case: Case, gpu: Gpu) -> Iterator[Finding]:
    """Warn if persistence mode is off, which costs seconds at each start.

    Not in guests, which cannot see or set it, nor with a desktop, which keeps the driver loaded, nor on a laptop,
    which powers its GPU off between uses on purpose.
    """
    narrow = why_hidden(case.node) is not None or refused_handles(case.node) > 0
    guest = narrow or in_virtual_machine(case.node, [gpu])
    awake = known(gpu.settings.display_active) is True or unified_memory(case, gpu)
    laptop = "laptop gpu" in (known(gpu.name) or "").lower()
    if known(gpu.settings.persistence) is False and not (guest or awake or laptop):
        yield warn(
            of_gpu(gpu),
            "persistence mode is off",
            Expected("on", "==", "on", source="NVIDIA's deployment guide"),
            Evidence("persistence mode", "off"),
            likely="nvidia-persistenced does not run: the driver is torn down and started again between jobs",
            advice=[Advice("Switch it on, better by the daemon.", _PERSISTENCE)],
        )


def _mig(gpu: Gpu) -> Iterator[Finding]:
    enabled, pending = known(gpu.settings.mig_enabled), known(gpu.settings.mig_pending)
    if enabled is not None and pending is not None and enabled != pending:
        yield warn(
            of_gpu(gpu),
            f"MIG is {on_or_off(enabled)}, and will be {on_or_off(pending)} after the next reset",
            Expected("no change waiting", source="the GPU itself"),
            Evidence("MIG mode, current and pending", f"{on_or_off(enabled)}, pending {on_or_off(pending)}"),
            likely="someone changed the mode and did not reset the GPU since",
            advice=[Advice("Reset the GPU to let it take effect.", f"nvidia-smi --gpu-reset -i {gpu.smi_id}")],
        )
    elif enabled and gpu.settings.mig_instances == ():
        yield warn(
            of_gpu(gpu),
            "MIG is on, but there is no instance: CUDA sees no device here",
            Expected("at least one instance, or MIG off", source="CUDA"),
            Evidence("MIG instances", "0"),
            likely="MIG was switched on and not set up, or its instances did not survive a reboot",
            advice=[
                Advice("Create instances.", "nvidia-smi mig -lgip; nvidia-smi mig -cgi <profile> -C"),
                Advice("Or switch MIG off.", f"nvidia-smi -i {gpu.smi_id} -mig 0"),
            ],
        )


def _mixture(gpus: list[Gpu], mode: _Mode) -> Iterator[Finding]:
    """A finding for each GPU whose mode differs from the majority's, or one for the node on a tie."""
    modes = {gpu.index: value for gpu in gpus if (value := mode.read(gpu)) is not None}
    if len(set(modes.values())) < 2:
        return
    usual = majority(modes.values())
    sides = "; ".join(
        f"{mode.side.format(side)}: GPU {', '.join(str(index) for index, value in modes.items() if value == side)}"
        for side in sorted(set(modes.values()), reverse="on" in modes.values())
    )
    expected = Expected("the same on all GPUs", source="peers" if usual is None else "majority of the peers")
    evidence = Evidence(mode.name if mode.name.endswith("mode") else f"{mode.name} mode", sides)
    outliers = [gpu for gpu in gpus if usual is not None and modes.get(gpu.index, usual) != usual]
    deviations = [(of_gpu(gpu), mode.odd.format(modes[gpu.index], usual)) for gpu in outliers]
    for subject, text in deviations or [(NODE, sides)]:
        found = Found(text, mode.name)
        yield mode.judge(subject, found, expected, evidence, likely=mode.likely, advice=mode.advice)
