"""All readers, in the order in which they are tried on a line."""

from __future__ import annotations

from msgspec.structs import replace

from gpudoctor.facts.captures.benchmarks import BENCHMARK_READERS
from gpudoctor.facts.captures.collect_env import COLLECT_ENV, ENVIRONMENT
from gpudoctor.facts.captures.dcgm import DCGM_READERS
from gpudoctor.facts.captures.host.containers import CONTAINER_READERS
from gpudoctor.facts.captures.host.cpu_and_memory import LIMIT_READERS, MEMORY_READERS, PROCESSOR_READERS
from gpudoctor.facts.captures.host.fabric_manager import FABRIC_MANAGER_READERS
from gpudoctor.facts.captures.host.lspci import ACS_LINES, LSPCI
from gpudoctor.facts.captures.host.module import MODULE_READERS
from gpudoctor.facts.captures.host.rdma import RDMA_READERS
from gpudoctor.facts.captures.host.schedulers import SCHEDULER_READERS
from gpudoctor.facts.captures.kernel_logs import KERNEL_LOG
from gpudoctor.facts.captures.monitor import DCGM_DMON, DCGM_EXPORTER, MONITOR_READERS
from gpudoctor.facts.captures.nvidia_smi.messages import MESSAGE_READERS, PROC
from gpudoctor.facts.captures.nvidia_smi.nvlink import GPU_LIST
from gpudoctor.facts.captures.nvidia_smi.query_csv import QUERY_CSV
from gpudoctor.facts.captures.nvidia_smi.query_text import QUERY_TEXT
from gpudoctor.facts.captures.nvidia_smi.query_xml import QUERY_XML
from gpudoctor.facts.captures.nvidia_smi.table import TABLE
from gpudoctor.facts.captures.nvidia_smi.topology import TOPOLOGY
from gpudoctor.facts.captures.reader import Block, Part, TextReader


def _uncut(reader: TextReader) -> TextReader:
    """The reader, ignoring a last line without a line end that ends in a digit: the number may lack its last digits."""

    def read(block: Block) -> Part:
        if not block.whole_end and block.lines and block.lines[-1][-1:].isdigit():
            block = replace(block, lines=block.lines[:-1])
        return reader.read(block)

    return replace(reader, read=read)


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
        LSPCI,
        ACS_LINES,
        *MEMORY_READERS,
        ENVIRONMENT,
    )
)
READERS: tuple[TextReader, ...] = (
    *(QUERY_XML, *MESSAGE_READERS, TABLE, GPU_LIST, TOPOLOGY, QUERY_TEXT, QUERY_CSV, *MONITOR_READERS, PROC),
    *(*DCGM_READERS, DCGM_DMON, *HOST_READERS, DCGM_EXPORTER, COLLECT_ENV, *BENCHMARK_READERS, KERNEL_LOG),
)
