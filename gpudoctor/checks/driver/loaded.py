"""Is the NVIDIA driver there, and of one piece?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.explains import PROBES, VIEWS, Explains
from gpudoctor.checks.core.finding import (
    NODE,
    Advice,
    Evidence,
    Expected,
    Finding,
    fail,
    ok,
    skip,
    unknown,
    unread,
)
from gpudoctor.checks.core.registry import check
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, PciDevice

# nvmlReturn_t as nvmlInit gives it; source: nvml.h
INIT_OK = 0
INIT_NO_PERMISSION = 4
INIT_NOT_LOADED = 9
INIT_NO_LIBRARY = 12
INIT_VERSION_MISMATCH = 18

CONTAINER_ADVICE = Advice(
    "In a container: start it with the GPUs and with the driver's utility libraries.",
    "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",
)
LOAD_ADVICE = (
    Advice("Load the driver and read what the kernel says if it refuses.", "modprobe nvidia; dmesg | grep -i nvrm"),
    "Not built for this kernel: reinstall the driver package (DKMS), or enrol its key where Secure Boot is on.",
)


def pci_gpus(node: Node) -> tuple[PciDevice, ...] | Missing:
    """NVIDIA functions on the bus that are GPUs: PCI classes 0x0300 (VGA) and 0x0302 (3D)."""
    devices = node.pci.nvidia_devices
    if isinstance(devices, Missing):
        return devices
    return tuple(d for d in devices if d.pci_class.lower().removeprefix("0x")[:4] in ("0300", "0302"))


@check(
    "driver.loaded",
    title="The NVIDIA driver is loaded and its library initialises",
    needs_gpu=False,
    explains=(
        Explains(("driver.*", "gpu.count", "gpu.lost", "env.cuda-visible-devices", *VIEWS, *PROBES), anywhere=True),
        Explains(("gpu.*", "nvlink.*"), anywhere=True, gaps=True),
    ),
)
def loaded(case: Case) -> Iterator[Finding]:
    """Pass only where NVML's own initialisation succeeded."""
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
        yield unknown(NODE, "no permission to initialise the driver's library", _init(case), advice=[advice])
    elif code == INIT_NO_LIBRARY:
        yield _no_library(case, module)
    elif module is False or code == INIT_NOT_LOADED:
        yield _not_loaded(case)
    elif isinstance(code, Missing):
        yield unread(NODE, "the driver's initialisation", code)
    else:
        words = known(driver.init_error) or "an error"
        yield fail(
            NODE,
            f"the driver's library does not initialise: {words} ({code})",
            "nvmlInit succeeds",
            _init(case),
            likely="the driver is broken, or a GPU keeps it from starting",
            advice=[Advice("Read the driver's messages.", "dmesg | grep -i -e nvrm -e nvidia"), *LOAD_ADVICE],
        )


def _init(case: Case) -> Evidence:
    driver = case.node.driver
    code = known(driver.init_code)
    return Evidence("nvmlInit", f"{code if code is not None else 'not called'}: {known(driver.init_error) or '-'}")


def _no_library(case: Case, module: bool | None) -> Finding:
    where = "the kernel module is loaded, but " if module else ""
    in_container = known(case.node.host.container) is not None
    return fail(
        NODE,
        f"{where}libnvidia-ml.so.1 was not found",
        "the driver's user library beside its kernel module",
        _init(case),
        likely="the container was started without the NVIDIA runtime or its utility capability"
        if in_container
        else "the driver's user libraries are not installed, or not on the library path",
        advice=[CONTAINER_ADVICE, Advice("On the host: see what the loader finds.", "ldconfig -p | grep nvidia-ml")],
    )


