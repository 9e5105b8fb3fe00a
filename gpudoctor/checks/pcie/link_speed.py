"""pcie.link-speed: does every busy GPU run its PCIe link at full generation?"""

from __future__ import annotations

from gpudoctor.checks.core.case import Case, Limit, once_a_case
from gpudoctor.checks.core.each_gpu import by_model, each_gpu
from gpudoctor.checks.core.explains import OVER_PCIE
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.core.unread import first_unread, unread
from gpudoctor.checks.pcie.link_state import hidden_bridges, idling, rates_gb_s
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.links import generation_of
from gpudoctor.facts.model.missing import Missing, known

_BUSY_PCT = Limit(10, "percent", "below it a desktop's redraws look the same as an idle GPU (ours)", name="busy_pct")


@check(
    "pcie.link-speed",
    title="Every busy GPU runs its PCIe link at full generation",
    impact="slow-host-link",
    limits=(_BUSY_PCT,),
    explains=OVER_PCIE,
)
@each_gpu
def link_speed(case: Case, gpu: Gpu) -> Finding:
    """Judge a link's generation only if the link is at its maximum or not idle."""
    subject, link = of_gpu(gpu), gpu.pcie
    if isinstance(link.generation, Missing):
        return unread(subject, "PCIe generation", link.generation)
    now, most = link.generation, gpu.pcie.generation_reachable
    if min(now, now if most is None else most) <= 0:
        return unknown(subject, f"PCIe generation: the answer, {now} of {most}, is none")
    device = known(link.device_generation_max)
    if most is None and device is not None and now >= device:
        most = device
    if most is None:
        failed = first_unread(subject, ("PCIe generation that GPU and slot can do", link.generation_max))
        return failed or skip(subject, f"Gen{now}: what GPU and slot can do together is not known")
    found = Found(f"PCIe Gen{now}", now, "generation")
    expected = Expected(f"PCIe Gen{most}: what GPU and slot can do together", ">=", most, "generation", "slot maximum")
    if now >= most:
        return ok(subject, found, expected)
    if gpu.on_c2c and now >= _fastest(case).get(gpu.name, 0):
        return skip(subject, f"Gen{now}: the host link of this GPU is NVLink-C2C, not PCIe")
    idle = idling(gpu, case.limit(_BUSY_PCT, gpu))
    if idle is None:
        return skip(subject, f"Gen{now} of Gen{most}: nothing here tells whether the link is idling")
    if idle:
        return skip(subject, f"the link is idling (Gen{now} of Gen{most}): judged under load")
    lanes = known(link.width) or 16
    evidence = [Evidence("nvmlDeviceGetCurrPcieLinkGeneration", f"{now} (maximum {most})"), *_busy_evidence(gpu)]
    if rates := rates_gb_s((now, lanes), (most, lanes)):
        evidence.append(Evidence("what it costs", f"{rates[0]} GB/s each way instead of {rates[1]}"))
    certain = hidden_bridges(case, gpu) is None and (known(gpu.utilization.gpu_pct) or 0) > 0
    return (fail if certain else warn)(
        subject,
        found,
        expected,
        *evidence,
        likely="the link fell back to a slower generation (signal quality, riser, retimer) or the BIOS holds it there",
        advice=(
            Advice("See what the link is asked for and does:", f"sudo {gpu.lspci} | grep -i lnk"),
            "Set the slot to Auto or its full generation in the BIOS; take a riser or cable out of the way.",
            "It comes back after a cold boot: reseat the GPU, then open a hardware case.",
        ),
    )


@once_a_case
def _fastest(case: Case) -> dict[str | Missing, int]:
    """The highest generation at which a GPU of each model runs."""
    return {name: max(known(gpu.pcie.generation) or 0 for gpu in gpus) for name, gpus in by_model(case).items()}


def _busy_evidence(gpu: Gpu) -> list[Evidence]:
    readings = []
    state, busy = known(gpu.clocks.performance_state), known(gpu.utilization.gpu_pct)
    if state is not None:
        readings.append(Evidence("nvmlDeviceGetPerformanceState", f"P{state}"))
    if busy is not None:
        readings.append(Evidence("nvmlDeviceGetUtilizationRates", f"{busy} %"))
    path = known(gpu.pcie.path)
    speed = known(path[0].speed_gt_s) if path else None
    if path and speed is not None:
        place = f"/sys/bus/pci/devices/{path[0].bus_id}/current_link_speed"
        readings.append(Evidence(place, f"{speed:g} GT/s (Gen{generation_of(speed)})"))
    return readings
