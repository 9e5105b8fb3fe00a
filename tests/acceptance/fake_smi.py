"""nvidia-smi of a simulated node: shows what the fake driver plays, and applies the settings it is given.

Run as a program. FAKE_SMI_XML: the dump is this file. FAKE_SMI_LIE=tag=text;...: the first GPU's dump has this text in
that tag. FAKE_SMI_LOG: each setting is appended there. FAKE_SMI_DENY: settings are refused, as without root.
FAKE_SMI_CANNOT: they are not supported, with exit code 0. FAKE_SMI_STRAY: it leaves a process behind.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import escape
from pathlib import Path

from msgspec.structs import replace

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node, from_json, to_json
from gpudoctor.testing.table_node import answers_of

_WORDS = {True: "Enabled", False: "Disabled"}


def main(argv: list[str]) -> int:
    folder = Path(os.environ["GPUDOCTOR_FAKE_DRIVER"])
    if os.environ.get("FAKE_SMI_STRAY"):
        subprocess.Popen(["sleep", "300"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    if "-q" in argv and "FAKE_SMI_XML" in os.environ:
        sys.stdout.write(Path(os.environ["FAKE_SMI_XML"]).read_text(encoding="utf-8"))
    elif "-q" in argv:
        sys.stdout.write(dump(from_json((folder / "node.json").read_bytes()), os.environ.get("FAKE_SMI_LIE")))
    if "nvlink" in argv:
        sys.stdout.write(nvlink(from_json((folder / "node.json").read_bytes())))
    if not {"-pl", "-lgc", "-rgc"} & set(argv):
        return 0
    if os.environ.get("FAKE_SMI_DENY"):
        sys.stdout.write("Changing settings is not permitted: Insufficient Permissions\nTerminating early.\n")
        return 4
    if os.environ.get("FAKE_SMI_CANNOT"):
        sys.stdout.write("Changing power management limit is not supported for GPU: 00000000:CB:00.0.\n")
        sys.stdout.write("Treating as warning and moving on.\nAll done.\n")
        return 0
    # the fake driver disappears with its program, and its settings with it
    if "-pl" in argv and folder.exists():
        set_power(folder, argv[argv.index("-i") + 1], float(argv[-1]))
    with Path(os.environ["FAKE_SMI_LOG"]).open("a", encoding="utf-8") as log:
        log.write(" ".join(argv) + "\n")
    return 0


def nvlink(node: Node) -> str:
    """The output of `nvlink -s`."""
    lines = []
    for gpu in node.gpus:
        lines.append(f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})")
        for link in () if isinstance(gpu.nvlinks, Missing) else gpu.nvlinks:
            word = f"{link.speed_gb_s} GB/s" if link.state == "active" else f"<{link.state}>"
            lines.append(f"\t Link {link.link}: {word}")
    return "\n".join(lines) + "\n"


def set_power(folder: Path, bus_id: str, watts: float) -> None:
    """From now on the fake driver answers with this limit."""
    node = from_json((folder / "node.json").read_bytes())
    gpus = tuple(
        replace(gpu, power=replace(gpu.power, limit_w=watts, requested_limit_w=watts)) if gpu.bus_id == bus_id else gpu
        for gpu in node.gpus
    )
    node = replace(node, gpus=gpus)
    for name, data in (("node.json", to_json(node)), ("answers", answers_of(node))):
        (folder / f"{name}.new").write_bytes(data)
        (folder / f"{name}.new").replace(folder / name)


def dump(node: Node, lie: str | None = None) -> str:
    """The XML of `-q -x`, in the schema's words; `lie`, as tag=text;..., changes these tags of the first GPU."""
    gpus = [_gpu(gpu) for gpu in node.gpus]
    for told in lie.split(";") if lie else ():
        tag, _, text = told.partition("=")
        gpus[0] = re.sub(rf"<{tag}>.*?</{tag}>", f"<{tag}>{text}</{tag}>", gpus[0])
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
        f"{_tag('driver_version', node.driver.library_version)}{_tag('cuda_version', node.driver.cuda_version)}"
        f"{_tag('attached_gpus', len(node.gpus))}{''.join(gpus)}</nvidia_smi_log>\n"
    )


def _gpu(gpu: Gpu) -> str:
    link, power = gpu.pcie, gpu.power
    generation = _tag("max_link_gen", link.generation_max) + _tag("current_link_gen", link.generation)
    width = _tag("max_link_width", link.width_max, "x") + _tag("current_link_width", link.width, "x")
    limits = (
        _tag("current_power_limit", power.limit_w, " W")
        + _tag("requested_power_limit", power.requested_limit_w, " W")
        + _tag("default_power_limit", power.default_limit_w, " W")
        + _tag("average_power_draw", power.draw_w, " W")
    )
    listed = () if isinstance(gpu.processes, Missing) else gpu.processes
    processes = "".join(
        f"<process_info>{_tag('pid', each.pid)}{_tag('process_name', each.name)}</process_info>" for each in listed
    )
    return (
        f'<gpu id="0000{gpu.bus_id.upper()}">'
        + _tag("product_name", gpu.name)
        + _tag("serial", gpu.serial)
        + _tag("uuid", gpu.uuid)
        + _tag("vbios_version", gpu.vbios)
        + _tag("persistence_mode", gpu.settings.persistence)
        + f"<ecc_mode>{_tag('current_ecc', gpu.ecc.enabled)}</ecc_mode>"
        + f"<fb_memory_usage>{_tag('total', gpu.memory_total_mib, ' MiB')}</fb_memory_usage>"
        + f"<temperature>{_tag('gpu_temp', gpu.thermal.gpu_c, ' C')}</temperature>"
        + f"<pci><pci_gpu_link_info><pcie_gen>{generation}</pcie_gen><link_widths>{width}</link_widths>"
        + f"</pci_gpu_link_info></pci><gpu_power_readings>{limits}</gpu_power_readings>"
        + f"<processes>{processes}</processes></gpu>\n"
    )


def _tag(name: str, value: object, unit: str = "") -> str:
    text = (
        "N/A"
        if isinstance(value, Missing)
        else f"{_WORDS.get(value, value) if isinstance(value, bool) else value}{unit}"
    )
    return f"<{name}>{escape(text, quote=False)}</{name}>"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
