"""All readers of pasted text, in the order in which they are tried on a line."""

from __future__ import annotations

import re

from gpudoctor.facts.captures.collect_env import begins_collect_env, goes_on_collect_env, read_collect_env
from gpudoctor.facts.captures.host.readers import HOST_READERS
from gpudoctor.facts.captures.nvidia_smi.readers import NVIDIA_SMI_READERS
from gpudoctor.facts.captures.reader import Block, Part, TextReader
from gpudoctor.facts.captures.recognise import is_kernel_line
from gpudoctor.facts.kernel_log.host_messages import HOST_WORDS, host_message
from gpudoctor.facts.kernel_log.lines import read_kernel_text
from gpudoctor.facts.kernel_log.messages import HARD_WORDS, MARK
from gpudoctor.facts.kernel_log.records import unwrapped
from gpudoctor.facts.model.node import Node

_BARE_MESSAGE = re.compile(
    r"\s*(?:NVRM: |nvidia-nvswitch\d*: "
    r"|(?:nvidia|pcieport|mlx5_core|pci|nouveau|vfio-pci) [0-9a-f]{4}:[0-9a-f]{2}:"
    r"|dmesg: read kernel buffer failed)"
)
_TAG, _VERSION = "kernel: ", re.compile(r"\d+\.\d")
_CONTINUED = re.compile(r" {10,}\S")  # dmesg and journalctl indent continuation lines by the width of the timestamp
_STAMPED = re.compile(
    r"\[ *\+?\d+\.\d|\[[A-Z][a-z]{2} |\d{4}-\d\d-\d\dT\d\d:|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d |<\d+>"
    r"|\d+,\d+,\d+,|[a-z]+ *:[a-z]+ *:|\{"
)


def _begins_kernel_log(line: str) -> object:
    message = line.lstrip()
    if message.startswith(_TAG):  # "kernel: 6.8.0" is not a log line
        return _VERSION.match(message, len(_TAG)) is None
    if is_kernel_line(line) or _BARE_MESSAGE.match(unwrapped(line)):
        return True
    # without a timestamp, only a message in the table of host events is certain to be from the kernel
    return any(word in line for word in HOST_WORDS) and host_message(unwrapped(message).lstrip(" \t")) is not None


def _goes_on_kernel_log(line: str) -> object:
    return _CONTINUED.match(line) or _STAMPED.match(line) or MARK.search(line) or _begins_kernel_log(line)


def _kernel_log(block: Block) -> Part:
    return Part(Node(kernel_log=read_kernel_text(block.text, block.file)))


KERNEL_LOG = TextReader(
    "kernel log", _begins_kernel_log, _goes_on_kernel_log, _kernel_log, may_be=HARD_WORDS.search, in_pieces=True
)
READERS: tuple[TextReader, ...] = (
    *NVIDIA_SMI_READERS,
    *HOST_READERS,
    TextReader("collect_env", begins_collect_env, goes_on_collect_env, read_collect_env),
    KERNEL_LOG,
)
