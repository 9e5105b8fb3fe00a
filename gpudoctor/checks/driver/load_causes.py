"""Why the driver is not loaded, according to tools and the kernel log, with advice for each cause."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from gpudoctor.checks.core.driver_messages import log_lines
from gpudoctor.checks.core.finding import Advice, Evidence
from gpudoctor.facts.model.driver import LoadFailureCause
from gpudoctor.facts.model.missing import known
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


def load_cause(node: Node, of: Collection[LoadFailureCause] = LOAD_CAUSES) -> tuple[LoadCause, Evidence] | None:
    """The first cause of these that a tool or the kernel log contains, with its line; None if there is none."""
    driver = node.driver
    lines: dict[LoadFailureCause, Evidence] = {}
    for failure in driver.load_failures:
        lines.setdefault(failure.cause, Evidence("loading of the module", failure.text[:300]))
    for event in known(node.kernel_log.host_events) or ():
        if event.kind == "signature-rejected" or event.kind == "other-kernel" or event.kind == "other-driver":
            (line,) = log_lines([event])
            lines.setdefault(event.kind, line)
    if (builds := known(driver.dkms)) is not None and (kernel := known(node.host.kernel)) is not None:
        states = [f"{build.version} for {build.kernel or 'no kernel'}: {build.state}" for build in builds]
        if not any(build.kernel == kernel and build.state.startswith("installed") for build in builds):
            lines.setdefault(
                "build-failed", Evidence(f"dkms status, running kernel {kernel}", "; ".join(states) or "-")
            )
    for cause, entry in LOAD_CAUSES.items():
        if cause in of and (evidence := lines.get(cause)) is not None:
            named = cause == "other-driver" and "nouveau" in evidence.value
            return (NOUVEAU if named else entry), evidence
    return None


def held_by_other_driver(node: Node) -> bool:
    """Whether the NVIDIA module itself logs this; lines of nouveau may be from before it was unloaded."""
    events = known(node.kernel_log.host_events) or ()
    return any(event.kind == "other-driver" and "NVRM: " in event.text for event in events)
