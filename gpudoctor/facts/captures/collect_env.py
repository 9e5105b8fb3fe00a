"""The output of `python -m torch.utils.collect_env`, and of vLLM's collect_env.py, which extends it."""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from gpudoctor.facts.captures import clipped
from gpudoctor.facts.captures.nvidia_smi.query_dump import ANSWERED, SmiDump
from gpudoctor.facts.captures.reader import Block, Part, TextReader
from gpudoctor.facts.model.driver import DRIVER_VERSION
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import NOT_READ
from gpudoctor.facts.model.node import Host, Node, Software
from gpudoctor.facts.system.environment import parse_env_text

_BEGIN = re.compile(
    r"Collecting environment information\.\.\.|PyTorch version: \S|Is debug build: |Is CUDA available: "
    r"|CUDA used to build PyTorch: |GPU models and configuration: |Nvidia driver version: |\[pip3\] \S+==|\[conda\] "
    r"|Neuron SDK Version: |vLLM Version: "
)
_MORE = re.compile(
    r"[\w /()\[\].-]{2,40}: ?.{0,200}$|GPU \d{1,4}: \S|\[(?:pip3|conda)\] |Versions of relevant libraries:$"
    r"|(?:CPU|GPU Topology|vLLM Build Flags):$|\s{2,}(?:CPU|Thread|Core|Socket|NUMA|Model|Vendor|BogoMIPS)"
    r"|\s+(?:System Info|PyTorch Info|OS|Python Environment|CUDA / GPU Info|CPU Info|vLLM Info"
    r"|Environment Variables|Versions of relevant libraries)$"
)
_GPU = re.compile(r"(?:GPU models and configuration: )?GPU (\d{1,4}): (\S.{0,100}?)(?: \(UUID: ([^)\s]{1,80})\))?$")
_FIELD = re.compile(r"([\w /()-]{2,40}): (\S.{0,300})$")
_NCCL = re.compile(r"\[(?:pip3|conda)\] nvidia-nccl-cu\d+(?:==|\s+)(\d[\w.]{1,20})")
_NONE = ("N/A", "None", "Could not collect")


def _read(block: Block) -> Part:
    """GPUs by index and name, driver version, PyTorch and its CUDA. A topology matrix in it is a separate block."""
    gpus: dict[int, Gpu] = {}
    fields: dict[str, str] = {}
    nccl = NOT_READ
    made: dict[str, Any] = {}
    for line in block.lines:
        if gpu := _GPU.match(line):
            index = int(gpu[1])
            name = clipped(gpu[2].strip())
            gpus.setdefault(index, Gpu(index, f"unknown-{index}", name=name, uuid=gpu[3] or NOT_READ))
        elif field := _FIELD.match(line):
            if field[2] not in _NONE:
                fields.setdefault(field[1].strip(), clipped(field[2].strip()))
        elif version := _NCCL.match(line):
            made["nccl"] = version[1]
    for name, label in (("torch", "PyTorch version"), ("torch_cuda", "CUDA used to build PyTorch")):
        if label in fields:
            made[name] = fields[label]
    if "Python version" in fields:
        made["python"] = fields["Python version"].partition(" ")[0]
    version_of_driver = re.match(DRIVER_VERSION, fields.get("Nvidia driver version", ""))
    node = Node(software=Software(**{"nccl": nccl, **made}), host=Host(os_name=fields.get("OS", NOT_READ)))
    if not gpus and version_of_driver is None:
        return Part(node)
    driver = replace(ANSWERED, library_version=version_of_driver[0] if version_of_driver else NOT_READ)
    whole = tuple(gpus[index] for index in sorted(gpus))
    return Part(node, smi=(SmiDump(whole, driver, name="collect_env", indexed=True),))


COLLECT_ENV = TextReader("collect_env", _BEGIN.match, _MORE.match, _read)

# `env`, `export -p`

_VARIABLE = re.compile(
    r"(?:export |declare -x )?(?:PATH|HOME|PWD|USER|LD_\w+|CUDA\w*|NCCL_\w+|SLURM_\w+|NVIDIA_\w+|MASTER_\w+)="
)
_MORE_VARIABLES = re.compile(r"(?:export |declare -x )?[A-Za-z_]\w*=")
ENVIRONMENT = TextReader(
    "environment",
    _VARIABLE.match,
    _MORE_VARIABLES.match,
    lambda block: Part(Node(environment=parse_env_text(block.text))),
)
