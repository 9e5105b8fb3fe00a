"""Whether the NVIDIA kernel module is loaded, from files alone, before anything calls the driver."""

from __future__ import annotations

import os
import re
import stat

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Driver
from gpudoctor.facts.system.sysfs import AnyPath, read_text

NOT_LOADED = 9
_LIBRARY = "libnvidia-ml.so.1"
# where distributions install the driver's library
_OWN_FOLDERS = (
    f"/usr/lib/{os.uname().machine}-linux-gnu/",
    "/usr/lib64/",
    "/usr/lib/",
    f"/lib/{os.uname().machine}-linux-gnu/",
    "/lib64/",
    "/lib/",
)


def read_kernel_module(root: AnyPath) -> Driver:
    """`module_loaded`, `module_version` and `nouveau_loaded`; `init_code` 9 if the module is not loaded.

    As root and without the module, nvmlInit runs nvidia-modprobe and creates device nodes, so
    it must not be called then. WSL has no module but /dev/dxg, a sandbox that shows no /sys/module
    at all (gVisor) may have /dev/nvidiactl, and NVIDIA's nvml-mock, Tegra and some container
    runtimes have a library that works without /sys/module/nvidia: in these cases the library is called,
    and `module_loaded` is Missing.
    """
    folder = root / "sys/module/nvidia"
    state = known(read_text(folder / "initstate"))
    proc = known(read_text(root / "proc/driver/nvidia/version"))
    version: str | Missing = (
        known(read_text(folder / "version")) or _proc_version(proc) or Missing("no module version in /sys")
    )
    nouveau = _nouveau(root)
    if state == "live" or (state is None and (os.path.isdir(folder) or proc)):
        return Driver(module_loaded=True, module_version=version, nouveau_loaded=nouveau)
    unknown = _why_unknown(root) if state is None else None
    if unknown is not None:
        return Driver(module_loaded=unknown, module_version=unknown, nouveau_loaded=nouveau)
    not_called = Missing("not asked: the kernel module is not loaded", "not_asked")
    why = f"the kernel module is {state}" if state else "the kernel module nvidia is not loaded"
    if nouveau is True:
        why += "; nouveau is loaded instead"
    return Driver(
        module_loaded=False,
        module_version=Missing("the kernel module is not loaded"),
        nouveau_loaded=nouveau,
        init_code=NOT_LOADED,
        init_error=why,
        library_version=not_called,
        cuda_version=not_called,
        device_count=not_called,
        calls=0,
    )


def _why_unknown(root: AnyPath) -> Missing | None:
    """Why /sys cannot show whether the module is loaded, so that the library is called; None if it can."""
    if os.path.exists(root / "dev/dxg"):
        return Missing("WSL: the driver runs in Windows")
    if not os.path.isdir(root / "sys/module") and os.path.exists(root / "dev/nvidiactl"):
        return Missing("this sandbox shows no /sys/module")
    if _may_be_asked(root):
        return Missing("there is no /sys/module/nvidia; the driver's library was asked")
    return None


def _may_be_asked(root: AnyPath) -> bool:
    """Whether the library that would be loaded may know a driver that /sys does not show, without side effects.

    A library outside of the distribution's folders was put there for this environment. With a device node, or for a
    user who cannot create one, nvmlInit has no side effects unless it can run nvidia-modprobe.
    """
    library = _library(root)
    if library is None or _loads_modules(root):
        return False
    is_own = library.startswith(_OWN_FOLDERS)
    return not is_own or os.path.exists(root / "dev/nvidiactl") or os.geteuid() != 0


def _loads_modules(root: AnyPath) -> bool:
    """Whether nvmlInit, called by this user, would find an nvidia-modprobe that can load the module."""
    try:
        mode = os.stat(root / "usr/bin/nvidia-modprobe").st_mode
    except OSError:
        return False
    return os.geteuid() == 0 or bool(mode & stat.S_ISUID)


def _library(root: AnyPath) -> str | None:
    """Where the dynamic loader (ld.so(8)) would find libnvidia-ml.so.1, without the root; None if nowhere."""
    named = [f"{folder}/{_LIBRARY}" for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    try:
        with open(root / "etc/ld.so.cache", "rb") as file:
            cache = file.read()
    except OSError:
        cache = b""
    cached: list[str] = [found.decode() for found in re.findall(rb"/[!-~]*/libnvidia-ml\.so\.1(?=\0)", cache)]
    usual = [f"{folder}{_LIBRARY}" for folder in _OWN_FOLDERS]
    for path in (*named, *cached, *usual):
        if path.startswith("/") and "i386" not in path and os.path.isfile(root / path.lstrip("/")):
            return os.path.normpath(path)
    return None


def _nouveau(root: AnyPath) -> bool | Missing:
    modules = known(read_text(root / "proc/modules"))
    if modules is None:
        return Missing("/proc/modules cannot be read")
    return any(line.startswith("nouveau ") for line in modules.splitlines())


def _proc_version(text: str | None) -> str | None:
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
    found = re.search(r"Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text or "")
    return found.group(1) if found else None
