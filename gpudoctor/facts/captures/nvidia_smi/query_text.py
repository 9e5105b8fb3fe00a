"""`nvidia-smi -q`: the indented text dump, drivers 390 to 595."""

from __future__ import annotations

from gpudoctor.facts.captures import MOST_GPUS, SourceError, clipped
from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump, smi_dump
from gpudoctor.facts.captures.nvidia_smi.query_gpu import GpuDump
from gpudoctor.facts.captures.nvidia_smi.values import normal_name
from gpudoctor.facts.nvml.error_cost import cost_of, errors_in_dump

_GPU = "GPU "
_DEEPEST = 16


def parse_smi_text(text: str) -> SmiDump:
    """Read the dump. Raise SourceError where it holds no GPU or ends inside one.

    A line is "label : value" or a section's label; four spaces of indent make a level.
    """
    top: dict[str, str] = {}
    gpus: list[GpuDump] = []
    outside: list[str] = []
    path: list[tuple[int, str]] = []  # open sections with their indent
    last = 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.rstrip()
        if not line:
            continue
        indent = len(line) - len(line.lstrip(" "))
        label, value = _split(line)
        if indent == 0:
            path = []
            if line.startswith(_GPU) and value is None and ":" in line and " " not in line[4:]:
                if len(gpus) >= MOST_GPUS:
                    raise SourceError(f"more than {MOST_GPUS} GPUs: not the dump of one machine")
                gpus.append(GpuDump(line[4:]))
                last = number
            elif value is not None and not gpus:
                top[normal_name(label)] = value
            else:
                outside.append(line)
            continue
        if not gpus:
            continue
        last = number
        while path and path[-1][0] >= indent:
            path.pop()
        if len(path) >= _DEEPEST:
            raise SourceError(f"line {number}: nested deeper than {_DEEPEST} levels")
        path.append((indent, normal_name(label)))
        _keep(gpus[-1], [name for _, name in path], value)
    if not gpus and "attached_gpus" not in top:
        raise SourceError("holds no GPU: a line like 'GPU 00000000:18:00.0' is missing")
    if gpus and _cut(gpus[-1]):
        raise SourceError(f"cut off at line {last}: the dump ends inside GPU {gpus[-1].bus_id}")
    return smi_dump(top, gpus, "\n".join(outside))


def _split(line: str) -> tuple[str, str | None]:
    """Label and value; no value for a section. Bus ids have colons too, but none before them."""
    if line.endswith(" :"):
        return line[:-2], ""
    label, colon, value = line.partition(" : ")
    return (label, clipped(value.strip())) if colon else (line, None)


def _keep(gpu: GpuDump, path: list[str], value: str | None) -> None:
    if path[0] == "mig_device":
        if len(path) == 1 or not gpu.mig_devices:
            gpu.mig_devices.append({})
        if value is not None:
            gpu.mig_devices[-1]["/".join(path[1:])] = value
    elif path[0] == "processes" and len(path) > 1:
        name = path[-1]
        # a process starts at its instance id, or at its pid where the driver tells no instances
        if not gpu.processes or name in gpu.processes[-1]:
            gpu.processes.append({})
        if value is not None:
            gpu.processes[-1][name] = value
    else:
        gpu.values["/".join(path)] = value if value is not None else ""


def _cut(gpu: GpuDump) -> bool:
    """A whole section starts with the product's name and has processes at or near its end, but that of a lost GPU."""
    values = gpu.values
    lost = any(cost_of(error.code, error.call) == "gpu" for error in errors_in_dump(values.items()))
    return not lost and (not values or ("product_name" in values and "processes" not in values))
