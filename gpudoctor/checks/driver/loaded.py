"""driver.loaded: is the NVIDIA driver loaded, and does its library initialise? If not, why?"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.driver_messages import MessageMeaning, meaning
from gpudoctor.checks.core.explains import ENDS, PROBES, VIEWS, Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Finding, fail, ok, skip, unknown, unread
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.scope import pci_gpus
from gpudoctor.checks.core.subject import NODE
from gpudoctor.facts.model.driver import HostEvent, KernelEvent, LoadFailureCause
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node


class LoadCause(msgspec.Struct, frozen=True):
    """A cause: what was found, the likely reason, and the steps to take."""

    found: str
    likely: str
    advice: tuple[Advice | str, ...]


# In order of precedence, for texts that contain several
LOAD_CAUSES: dict[LoadFailureCause, LoadCause] = {
    "signature-rejected": LoadCause(
        "the kernel rejects the NVIDIA module's signature: Secure Boot is on, and the key is not enrolled",
        "Secure Boot: the module was signed with a key that the firmware does not know, or not signed at all",
        (
            Advice("See whether Secure Boot is on.", "mokutil --sb-state"),
            Advice("Enrol the key that DKMS signs with, and confirm it at the next boot.", "mokutil --import MOK.der"),
            "Or install the distribution's signed module package, or turn Secure Boot off in the BIOS.",
        ),
    ),
    "other-kernel": LoadCause(
        "the NVIDIA module was built for another kernel than the running one",
        "the kernel was updated, or its headers are not those of the running kernel",
        (
            Advice("Compare the two.", "uname -r; modinfo nvidia | grep vermagic"),
            Advice("Install the headers and build the module anew.", "dkms autoinstall -k $(uname -r)"),
        ),
    ),
    "build-failed": LoadCause(
        "the NVIDIA module is not built for the running kernel (DKMS)",
        "the kernel's headers are not installed, or the module does not compile with this kernel",
        (
            Advice("See what is built.", "dkms status; uname -r"),
            Advice("Install the headers of the running kernel.", "apt install linux-headers-$(uname -r)"),
            Advice(
                "Build the module and read why it fails.",
                "dkms autoinstall; less /var/lib/dkms/nvidia/*/build/make.log",
            ),
        ),
    ),
    "no-container-runtime": LoadCause(
        "the container engine cannot give GPUs to containers: no NVIDIA runtime is set up",
        "nvidia-container-toolkit is not installed on the host, or the engine was not restarted since",
        (
            Advice("On the host: set up the runtime.", "nvidia-ctk runtime configure --runtime=docker"),
            Advice("Restart the engine.", "systemctl restart docker"),
        ),
    ),
    "device-denied": LoadCause(
        "this process may not open the GPUs' device files",
        "the device cgroup or the permissions of /dev/nvidia* keep it out",
        (Advice("Look at who may open them.", "ls -l /dev/nvidia*"), "In a container: restart it."),
    ),
    "other-driver": LoadCause(
        "another driver holds the GPUs; the NVIDIA driver is not loaded",
        "nouveau, or vfio-pci for virtual machines, took the GPUs first",
        (
            Advice("See which driver holds them.", "lspci -k -d 10de:"),
            Advice(
                "Keep nouveau from loading, rebuild the initramfs and reboot.",
                "echo 'blacklist nouveau' > /etc/modprobe.d/blacklist-nouveau.conf; update-initramfs -u; reboot",
            ),
        ),
    ),
    "refused": LoadCause(
        "the NVIDIA module finds no device that it can drive",
        "no GPU is on the bus, a GPU is too old or too new for this driver, or it does not answer",
        (
            Advice("See what is on the bus.", "lspci -nn -d 10de:"),
            Advice("Read what the module said.", "dmesg | grep -i nvrm"),
            "A GPU newer than Ada needs the open kernel modules; one older than Turing needs the closed ones.",
        ),
    ),
}
NOUVEAU = LoadCause(
    "nouveau drives the GPUs; the NVIDIA driver is not loaded",
    "the distribution's open driver took the GPUs first; CUDA does not run on it",
    LOAD_CAUSES["other-driver"].advice[1:],
)


def load_cause(node: Node) -> tuple[LoadCause, Evidence] | None:
    """The first cause that a tool or the kernel log contains, with its line; None if there is none."""
    driver = node.driver
    lines: dict[LoadFailureCause, Evidence] = {}
    for failure in driver.load_failures:
        lines.setdefault(failure.cause, Evidence("loading of the module", failure.text[:300]))
    for event in known(node.kernel_log.host_events) or ():
        if (cause := _cause_of(event)) is not None:
            lines.setdefault(cause, Evidence("kernel log", event.text[:300]))
    if (builds := known(driver.dkms)) is not None and (kernel := known(node.host.kernel)) is not None:
        states = [f"{build.version} for {build.kernel or 'no kernel'}: {build.state}" for build in builds]
        if not any(build.kernel == kernel and build.state.startswith("installed") for build in builds):
            lines.setdefault(
                "build-failed", Evidence(f"dkms status, running kernel {kernel}", "; ".join(states) or "-")
            )
    for cause, told in LOAD_CAUSES.items():
        if (evidence := lines.get(cause)) is not None:
            named = cause == "other-driver" and "nouveau" in evidence.value
            return (NOUVEAU if named else told), evidence
    return None


def held_by_other_driver(node: Node) -> bool:
    """Whether the NVIDIA module itself logs this; lines of nouveau may be from before it was unloaded."""
    events = known(node.kernel_log.host_events) or ()
    return any(event.kind == "other-driver" and "NVRM: " in event.text for event in events)


def _cause_of(event: HostEvent) -> LoadFailureCause | None:
    if event.kind == "signature-rejected" or event.kind == "other-kernel" or event.kind == "other-driver":
        return event.kind
    return None


# nvmlReturn_t of nvmlInit; source: nvml.h
INIT_OK = 0
INIT_NO_PERMISSION = 4
INIT_NOT_LOADED = 9
INIT_NO_LIBRARY = 12
INIT_VERSION_MISMATCH = 18
INIT_UNKNOWN = 999

CONTAINER_ADVICE = Advice(
    "In a container: start it with the GPUs and with the driver's utility libraries.",
    "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",
)
LOAD_ADVICE = (
    Advice("Load the driver and read what the kernel says if it refuses.", "modprobe nvidia; dmesg | grep -i nvrm"),
    "Not built for this kernel: reinstall the driver package (DKMS), or enrol its key where Secure Boot is on.",
)


@check(
    "driver.loaded",
    title="The NVIDIA driver is loaded and its library initialises",
    needs_gpu=False,
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
        told = load_cause(case.node) if driver.load_failures or held_by_other_driver(case.node) else None
        yield _caused(case, *told) if told else unread(NODE, "the driver's initialisation", code)
    elif code == INIT_UNKNOWN:
        yield _unknown_error(case)
    else:
        words = known(driver.init_error) or "an error"
        yield fail(
            NODE,
            f"the driver's library does not initialise: {words} ({code})",
            "nvmlInit succeeds",
            init_evidence(case),
            likely="the driver is broken, or a GPU keeps it from starting",
            advice=[Advice("Read the driver's messages.", "dmesg | grep -i -e nvrm -e nvidia"), *LOAD_ADVICE],
        )


def init_evidence(case: Case) -> Evidence:
    """The result of NVML's initialisation."""
    driver = case.node.driver
    code = known(driver.init_code)
    return Evidence("nvmlInit", f"{code if code is not None else 'not called'}: {known(driver.init_error) or '-'}")


