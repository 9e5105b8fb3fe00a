"""The readers of texts about the host, in the order in which they are tried on a line."""

from __future__ import annotations

import re

import msgspec

from gpudoctor.facts.captures import BUS_ID, SourceError
from gpudoctor.facts.captures.host.containers import CONTAINER_READERS
from gpudoctor.facts.captures.host.fabric_manager import FABRIC_MANAGER_READERS
from gpudoctor.facts.captures.host.lspci import HEADER, parse_lspci
from gpudoctor.facts.captures.host.memory_and_limits import (
    DF_HEADER,
    FREE_ROW,
    LIMIT_READERS,
    kernel_module_version,
    parse_df,
    parse_free,
    parse_meminfo,
)
from gpudoctor.facts.captures.host.module import MODULE_READERS
from gpudoctor.facts.captures.host.processors import PROCESSOR_READERS
from gpudoctor.facts.captures.host.rdma import RDMA_READERS
from gpudoctor.facts.captures.host.schedulers import SCHEDULER_READERS
from gpudoctor.facts.captures.reader import Block, Part, TextReader
from gpudoctor.facts.model.node import Driver, Node, PciBus
from gpudoctor.facts.system.environment import parse_env_text

_LSPCI_BEGIN = re.compile(
    r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] "
    r"[A-Z0-9][^:\n]{2,60}(?:bridge|Bridge|controller|device|accelerators)[^:\n]{0,20}: "
)
_LSPCI_MORE = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] |[ \t]+\S")
# a single function, selected on the command line
_LSPCI_OF_ONE = re.compile(rf"\blspci\b[^|;&]{{0,80}}? -\w{{0,6}}s *({BUS_ID})(?!\S)", re.IGNORECASE)
# the second form is that of other languages: six words, the fifth with a slash ("Puffer/Cache", "tamp/cache")
_FREE = re.compile(
    r"[ \t]*total[ \t]+used[ \t]+free\b"
    r"|[ \t]{7,40}(?:[^\W\d][^\s\d:|/]{0,15}[ \t]{2,16}){3}[^\W\d][^\s\d:|/]{0,15}[ \t]{1,16}"
    r"[^\W\d][^\s\d:|/]{0,15}/[^\W\d][^\s\d:|/]{1,15}"
    r"[ \t]{1,16}[^\W\d][^\s\d:|/]{1,15}$"
)
_FREE_MORE = re.compile(rf"{FREE_ROW.pattern}|\s*-/\+ buffers")
_MEMINFO = re.compile(r"Mem(?:Total|Free|Available):\s+\d+ kB")
_MEMINFO_MORE = re.compile(r"[A-Z]\w*(?:\(\w+\))?:\s+\d+(?: kB)?$")
# a row of df without the header, as grep prints it
_DF_ROW = re.compile(r"\S+\s+\d[\d.]*[KMGT]i?\s+[\d.]+[KMGT]?i?\s+[\d.]+[KMGT]?i?\s+\d+%\s+/dev/shm$")
_DF_OF_INODES = re.compile(r"\bdf\b[^|;&]* (?:-\w*i|--inodes)")
_DF_MORE = re.compile(r"\S.*\s\d+%\s+/\S*|\S.*\s-\s+/\S*")
_KERNEL_MODULE = re.compile(r"NVRM version:")
_KERNEL_MODULE_MORE = re.compile(r"GCC version:")
_ENVIRONMENT = re.compile(
    r"(?:export |declare -x )?(?:PATH|HOME|PWD|USER|LD_\w+|CUDA\w*|NCCL_\w+|SLURM_\w+|NVIDIA_\w+|MASTER_\w+)="
)
_ENVIRONMENT_MORE = re.compile(r"(?:export |declare -x )?[A-Za-z_]\w*=")


def _lspci(block: Block) -> Part:
    """`lspci`; lines without a header line, as grep prints them, belong to the function in the command."""
    text, asked = block.text, _LSPCI_OF_ONE.search(block.command)
    if asked is not None and not any(map(HEADER.match, block.lines)):
        text = f"{asked[1]} PCI device: \n{text}"
    tree = parse_lspci(text)
    return Part(Node(pci=PciBus(nvidia_devices=tree.nvidia_devices)), pci_tree=tree)


def _df(block: Block) -> Part:
    return Part() if _DF_OF_INODES.search(block.command) else Part(Node(host=parse_df(block.text)))


def _kernel_module(block: Block) -> Part:
    version = kernel_module_version(block.text)
    if version is None:
        raise SourceError("no version behind 'NVRM version:'")
    return Part(Node(driver=Driver(module_version=version, module_loaded=True)))


def _uncut(reader: TextReader) -> TextReader:
    """The reader, ignoring a last line without a line end that ends in a digit: the number may lack its last digits."""

    def read(block: Block) -> Part:
        if not block.whole_end and block.lines and block.lines[-1][-1:].isdigit():
            block = msgspec.structs.replace(block, lines=block.lines[:-1])
        return reader.read(block)

    return msgspec.structs.replace(reader, read=read)


_MEMORY_READERS: tuple[TextReader, ...] = (
    TextReader("lspci", _LSPCI_BEGIN.match, _LSPCI_MORE.match, _lspci, after=_LSPCI_OF_ONE.search),
    TextReader("free", _FREE.match, _FREE_MORE.match, lambda block: Part(Node(host=parse_free(block.text)))),
    TextReader(
        "meminfo", _MEMINFO.match, _MEMINFO_MORE.match, lambda block: Part(Node(host=parse_meminfo(block.text)))
    ),
    TextReader("df", lambda line: DF_HEADER.match(line) or _DF_ROW.match(line), _DF_MORE.match, _df),
    TextReader("kernel-module", _KERNEL_MODULE.match, _KERNEL_MODULE_MORE.match, _kernel_module),
    TextReader(
        "environment",
        _ENVIRONMENT.match,
        _ENVIRONMENT_MORE.match,
        lambda block: Part(Node(environment=parse_env_text(block.text))),
    ),
)

HOST_READERS: tuple[TextReader, ...] = tuple(
    _uncut(reader)
    for reader in (
        *MODULE_READERS,
        *FABRIC_MANAGER_READERS,
        *RDMA_READERS,
        *LIMIT_READERS,
        *PROCESSOR_READERS,
        *SCHEDULER_READERS,
        *CONTAINER_READERS,
        *_MEMORY_READERS,
    )
)
