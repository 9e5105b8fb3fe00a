"""driver.loaded: is the NVIDIA driver loaded, and does its library initialise?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.driver_messages import MessageMeaning, log_lines, meaning
from gpudoctor.checks.core.explains import ENDS, PROBES, VIEWS, Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Finding, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.scope import pci_gpus
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.driver.load_causes import NOUVEAU, LoadCause, held_by_other_driver, load_cause
from gpudoctor.facts.model.driver import KernelEvent, LoadFailureCause
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.text.units import counted

# nvmlReturn_t of nvmlInit; source: nvml.h
INIT_OK = 0
INIT_NO_PERMISSION = 4
INIT_NOT_LOADED = 9
INIT_NO_LIBRARY = 12
INIT_VERSION_MISMATCH = 18
INIT_UNKNOWN = 999

NO_GPU_NODE = "there is no NVIDIA GPU and no NVIDIA driver on this machine"
ON_BUS = "NVIDIA GPUs on the PCI bus"
CONTAINER_ADVICE = Advice(
    "In a container: start it with the GPUs and with the driver's utility libraries.",
    "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",
)
TRY_ADVICE = Advice(
    "Not a GPU node: run gpudoctor on one, or try it on a simulated node.",
    "gpudoctor check --node hgx-h100-8 --fault pcie-width-x8@5",
)
LOAD_ADVICE = (
    Advice("Load the driver and read what the kernel says if it refuses.", "modprobe nvidia; dmesg | grep -i nvrm"),
    "Not built for this kernel: reinstall the driver package (DKMS), or enrol its key where Secure Boot is on.",
)


# what a text may report although the host's driver runs
_BESIDE: tuple[LoadFailureCause, ...] = ("no-container-runtime",)
_NOT_BUILT: tuple[LoadFailureCause, ...] = ("build-failed",)


@check(
    "driver.loaded",
    title="The NVIDIA driver is loaded and its library initialises",
    needs_gpu=False,
    events=("signature-rejected", "other-kernel", "other-driver"),
    explains=(
        Explains(("driver.*", "gpu.count", "gpu.lost", "env.cuda-visible-devices", *VIEWS), anywhere=True),
        Explains(PROBES, anywhere=True, found=ENDS),
        Explains(("gpu.*", "nvlink.*"), anywhere=True, gaps=True),
    ),
)
def loaded(case: Case) -> Iterator[Finding]:
    """Pass only if NVML's initialisation succeeded."""
    driver = case.node.driver
    code = driver.init_code
    module = known(driver.module_loaded)
    if code == INIT_OK:
        version = known(driver.module_version) or known(driver.library_version)
        cuda = known(driver.cuda_version)
        text = "loaded" + (f", driver {version}" if version else "") + (f", CUDA {cuda}" if cuda else "")
        yield ok(NODE, text, None, Evidence("nvmlInit", "0"))
        if reported := load_cause(case.node, of=_BESIDE):
            cause, evidence = reported
            expected = "a runtime that gives GPUs to containers"
            yield warn(NODE, cause.found, expected, evidence, likely=cause.likely, advice=cause.advice)
    elif code == INIT_VERSION_MISMATCH:
        yield skip(NODE, "the library refuses the kernel module (18): judged by driver.version-match")
    elif code == INIT_NO_PERMISSION:
        advice = Advice("Look at who may open the device files.", "ls -l /dev/nvidia*")
        yield unknown(NODE, "no permission to initialise the driver's library", init_evidence(case), advice=[advice])
    elif code == INIT_NO_LIBRARY:
        yield _no_library(case, module)
    elif module is False or code == INIT_NOT_LOADED or (isinstance(code, Missing) and _nouveau_drives_all(case.node)):
        yield _not_loaded(case)
    elif isinstance(code, Missing):
        reported = load_cause(case.node) if driver.load_failures or held_by_other_driver(case.node) else None
        finding = _caused(case, *reported) if reported else _perhaps_not(case)
        yield finding or unread(NODE, "the driver's initialisation", code)
    elif code == INIT_UNKNOWN:
        yield _unknown_error(case)
    else:
        message = known(driver.init_error) or "an error"
        yield fail(
            NODE,
            f"the driver's library does not initialise: {message} ({code})",
            "nvmlInit succeeds",
            init_evidence(case),
            likely="the driver is broken, or a GPU keeps it from starting",
            advice=[Advice("Read the driver's messages.", "dmesg | grep -i -e nvrm -e nvidia"), *LOAD_ADVICE],
        )


def _perhaps_not(case: Case) -> Finding | None:
    """Unknown if a text without the driver's answer shows nouveau loaded, or no module for the running kernel."""
    if known(case.node.driver.module_loaded) is True:
        return None
    if known(case.node.driver.nouveau_loaded) is True:
        return unknown(
            NODE, "nouveau is loaded; whether the NVIDIA driver is too, this text does not tell", advice=NOUVEAU.advice
        )
    if known(case.node.driver.dkms) and (reported := load_cause(case.node, of=_NOT_BUILT)) is not None:
        return unknown(NODE, f"perhaps {reported[0].found}", reported[1], advice=reported[0].advice)
    return None


def init_evidence(case: Case) -> Evidence:
    """The result of NVML's initialisation."""
    driver = case.node.driver
    code = known(driver.init_code)
    return Evidence("nvmlInit", f"{code if code is not None else 'not called'}: {known(driver.init_error) or '-'}")


