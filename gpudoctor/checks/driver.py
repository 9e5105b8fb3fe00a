"""Is the NVIDIA driver there, of one piece, and does it answer?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.case import Case, Limit
from gpudoctor.checks.finding import (
    NODE,
    Advice,
    Evidence,
    Expected,
    Finding,
    Found,
    Subject,
    fail,
    of_gpu,
    ok,
    skip,
    unknown,
    unread,
    warn,
)
from gpudoctor.checks.registry import check
from gpudoctor.facts.missing import Missing, known
from gpudoctor.facts.node import Node, PciDevice

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


@check("driver.loaded", title="The NVIDIA driver is loaded and its library initialises", needs_gpu=False)
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
    "driver.version-match", title="The driver's kernel module and user library are the same version", needs_gpu=False
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


_HANGS = "the driver or the GPU's own processor (GSP) hangs; every tool that asks will hang with it"
_CRASHES = "the driver's library crashed; every program that makes this call will crash with it"
_STARTS_THE_GPU = ("nvmlInit", "nvmlDeviceGetHandle")


@check(
    "driver.responsive",
    title="Every driver call answered in time",
    needs_gpu=False,
    limits={
        "init_s": Limit(10, "s", "8 GPUs without persistence mode take 2 to 10 s to start; more is a sick driver"),
        "call_s": Limit(5, "s", "calls of more than 5 s come before a hang (field reports)"),
        "hung_start_s": Limit(30, "s", "a driver that takes longer to start is hung (AMD Primus: 30 to 60 s)"),
    },
)
def responsive(case: Case) -> Iterator[Finding]:
    """Fail for each call that did not return; warn where the driver is slow."""
    driver = case.node.driver
    unanswered = (*driver.unanswered, *case.measurements.unanswered)
    for hung in unanswered:
        where = f" on GPU {hung.gpu}" if hung.gpu is not None else ""
        text = f"{hung.call}{where} {hung.reason} within {hung.waited_s:g} s" if hung.hangs else hung.words
        start_s = case.limit("driver.responsive", "hung_start_s")
        if hung.hangs and hung.call.startswith(_STARTS_THE_GPU) and hung.waited_s < start_s:
            # without persistence mode it wakes the GPU, which healthy nodes may take long for
            yield unknown(
                _subject(case, hung.gpu),
                f"{text}; a driver that has to wake its GPUs may need more",
                Evidence(hung.call, f"{hung.reason} ({hung.waited_s:g} s)"),
                advice=[Advice("Give it time.", f"gpudoctor check driver --level quick --deadline {start_s + 10:g}")],
            )
            continue
        if "SIGKILL" in hung.reason:
            # so ends the kernel who is in a driver's module that goes wrong, but also who takes too much memory
            yield unknown(
                _subject(case, hung.gpu),
                f"{text}: the driver's kernel module went wrong, or memory ran out",
                Evidence(hung.call, f"{hung.reason} ({hung.waited_s:g} s)"),
                advice=[Advice("Look which it was, and check again.", "dmesg | grep -iE 'oops|bug:|killed process'")],
            )
            continue
        yield fail(
            _subject(case, hung.gpu),
            Found(text, hung.waited_s, "s"),
            Expected("an answer before the deadline", "<=", hung.waited_s, "s", "deadline of the reader"),
            Evidence(hung.call, f"{hung.reason} ({hung.waited_s:g} s)"),
            likely=_HANGS if hung.hangs else _CRASHES,
            advice=[
                "Drain the node; do not start more tools that call the driver.",
                Advice(
                    "Look for Xid 119, 120 or 79 and for processes in state D.",
                    "dmesg | grep -i xid; ps -eo pid,stat,comm | grep ' D'",
                ),
                "Reset the GPU if it lets you, else power-cycle the node: a plain reboot may hang too.",
            ],
        )
    slow = tuple(_slow(case))
    yield from slow
    if unanswered or slow:
        return
    calls = driver.calls
    if isinstance(calls, Missing):
        yield unread(NODE, "driver calls", calls)
        return
    if calls == 0:
        yield skip(NODE, "no driver call was made: there is no driver to ask")
        return
    slowest = known(driver.slowest_call_s)
    text = f"{calls} calls answered" + (f", the slowest in {slowest:.3g} s" if slowest is not None else "")
    yield ok(NODE, Found(text, slowest, "s" if slowest is not None else None))


def _slow(case: Case) -> Iterator[Finding]:
    driver = case.node.driver
    call = known(driver.slowest_call) or "a driver call"
    for name, what, took in (
        ("init_s", "starting the driver's library", known(driver.init_s)),
        ("call_s", call, known(driver.slowest_call_s)),
    ):
        limit = case.limit("driver.responsive", name)
        # the slowest call is often nvmlInit itself: said once, against its own limit
        if took is None or took <= limit or (name == "call_s" and "init" in call.lower()):
            continue
        yield warn(
            NODE,
            Found(f"{what} took {took:.3g} s", took, "s"),
            Expected(f"at most {limit:g} s", "<=", limit, "s", case.limit_source("driver.responsive", name)),
            Evidence(what, f"{took:.3g} s"),
            likely="a GPU is slow to wake or its processor (GSP) is in trouble",
            advice=[
                Advice("Keep the driver awake, so that its start is paid once.", "nvidia-smi -pm 1"),
                Advice("Look for GSP timeouts.", "dmesg | grep -i -e xid -e gsp"),
                "Run gpudoctor check driver again: if it stays slow, drain the node before it hangs.",
            ],
        )


def _subject(case: Case, index: int | None) -> Subject:
    if index is None:
        return NODE
    gpu = next((g for g in case.node.gpus if g.index == index), None)
    return of_gpu(gpu) if gpu else Subject(kind="gpu", gpu=index)
