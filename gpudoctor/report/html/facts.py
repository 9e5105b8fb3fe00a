"""The facts behind the verdict: GPUs, host, settings, processes, kernel lines, and all of it as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec

from gpudoctor.facts.model.gpu import Gpu, PcieLink
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Host, Node, to_json
from gpudoctor.report.html.parts import Cell, Code, Pairs, Preformatted, Rows, Section, pairs, section
from gpudoctor.report.model import GpuSummary, Report
from gpudoctor.report.tables.links import link_text
from gpudoctor.report.tables.table import cell
from gpudoctor.text.units import MIB, gib_number, gib_text

_SHORT = ".10g"


def facts_part(report: Report, raw_facts: bool) -> Iterator[Section]:
    """The GPUs; the rest only if the report includes its facts."""
    facts = None if isinstance(report.facts, msgspec.UnsetType) else report.facts
    yield from section("GPUs", [_gpus(report, facts)] if report.gpus else (), "gpus")
    if facts is None:
        return
    yield from section("Host and software", (_host(facts),), "host")
    yield from section("Processes on the GPUs", _processes(facts), "processes")
    logged = "\n".join(event.text.replace("\n", " ") for event in known(facts.kernel_log.events) or ())
    yield from section("Kernel log", [Preformatted(logged)] if logged else (), "kernel")
    if raw_facts:
        yield from section("All facts as JSON", (Preformatted(_json(facts)),), "facts")


def _json(facts: Node) -> str:
    try:
        return msgspec.json.format(to_json(facts), indent=2).decode()
    except UnicodeEncodeError:  # a name that is not UTF-8 (lone surrogates); the standard library escapes it
        return json.dumps(msgspec.to_builtins(facts), indent=2)


def _gpus(report: Report, facts: Node | None) -> Rows:
    by_bus_id = {gpu.bus_id: gpu for gpu in facts.gpus} if facts else {}
    head: tuple[str, ...] = ("GPU", "model", "bus id", "UUID", "judged")
    if facts:
        head = (*head[:2], "memory GiB", "PCIe", "NVLinks up", "power W", "temp C", "ECC", "NUMA", *head[2:])
    rows = tuple(_gpu(gpu, by_bus_id.get(gpu.bus_id), facts is not None) for gpu in report.gpus)
    return Rows(head, rows, "As the driver shows them")


def _gpu(summary: GpuSummary, gpu: Gpu | None, wide: bool) -> tuple[Cell, ...]:
    first: tuple[Cell, ...] = (f"GPU {summary.index}", summary.name or "-")
    last: tuple[Cell, ...] = (
        Code(summary.bus_id_read) if summary.bus_id_read else "-",
        Code(summary.uuid) if summary.uuid else "-",
        "yes" if summary.in_scope else "no",
    )
    if not wide:
        return (*first, *last)
    if gpu is None:
        return (*first, *("-",) * 7, *last)
    total, ecc = known(gpu.memory_total_mib), known(gpu.ecc.enabled)
    return (
        *first,
        "-" if total is None else gib_number(total * MIB),
        _pcie(gpu.pcie),
        _links(gpu),
        f"{cell(gpu.power.draw_w, _SHORT)} of {cell(gpu.power.limit_w, _SHORT)}",
        cell(gpu.thermal.gpu_c, _SHORT),
        "-" if ecc is None else "on" if ecc else "off",
        cell(gpu.numa_node, _SHORT),
        *last,
    )


def _pcie(link: PcieLink) -> str:
    """The current generation and width, and the maximum if it differs: "Gen5 x8 of Gen5 x16"."""
    now, most = link_text(link.generation, link.width), link_text(link.generation_max, link.width_max)
    if known(link.width) is None:
        return "-"
    return now if now == most or known(link.width_max) is None else f"{now} of {most}"


def _links(gpu: Gpu) -> str:
    if isinstance(gpu.nvlinks, Missing):
        return "-"
    up = sum(link.state == "active" for link in gpu.nvlinks)
    return f"{up} of {len(gpu.nvlinks)}" if gpu.nvlinks else "none"


def _host(facts: Node) -> Pairs:
    host, software = facts.host, facts.software
    limit, quota = known(host.memory_limit_mib), known(host.cpu_quota)
    variables = known(facts.environment.variables) or ()
    return pairs(
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
        *((Code(variable.name), Code(variable.value)) for variable in variables),
    )


def _virtual(host: Host) -> str | None:
    kind = known(host.virtualization)
    detail = known(host.hypervisor) or known(host.container)
    return f"{kind} ({detail})" if kind and detail else kind


def _cpus(usable: int | None, total: int | None, quota: float | None) -> str | None:
    if usable is None and total is None:
        return None
    text = f"{cell(usable, _SHORT)} usable of {cell(total, _SHORT)}"
    return text if quota is None else f"{text}, quota {quota:g}"


def _gib(mib: int | None) -> str | None:
    return None if mib is None else gib_text(mib * MIB)


def _processes(facts: Node) -> Iterator[Rows]:
    rows: list[tuple[Cell, ...]] = [
        (
            f"GPU {gpu.index}",
            str(process.pid),
            known(process.name) or "-",
            known(process.user) or "-",
            process.kind,
            cell(process.memory_mib, _SHORT),
        )
        for gpu in facts.gpus
        for process in known(gpu.processes) or ()
    ]
    if rows:
        yield Rows(("GPU", "pid", "name", "user", "kind", "memory MiB"), tuple(rows), "When the facts were read")
