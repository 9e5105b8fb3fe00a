"""The facts behind the verdict: GPUs, host, settings, processes, kernel lines, and all of it as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from xml.etree.ElementTree import Element

import msgspec

from gpudoctor.facts.model.gpu import Gpu, PcieLink
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Host, Node, to_json
from gpudoctor.report.html.elements import Child, element, lines, section, table
from gpudoctor.report.model import GpuSummary, Report
from gpudoctor.units import MIB, gib_number, gib_text


def facts_part(report: Report, raw_facts: bool) -> Iterator[Child]:
    """The GPUs; the rest only if the report includes its facts."""
    facts = None if isinstance(report.facts, msgspec.UnsetType) else report.facts
    yield section("GPUs", _gpus(report, facts) if report.gpus else None, id_="gpus")
    if facts is None:
        return
    yield section("Host and software", _host(facts), id_="host")
    yield section("Processes on the GPUs", _processes(facts), id_="processes")
    logged = "\n".join(event.text.replace("\n", " ") for event in known(facts.kernel_log.events) or ())
    yield section("Kernel log", lines(logged) if logged else None, id_="kernel")
    if raw_facts:
        folded = element("details", element("summary", "All facts as JSON"), lines(_json(facts)), class_="raw")
        yield section("Facts", folded, id_="facts")


def _json(facts: Node) -> str:
    try:
        return msgspec.json.format(to_json(facts), indent=2).decode()
    except UnicodeEncodeError:  # a name that is not UTF-8 (lone surrogates); the standard library escapes it
        return json.dumps(msgspec.to_builtins(facts), indent=2)


def _gpus(report: Report, facts: Node | None) -> Element:
    by_bus_id = {gpu.bus_id: gpu for gpu in facts.gpus} if facts else {}
    head: tuple[Child, ...] = ("GPU", "model", "bus id", "UUID", "judged")
    if facts:
        head = (*head[:2], "memory GiB", "PCIe", "NVLinks up", "power W", "temp C", "ECC", "NUMA", *head[2:])
    return table(
        head,
        (_gpu(gpu, by_bus_id.get(gpu.bus_id), facts is not None) for gpu in report.gpus),
        caption="As the driver shows them",
    )


def _gpu(summary: GpuSummary, gpu: Gpu | None, wide: bool) -> tuple[Child, ...]:
    first: tuple[Child, ...] = (f"GPU {summary.index}", summary.name or "-")
    last: tuple[Child, ...] = (
        element("code", summary.bus_id),
        element("code", summary.uuid) if summary.uuid else "-",
        "yes" if summary.in_scope else "no",
    )
    if not wide:
        return (*first, *last)
    if gpu is None:
        return (*first, *("-",) * 7, *last)
    total, draw, limit = (known(v) for v in (gpu.memory_total_mib, gpu.power.draw_w, gpu.power.limit_w))
    ecc = known(gpu.ecc.enabled)
    return (
        *first,
        "-" if total is None else gib_number(total * MIB),
        _pcie(gpu.pcie),
        _links(gpu),
        f"{_short(draw)} of {_short(limit)}",
        _short(known(gpu.thermal.gpu_c)),
        "-" if ecc is None else "on" if ecc else "off",
        _short(known(gpu.numa_node)),
        *last,
    )


def _pcie(link: PcieLink) -> str:
    """The current generation and width, and the maximum if it differs: "Gen5 x8 of Gen5 x16"."""
    now, most = (
        (known(g), known(w)) for g, w in ((link.generation, link.width), (link.generation_max, link.width_max))
    )
    if now[1] is None:
        return "-"
    words, best = (f"{'-' if g is None else f'Gen{g}'} x{_short(w)}" for g, w in (now, most))
    return words if now == most or most[1] is None else f"{words} of {best}"


def _links(gpu: Gpu) -> str:
    if isinstance(gpu.nvlinks, Missing):
        return "-"
    up = sum(link.state == "active" for link in gpu.nvlinks)
    return f"{up} of {len(gpu.nvlinks)}" if gpu.nvlinks else "none"


def _host(facts: Node) -> Element:
    host, software = facts.host, facts.software
    limit, quota = known(host.memory_limit_mib), known(host.cpu_quota)
    said = (
        ("Operating system", known(host.os_name)),
        ("Kernel", known(host.kernel)),
        ("Virtualization", _virtual(host)),
        ("CPUs", _cpus(known(host.cpus_usable), known(host.cpus_total), quota)),
        ("RAM", _gib(known(host.ram_mib))),
        ("Memory limit", _gib(limit)),
        ("/dev/shm", _gib(known(host.shm_mib))),
        ("Driver", known(facts.driver.module_version) or known(facts.driver.library_version)),
        ("CUDA of the driver", known(facts.driver.cuda_version)),
        ("Python", known(software.python)),
        ("PyTorch", known(software.torch)),
        ("NCCL", known(software.nccl)),
        ("IOMMU", known(facts.pci.iommu)),
        ("Facts read at", known(facts.source.collected_at)),
    )
    rows: list[Child] = []
    for name, value in said:
        rows += [element("dt", name), element("dd", value)] if value else []
    variables = known(facts.environment.variables) or ()
    for variable in variables:
        rows += [element("dt", element("code", variable.name)), element("dd", element("code", variable.value))]
    return element("dl", *rows)


def _virtual(host: Host) -> str | None:
    kind = known(host.virtualization)
    detail = known(host.hypervisor) or known(host.container)
    return f"{kind} ({detail})" if kind and detail else kind


def _cpus(usable: int | None, total: int | None, quota: float | None) -> str | None:
    if usable is None and total is None:
        return None
    words = f"{_short(usable)} usable of {_short(total)}"
    return words if quota is None else f"{words}, quota {quota:g}"


def _gib(mib: int | None) -> str | None:
    return None if mib is None else gib_text(mib * MIB)


def _processes(facts: Node) -> Element | None:
    rows: list[tuple[Child, ...]] = [
        (
            f"GPU {gpu.index}",
            str(process.pid),
            known(process.name) or "-",
            known(process.user) or "-",
            process.kind,
            _short(known(process.memory_mib)),
        )
        for gpu in facts.gpus
        for process in known(gpu.processes) or ()
    ]
    return (
        table(("GPU", "pid", "name", "user", "kind", "memory MiB"), rows, caption="When the facts were read")
        if rows
        else None
    )


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.10g}"