def _caused(case: Case, cause: LoadCause, evidence: Evidence) -> Finding:
    bus = known(pci_gpus(case.node))
    on_bus = () if bus is None else (Evidence("NVIDIA GPUs on the PCI bus", str(len(bus))),)
    evidences = (evidence, *on_bus, init_evidence(case))
    return fail(NODE, cause.found, "the NVIDIA kernel module", *evidences, likely=cause.likely, advice=cause.advice)


def _unknown_error(case: Case) -> Finding:
    """A failure for NVML's 999: a container whose devices were taken away, or a broken driver."""
    code, words = case.node.driver.init_code, known(case.node.driver.init_error) or "Unknown Error"
    return fail(
        NODE,
        f"the driver's library does not initialise: {words} ({code})",
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
    told = [(event, words) for event in logged if (words := meaning(event)) is not None and words.not_started]
    return sorted(told, key=lambda item: item[1].bucket != "hardware")


def _not_loaded(case: Case) -> Finding:
    """A failure if the module is not loaded: nouveau has the GPUs, it is not installed, or there is no GPU."""
    if (told := load_cause(case.node)) is not None:
        return _caused(case, *told)
    gpus = pci_gpus(case.node)
    on_bus = known(gpus) or ()
    count = Evidence("NVIDIA GPUs on the PCI bus", "not read" if isinstance(gpus, Missing) else str(len(gpus)))
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
        evidence += [Evidence("kernel log", line.text[:300]) for line, _ in failed[:3]]
        likely = "the driver gives up where no GPU starts: nvidia-smi does not reach it then"
        advice = (meant.advice, *LOAD_ADVICE[:1])
    elif on_bus:
        plural = "s" * (len(on_bus) > 1)
        found = f"the NVIDIA driver is not loaded, with {len(on_bus)} NVIDIA GPU{plural} on the PCI bus"
        likely = "the driver is not installed, or was not built for the running kernel"
    elif isinstance(gpus, Missing):
        found = "the NVIDIA driver is not loaded here"
        likely = "this machine has no NVIDIA GPU, or its driver is not loaded"
        advice = (*LOAD_ADVICE, CONTAINER_ADVICE)
    else:
        found = "there is no NVIDIA GPU and no NVIDIA driver on this machine"
        expected = "at least one NVIDIA GPU with its driver"
        likely = "not a GPU machine, or a container or virtual machine that was given no GPU"
        advice = (CONTAINER_ADVICE, Advice("See what is on the bus.", "lspci -d 10de:"))
    return fail(NODE, found, expected, *evidence, likely=likely, advice=advice)
