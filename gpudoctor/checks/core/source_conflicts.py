"""Facts that two sources show and that differ: neither can be trusted, so what rests on them is no pass.

These facts have two sources in a node, and the same answer is expected of both:

- whether the driver runs: the list of kernel modules, and the driver's own answers;
- how many GPUs it has: its count, and the GPUs that answered;
- which GPUs are there: the PCI bus, and the driver;
- a GPU's place: its bus id, and the lowest device of its PCIe path;
- the width of its PCIe link: the driver, and sysfs or lspci (not in a virtual machine, whose bus is made up, nor beside
  NVLink-C2C, where the PCIe link is no link to the host);
- whether MIG is on: the mode, and the instances.

Others differ in health and are not compared: PCIe generations and clocks (both change with load), the maximum width
(the driver's may include the slot), NUMA nodes (one source, /sys), memory used and that of processes (contexts).
Versions of library, module and fabric manager have checks of their own.
"""

from __future__ import annotations

from operator import is_

from msgspec.structs import replace

from gpudoctor.checks.core.visibility import why_hidden
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.links import NO_LANES
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node


def conflicts_marked(node: Node) -> Node:
    """The node, with every fact on which two sources differ marked as failed; the same object if there is none."""
    driver, pci = node.driver, node.pci
    devices = {device.bus_id for device in known(pci.nvidia_devices) or ()}
    # a container may show only a part of /sys and /proc
    answers = known(driver.init_code) == 0 and why_hidden(node) is None
    if driver.module_loaded is False and answers:
        text = "the kernel module is not loaded, by the list of modules, but the driver answers"
        driver = replace(driver, module_loaded=Missing(text, "failed"), init_code=Missing(text, "failed"))
    count = known(driver.device_count)
    if count is not None and count < len(node.gpus):
        text = f"the driver counts {count} GPUs, but {len(node.gpus)} answered"
        driver = replace(driver, device_count=Missing(text, "failed"))
    absent = [gpu for gpu in node.gpus if devices and gpu.bus_id not in devices]
    if absent and answers and not node.source.may_be_part:
        names = ", ".join(gpu.label for gpu in absent[:4])
        pci = replace(pci, nvidia_devices=Missing(f"without {names}, which the driver shows", "failed"))
    gpus = tuple(_marked(node, gpu) for gpu in node.gpus)
    same = driver is node.driver and pci is node.pci and all(map(is_, gpus, node.gpus))
    return node if same else replace(node, driver=driver, pci=pci, gpus=gpus)


def _marked(node: Node, gpu: Gpu) -> Gpu:
    pcie, settings = gpu.pcie, gpu.settings
    function = (known(pcie.path) or (None,))[0]
    if function is not None and function.bus_id != gpu.bus_id:
        pcie = replace(pcie, path=_differ("the bus id", gpu.bus_id, function.bus_id))
    elif function is not None and not node.host.is_guest and known(settings.virtualization) in ("none", None):
        width, on_bus = known(pcie.width), known(function.width)
        # the other way round the driver itself shows the narrow link, and pcie.link-width judges it
        if width and on_bus and on_bus not in NO_LANES and on_bus < width and not gpu.on_c2c:
            pcie = replace(pcie, width=_differ("the width", f"x{width}", f"x{on_bus}"))
    instances = settings.mig_instances
    if settings.mig_enabled is False and not isinstance(instances, Missing) and instances:
        settings = replace(settings, mig_enabled=Missing("MIG is off, but there are instances", "failed"))
    same = pcie is gpu.pcie and settings is gpu.settings
    return gpu if same else replace(gpu, pcie=pcie, settings=settings)


def _differ(what: str, by_driver: str, on_bus: str) -> Missing:
    return Missing(f"{what} is {by_driver} by the driver and {on_bus} on the bus", "failed")
