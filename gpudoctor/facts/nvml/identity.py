"""Which board a GPU is, as NVML tells it: names, numbers and places that do not change."""

from __future__ import annotations

from ctypes import byref, c_uint
from pathlib import Path
from typing import Any

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.nvml.client import DriverError, NvmlClient, in_range
from gpudoctor.facts.nvml.labels import ARCHITECTURES, BRANDS, error_word, word
from gpudoctor.facts.system.sysfs import key_values, read_text


def read_identity(client: NvmlClient, root: Path, bus_id: str) -> dict[str, Any]:
    """The leaves of `Gpu` that say which board this is, by name."""
    capability = client.ask("nvmlDeviceGetCudaComputeCapability")
    return {
        "uuid": client.ask("nvmlDeviceGetUUID"),
        "name": client.ask("nvmlDeviceGetName"),
        "brand": word(client.ask("nvmlDeviceGetBrand"), BRANDS),
        "architecture": word(client.ask("nvmlDeviceGetArchitecture"), ARCHITECTURES),
        "compute_capability": capability if isinstance(capability, Missing) else "{}.{}".format(*capability),
        "serial": client.ask("nvmlDeviceGetSerial"),
        "vbios": client.ask("nvmlDeviceGetVbiosVersion"),
        "board_part_number": client.ask("nvmlDeviceGetBoardPartNumber"),
        "module_id": _module_id(client),
        "minor_number": _minor_number(client, root, bus_id),
    }


def _module_id(client: NvmlClient) -> int | Missing:
    """Into a number of our own, by reference: pynvml's default one is shared between threads.

    Given a reference every pynvml answers NVML's return code; before 12.570 it knows no other way.
    """
    call, told = "nvmlDeviceGetModuleId", c_uint()
    code = client.ask(call, byref(told))
    if isinstance(code, Missing):
        return code
    if code:
        error = DriverError(call, int(code), error_word(int(code)))
        client.note(error)
        return error.missing
    number: int | Missing = in_range(told.value, 0, 4096, call)
    return number


def _minor_number(client: NvmlClient, root: Path, bus_id: str) -> int | Missing:
    """From /proc where it can be read, which costs no driver call: "Device Minor: 	 0"."""
    text = read_text(root / "proc/driver/nvidia/gpus" / bus_id / "information")
    minor = "" if isinstance(text, Missing) else key_values(text).get("Device Minor", "")
    return int(minor) if minor.isdecimal() else client.number(0, 4096, "nvmlDeviceGetMinorNumber")
