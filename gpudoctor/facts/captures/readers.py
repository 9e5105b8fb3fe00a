"""All readers, in the order in which they are tried on a line."""

from __future__ import annotations

from msgspec.structs import replace

from gpudoctor.facts.captures.benchmarks import BENCHMARK_READERS
from gpudoctor.facts.captures.collect_env import read_collect_env, read_environment
from gpudoctor.facts.captures.dcgm import DCGM_READERS
from gpudoctor.facts.captures.host.containers import read_inspect
from gpudoctor.facts.captures.host.cpu_and_memory import MEMORY_READERS, PROCESSOR_READERS, read_ulimit
from gpudoctor.facts.captures.host.fabric_manager import FABRIC_MANAGER_READERS
from gpudoctor.facts.captures.host.lspci import read_acs, read_lspci
from gpudoctor.facts.captures.host.module import MODULE_READERS, read_proc_version
from gpudoctor.facts.captures.host.rdma import RDMA_READERS
from gpudoctor.facts.captures.host.schedulers import SCHEDULER_READERS
from gpudoctor.facts.captures.kernel_logs import read_kernel_log
from gpudoctor.facts.captures.monitor import MONITOR_READERS
from gpudoctor.facts.captures.nvidia_smi.messages import read_failure, read_inforom, read_proc
from gpudoctor.facts.captures.nvidia_smi.nvlink import read_gpu_list
from gpudoctor.facts.captures.nvidia_smi.query_csv import read_apps, read_query
from gpudoctor.facts.captures.nvidia_smi.query_text import read_query_text
from gpudoctor.facts.captures.nvidia_smi.query_xml import read_query_xml
from gpudoctor.facts.captures.nvidia_smi.table import read_table
from gpudoctor.facts.captures.nvidia_smi.topology import read_topology
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
        read_ulimit,
        *PROCESSOR_READERS,
        *SCHEDULER_READERS,
        read_inspect,
        read_lspci,
        read_acs,
        *MEMORY_READERS,
        read_environment,
    )
)
READERS: tuple[TextReader, ...] = (
    *(read_query_xml, read_failure, read_inforom, read_table, read_gpu_list, read_topology, read_query_text),
    *(read_query, read_apps, *MONITOR_READERS, read_proc, *DCGM_READERS, *HOST_READERS),
    *(read_collect_env, *BENCHMARK_READERS, read_kernel_log),
)
# whose texts are looked for in nvidia-bug-report.log, beside the kernel's
REPORT_READERS: tuple[TextReader, ...] = (
    *(read_query_xml, read_query_text, read_failure, read_topology, read_gpu_list),
    *(read_lspci, read_proc_version, *MEMORY_READERS),
)