def _not_loaded(case: Case) -> Finding:
    """The module is not there: by nouveau, by neglect, or because there is no GPU at all."""
    driver = case.node.driver
    gpus = pci_gpus(case.node)
    on_bus = () if isinstance(gpus, Missing) else gpus
    bus = Evidence("NVIDIA GPUs on the PCI bus", "not read" if isinstance(gpus, Missing) else str(len(gpus)))
    drivers = {known(d.driver) for d in on_bus}
    if known(driver.nouveau_loaded) is True or "nouveau" in drivers:
        return fail(
            NODE,
            "nouveau drives the GPUs; the NVIDIA driver is not loaded",
            "the NVIDIA kernel module",
            bus,
            _init(case),
            likely="the distribution's open driver took the GPUs first; CUDA does not run on it",
            advice=[
                Advice(
                    "Keep nouveau from loading, rebuild the initramfs and reboot.",
                    "echo 'blacklist nouveau' > /etc/modprobe.d/blacklist-nouveau.conf; update-initramfs -u; reboot",
                ),
                *LOAD_ADVICE,
            ],
        )
    if on_bus and drivers <= {"vfio-pci"}:
        return fail(
            NODE,
            f"the NVIDIA driver is not loaded; all {len(on_bus)} GPUs are handed to virtual machines (vfio-pci)",
            "the NVIDIA kernel module",
            bus,
            likely="this is the hypervisor: the GPUs are to be checked inside the guests",
            advice=["Run gpudoctor inside the virtual machines that hold the GPUs."],
        )
    if on_bus:
        return fail(
            NODE,
            f"the NVIDIA driver is not loaded, with {len(on_bus)} NVIDIA GPU{'s' * (len(on_bus) > 1)} on the PCI bus",
            "the NVIDIA kernel module",
            bus,
            _init(case),
            likely="the driver is not installed, or was not built for the running kernel",
            advice=LOAD_ADVICE,
        )
    if isinstance(gpus, Missing):
        return fail(
            NODE,
            "the NVIDIA driver is not loaded here",
            "the NVIDIA kernel module",
            bus,
            _init(case),
            likely="this machine has no NVIDIA GPU, or its driver is not loaded",
            advice=[*LOAD_ADVICE, CONTAINER_ADVICE],
        )
    return fail(
        NODE,
        "there is no NVIDIA GPU and no NVIDIA driver on this machine",
        "at least one NVIDIA GPU with its driver",
        bus,
        _init(case),
        likely="not a GPU machine, or a container or virtual machine that was given no GPU",
        advice=[CONTAINER_ADVICE, Advice("See what is on the bus.", "lspci -d 10de:")],
    )


@check(
    "driver.version-match",
    title="The driver's kernel module and user library are the same version",
    needs_gpu=False,
    explains=(
        Explains(("driver.*", "gpu.count", "gpu.lost", *VIEWS), anywhere=True),
        Explains(("gpu.*",), anywhere=True, gaps=True),
    ),
)
def version_match(case: Case) -> Iterator[Finding]:
    """Fail on NVML's own refusal (18), or where the two versions differ."""
    driver = case.node.driver
    module, library = known(driver.module_version), known(driver.library_version)
    evidence = (
        Evidence("kernel module", module or "not read"),
        Evidence("user library", library or "not read"),
        _init(case),
    )
    if driver.init_code == INIT_VERSION_MISMATCH or (module and library and module.strip() != library.strip()):
        found = f"kernel module {module or 'of another version'}, user library {library or 'of another version'}"
        yield fail(
            NODE,
            found,
            Expected(f"both {module}" if module else "the same version", "==", module, source="the loaded module"),
            *evidence,
            likely="the driver package was updated while the old kernel module was loaded",
            advice=[
                "Drain the node: no new CUDA program can start here.",
                Advice("Reboot; or end everything that uses the GPUs and reload the module.", "reboot"),
                "In a container: the library in the image hides the host's; remove it from the image.",
            ],
        )
    elif module and library:
        yield ok(NODE, f"both {module}", None, *evidence)
    elif isinstance(driver.module_version, Missing):
        yield unread(NODE, "kernel module version", driver.module_version)
    elif isinstance(driver.library_version, Missing):
        yield unread(NODE, "user library version", driver.library_version)
