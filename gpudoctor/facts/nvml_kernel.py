"""Is the NVIDIA kernel module there? Told from files alone, before anything touches the driver."""

from __future__ import annotations

import re
from pathlib import Path

from gpudoctor.facts.missing import Missing
from gpudoctor.facts.node import Driver

NOT_LOADED = 9


def read_kernel_module(root: Path) -> Driver:
    """`module_loaded`, `module_version` and `nouveau_loaded`; code 9 where the module is not there.

    As root and without the module, nvmlInit looks for nvidia-modprobe and makes device nodes, so
    it must not be called then. WSL has no module but /dev/dxg, and a sandbox that shows no
    /sys/module at all (gVisor) may have /dev/nvidiactl: there the library is asked, and whether
    the module is loaded stays Missing.
    """
    folder = root / "sys/module/nvidia"
    state = _text(folder / "initstate")
    proc = _text(root / "proc/driver/nvidia/version")
    version: str | Missing = _text(folder / "version") or _proc_version(proc) or Missing("no module version in /sys")
    nouveau = _nouveau(root)
    if state == "live" or (state is None and (folder.is_dir() or proc)):
        return Driver(module_loaded=True, module_version=version, nouveau_loaded=nouveau)
    if state is None and (root / "dev/dxg").exists():
        missing = Missing("WSL: the driver runs in Windows")
        return Driver(module_loaded=missing, module_version=missing, nouveau_loaded=nouveau)
    if state is None and not (root / "sys/module").is_dir() and (root / "dev/nvidiactl").exists():
        missing = Missing("this sandbox shows no /sys/module")
        return Driver(module_loaded=missing, module_version=missing, nouveau_loaded=nouveau)
    why = f"the kernel module is {state}" if state else "the kernel module nvidia is not loaded"
    if nouveau is True:
        why += "; nouveau is loaded instead"
    return Driver(
        module_loaded=False,
        module_version=Missing("the kernel module is not loaded"),
        nouveau_loaded=nouveau,
        init_code=NOT_LOADED,
        init_error=why,
        library_version=Missing("not asked: the kernel module is not loaded"),
        cuda_version=Missing("not asked: the kernel module is not loaded"),
        device_count=Missing("not asked: the kernel module is not loaded"),
        calls=0,
    )


def _nouveau(root: Path) -> bool | Missing:
    modules = _text(root / "proc/modules")
    if modules is None:
        return Missing("/proc/modules cannot be read")
    return any(line.startswith("nouveau ") for line in modules.splitlines())


def _proc_version(text: str | None) -> str | None:
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
    found = re.search(r"Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text or "")
    return found.group(1) if found else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