def _caused(case: Case, cause: LoadCause, evidence: Evidence) -> Finding:
    bus = known(pci_gpus(case.node))
    readings = (evidence, *([] if bus is None else [Evidence(ON_BUS, str(len(bus)))]), init_evidence(case))
    return fail(NODE, cause.found, "the NVIDIA kernel module", *readings, likely=cause.likely, advice=cause.advice)


def _unknown_error(case: Case) -> Finding:
    """A failure for NVML's 999: a container whose devices were taken away, or a broken driver."""
    code, text = case.node.driver.init_code, known(case.node.driver.init_error) or "Unknown Error"
    return fail(
        NODE,
        f"the driver's library does not initialise: {text} ({code})",
        "nvmlInit succeeds",
        init_evidence(case),
        likely="in a container: its GPU devices were taken away while it ran, as a systemd daemon-reload on the host "
        "does with cgroup drivers of systemd; the host is fine then. On a host: the driver is broken",
        advice=[
            "In a container: restart it; it has its GPUs again then, until the next daemon-reload.",
            Advice("For good: use the cgroupfs driver, or CDI, for the container engine.", "nvidia-ctk cdi generate"),
            Advice("On the host: see whether it answers there.", "nvidia-smi; dmesg | grep -i nvrm"),
        ],
    )


def _no_library(case: Case, module: bool | None) -> Finding:
    where = "the kernel module is loaded, but " if module else ""
    in_container = known(case.node.host.container) is not None
    return fail(
        NODE,
        f"{where}libnvidia-ml.so.1 was not found",
        "the driver's user library beside its kernel module",
        init_evidence(case),
        likely="the container was started without the NVIDIA runtime or its utility capability"
        if in_container
        else "the driver's user libraries are not installed, or not on the library path",
        advice=[CONTAINER_ADVICE, Advice("On the host: see what the loader finds.", "ldconfig -p | grep nvidia-ml")],
    )


def _nouveau_drives_all(node: Node) -> bool:
    """Whether every NVIDIA GPU on the bus is bound to nouveau, as lspci shows it."""
    return {known(device.driver) for device in known(pci_gpus(node)) or ()} == {"nouveau"}


def _failed_starts(node: Node) -> list[tuple[KernelEvent, MessageMeaning]]:
    """Kernel log lines of GPUs that did not start, those that show a hardware cause first."""
    logged = [event for event in known(node.kernel_log.events) or () if event.kind in ("off-bus", "gsp", "rm")]
    reported = [(event, text) for event in logged if (text := meaning(event)) is not None and text.not_started]
    return sorted(reported, key=lambda item: item[1].bucket != "hardware")


def _not_loaded(case: Case) -> Finding:
    """A failure if the module is not loaded: nouveau has the GPUs, it is not installed, or there is no GPU."""
    if (reported := load_cause(case.node)) is not None:
        return _caused(case, *reported)
    gpus = pci_gpus(case.node)
    on_bus = known(gpus) or ()
    count = Evidence(ON_BUS, "not read" if isinstance(gpus, Missing) else str(len(gpus)))
    evidence = [count, init_evidence(case)]
    expected = "the NVIDIA kernel module"
    advice: tuple[Advice | str, ...] = LOAD_ADVICE
    drivers = {known(device.driver) for device in on_bus}
    if known(case.node.driver.nouveau_loaded) is True or "nouveau" in drivers:
        found, likely, advice = NOUVEAU.found, NOUVEAU.likely, (*NOUVEAU.advice, *LOAD_ADVICE)
    elif on_bus and drivers <= {"vfio-pci"}:
        found = f"the NVIDIA driver is not loaded; all {len(on_bus)} GPUs are handed to virtual machines (vfio-pci)"
        evidence = [count]
        likely = "this is the hypervisor: the GPUs are to be checked inside the guests"
        advice = ("Run gpudoctor inside the virtual machines that hold the GPUs.",)
    elif failed := _failed_starts(case.node):
        event, meant = failed[0]
        named = f" ({event.bus_id})" if event.bus_id else ""
        found, expected = f"the NVIDIA driver is there, and starts no GPU: {meant.words}{named}", "GPUs that start"
        evidence += log_lines(line for line, _ in failed[:3])
        likely = "the driver gives up where no GPU starts: nvidia-smi does not reach it then"
        advice = (meant.advice, *LOAD_ADVICE[:1])
    elif on_bus:
        found = f"the NVIDIA driver is not loaded, with {counted(len(on_bus), 'NVIDIA GPU')} on the PCI bus"
        likely = "the driver is not installed, or was not built for the running kernel"
    elif isinstance(gpus, Missing):
        found = "the NVIDIA driver is not loaded here"
        likely = "this machine has no NVIDIA GPU, or its driver is not loaded"
        advice = (*LOAD_ADVICE, CONTAINER_ADVICE)
    else:
        found = NO_GPU_NODE
        expected = "at least one NVIDIA GPU with its driver"
        likely = "not a GPU machine, or a container or virtual machine that was given no GPU"
        advice = (TRY_ADVICE, CONTAINER_ADVICE, Advice("See what is on the bus.", "lspci -d 10de:"))
    return fail(NODE, found, expected, *evidence, likely=likely, advice=advice)
