"""The output of `python -m torch.utils.collect_env`, and of vLLM's collect_env.py, which extends it."""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from gpudoctor.facts.captures import clipped
from gpudoctor.facts.captures.nvidia_smi.query_dump import ANSWERED, SmiDump
from gpudoctor.facts.captures.nvidia_smi.query_gpu import GpuDumps
from gpudoctor.facts.captures.reader import Block, Part, key_value, text_reader
from gpudoctor.facts.captures.text_statements import from_tool
from gpudoctor.facts.model.driver import DRIVER_VERSION
from gpudoctor.facts.model.missing import NOT_READ
from gpudoctor.facts.model.node import Host, Node, Software
from gpudoctor.facts.model.reported import Reported
from gpudoctor.facts.system.environment import parse_env_text

_GPU = re.compile(r"(?:GPU models and configuration: )?GPU (\d{1,4}): (\S.{0,100}?)(?: \(UUID: ([^)\s]{1,80})\))?$")
_NCCL = re.compile(r"\[(?:pip3|conda)\] nvidia-nccl-cu\d+(?:==|\s+)(\d[\w.]{1,20})")
_NONE = ("", "N/A", "None", "Could not collect")
_SOFTWARE = {"PyTorch version": "torch", "CUDA used to build PyTorch": "torch_cuda"}


@text_reader(
    "environment",
    r"(?:export |declare -x )?(?:PATH|HOME|PWD|USER|LD_\w+|CUDA\w*|NCCL_\w+|SLURM_\w+|NVIDIA_\w+|MASTER_\w+)=",
    r"(?:export |declare -x )?[A-Za-z_]\w*=",
)
def read_environment(block: Block) -> Part:
    """`env`, `export -p`."""
    return Part(Node(environment=parse_env_text(block.text)))


@text_reader(
    "collect_env",
    r"Collecting environment information\.\.\.|PyTorch version: \S|Is debug build: |Is CUDA available: "
    r"|CUDA used to build PyTorch: |GPU models and configuration: |Nvidia driver version: |\[pip3\] \S+==|\[conda\] "
    r"|Neuron SDK Version: |vLLM Version: ",
    r"[\w /()\[\].-]{2,40}: ?.{0,200}$|GPU \d{1,4}: \S|\[(?:pip3|conda)\] |Versions of relevant libraries:$"
    r"|(?:CPU|GPU Topology|vLLM Build Flags):$|\s{2,}(?:CPU|Thread|Core|Socket|NUMA|Model|Vendor|BogoMIPS)"
    r"|\s+(?:System Info|PyTorch Info|OS|Python Environment|CUDA / GPU Info|CPU Info|vLLM Info"
    r"|Environment Variables|Versions of relevant libraries)$",
)
def read_collect_env(block: Block) -> Part:
    """GPUs by index and name, driver version, PyTorch and its CUDA. A topology matrix in it is a separate block."""
    gpus = GpuDumps()
    fields: dict[str, str] = {}
    software: dict[str, Any] = {}
    for line in block.lines:
        if gpu := _GPU.match(line):
            gpus.at(int(gpu[1])).values.update(product_name=clipped(gpu[2].strip()), gpu_uuid=gpu[3] or "")
        elif version := _NCCL.match(line):
            software["nccl"] = version[1]
        elif (field := key_value(line)) and field[1] not in _NONE:
            fields.setdefault(field[0], clipped(field[1]))
    software |= {leaf: fields[label] for label, leaf in _SOFTWARE.items() if label in fields}
    if "Python version" in fields:
        software["python"] = fields["Python version"].partition(" ")[0]
    reported: tuple[Reported, ...] = ()
    if fields.get("Is CUDA available") == "False" and "torch_cuda" in software:
        text = f"PyTorch is built with CUDA {software['torch_cuda']}, and finds CUDA not available"
        reported = (from_tool("collect_env", text, "warning"),)
    node = Node(software=Software(**software), host=Host(os_name=fields.get("OS", NOT_READ)))
    version = re.match(DRIVER_VERSION, fields.get("Nvidia driver version", ""))
    if not gpus and version is None:
        return Part(node, reported=reported)
    driver = replace(ANSWERED, library_version=version[0] if version else NOT_READ)
    dump = SmiDump(gpus.by_index(), driver, name="collect_env", indexed=True)
    return Part(node, reported=reported, smi=(dump,))
