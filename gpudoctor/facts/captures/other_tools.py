"""Tools whose texts are recognised but not judged, as the report says: benchmarks, other vendors' tools.

A failure that such a tool itself reports (wrong sums, no device) is never a pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpudoctor.facts.captures import clipped
from gpudoctor.facts.captures.nvidia_smi.table import OTHER_TABLE
from gpudoctor.facts.captures.reader import NO_MORE, Block, Part, TextReader, text_reader
from gpudoctor.facts.captures.reported_failures import (
    CELLS,
    POD,
    acs_failures,
    burn_failures,
    copy_failures,
    copy_figures,
    cuda_failures,
    nccl_figures,
    p2p_failures,
    pod_failures,
)

_NOT_MEASURED = "its figures are reported, not measured by gpudoctor, and not judged; on the node"
_MOST_FAILURES = 5
_ALONE = NO_MORE  # each line is a text of its own, and may stand between those of another text


def _tool(
    name: str,
    begins: str,
    goes_on: str,
    advice: str,
    *,
    failures: str | Callable[[Block], list[str]] = "",
    figures: Callable[[Block], str] = lambda block: "",
    between: bool = False,
) -> TextReader:
    """A reader of texts that are not judged.

    `failures`: a line in which the tool reports a failure, or what finds them; `figures`: what it found, in a few
    words, for the note.
    `between`: any other reader of the line comes first.
    """
    failure = re.compile(failures) if isinstance(failures, str) and failures else None

    def read(block: Block) -> Part:
        found_in = [(line, failure.search(line)) for line in block.lines] if failure is not None else []
        failed = [_from_words(line, hit) for line, hit in found_in if hit is not None]
        told = list(dict.fromkeys(failed if isinstance(failures, str) else failures(block)))
        more = [f"{len(told) - _MOST_FAILURES} more lines like these"] if len(told) > _MOST_FAILURES else []
        found = figures(block)
        return Part(
            notes=(f"{name}: recognised{found and f', {found}'}: {advice}",),
            reported=tuple(clipped(f"{name}: {line}") for line in (*told[:_MOST_FAILURES], *more)),
        )

    if between:
        return text_reader(name, NO_MORE, begins, read, may_be=re.compile(begins).match, alone=True)
    return text_reader(name, begins, goes_on, read, alone=goes_on is _ALONE)


def _from_words(line: str, hit: re.Match[str]) -> str:
    """The line, from the pattern's group `words` on if it has one: prose or a program's prefixes may be before it."""
    start = hit.start("words") if hit.groupdict().get("words") else 0
    return line[start:].strip(" \t#")


# since NCCL 2.27 with the function behind the file and line
_NCCL_LINE = r".{0,120}?:\d{1,8}:\d{1,8} \[\d{1,4}\] (?:\S{1,80}:\d{1,6} (?:\(\w{1,80}\) )?)?NCCL (?:INFO|WARN|TRACE) "
_MATRIX_ROW = rf"\s{{1,12}}\d{{1,12}}{CELLS}"
_TABLE_ROW = rf"(?!{OTHER_TABLE.pattern})[|+](?! NVIDIA-SMI).{{0,200}}[|+]\s*$"
_DEVICE = r"\s*Device:? ?\d{1,4}[,:] "


OTHER_TOOL_READERS: tuple[TextReader, ...] = (
    _tool(
        "nccl-tests",
        r"#?\s*nThread \d{1,5} nGpus \d{1,5} minBytes |# Collective test starting: \w+_perf"
        r"|.{0,80}?: Test (?:NCCL|CUDA) failure \S|.{0,400}?\bOut of bounds values : [1-9]\d{0,9} FAILED"
        r"|#?\s+size\s+count\s+type\s+redop|#?\s*Out of bounds values : |#?\s*Avg bus bandwidth ",
        r"#\s*$|#?\s+(?:Rank|size|\(B\)|\(bytes\)|out-of-place)\s|#? ?Using devices|# Errors with|NCCL version "
        r"|(?:\s*\S{1,12}:)?\s*\d{1,15}\s+\d{1,15}\s+[a-z]\w{2,12}\s|" + _NCCL_LINE,
        f"{_NOT_MEASURED}: gpudoctor check collective",
        failures=r"(?P<words>Out of bounds values : +[1-9])|: Test (?:NCCL|CUDA) failure ",
        figures=nccl_figures,
    ),
    _tool(
        "a log of NCCL",
        _NCCL_LINE,
        _ALONE,
        "it tells of a job, not of the state of a node: gpudoctor diagnose FILE",
        # other failures of CUDA (no memory left, a bad argument) are the program's
        failures=r"(?P<words>NCCL WARN .{0,200})(?:NVLink|NVLS|(?:CUDA error|Cuda failure).{0,40}(?:ECC error"
        r"|system (?:not|has)|initialization error|unknown error|hardware stack|no CUDA-capable|busy or unavailable"
        r"|in the present state))",
        between=True,
    ),
    _tool(
        "p2pBandwidthLatencyTest",
        # with an editor's line number
        r"(?:[ \t]{0,8}\d{1,4} )?(?:\[P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\]|P2P Connectivity Matrix"
        r"|(?:Uni|Bi)directional P2P=(?:En|Dis)abled Bandwidth|P2P=(?:En|Dis)abled Latency)",
        rf"{_DEVICE}|Device=\d{{1,4}} CAN|\s+(?:D\\D|GPU|CPU)(?:\s+\d{{1,4}})+\s*$|{_MATRIX_ROW}|\*\*\*NOTE: In case"
        r"|So you can see lesser|NOTE: The CUDA Samples",
        f"{_NOT_MEASURED}: gpudoctor check link.peer --level full",
        failures=p2p_failures,
    ),
    _tool(
        "bandwidthTest",
        r"\[?CUDA Bandwidth Test\] - Starting",
        rf"Running on|{_DEVICE}| (?:Quick|Range|Shmoo) Mode| \w+ to \w+ Bandwidth, | (?:PINNED|PAGEABLE) Memory"
        rf"|\s+Transfer Size|{_MATRIX_ROW}|Result = |NOTE: The CUDA Samples",
        f"{_NOT_MEASURED}: gpudoctor check link.host --level full",
        failures=copy_failures,
        figures=copy_figures,
    ),
    _tool(
        "nvbandwidth",
        r"nvbandwidth Version: |Running [a-z0-9_]{1,60}_(?:ce|sm)\.\s*$",
        rf"Built from |NOTE: This tool reports|Additional system-specific|(?:CUDA \w+|Driver) Version: |{_DEVICE}"
        rf"|memcpy |\s+\d(?:\s+\d{{1,4}})*\s*$|{_MATRIX_ROW}|\d{{1,4}}{CELLS}|SUM \w+ "
        r"|(?:Waived|Excluded): |.{0,100}?CUDA_ERROR_",
        f"{_NOT_MEASURED}: gpudoctor check link --level full",
        failures="CUDA_ERROR_",
    ),
    _tool(
        "deviceQuery",
        r"(?:\S{0,200}/)?deviceQuery Starting\.\.\.| ?CUDA Device Query \(",
        r"  (?:CUDA |Maximum |[A-Z(][^|]{2,80}:)|\s+<|Detected \d{1,4} CUDA|Device \d{1,4}: "
        r"|(?:> )?Peer access from |-> |cudaGetDeviceCount returned|deviceQuery, |Result = ",
        "it shows that CUDA starts, and is not judged; on the node: gpudoctor check",
        failures=r"Result = FAIL|^\s*-> \S",
    ),
    _tool(
        "gpu-burn",
        r"Tested \d{1,4} GPUs:|GPU Burn$|\d{1,3}\.\d%\s+proc'd: |Couldn't init a GPU test|No clients are alive",
        r"\s*GPU \d{1,4}: (?:OK|FAULTY)|Burning for |Killing processes|Initialized device ",
        f"{_NOT_MEASURED}: gpudoctor check compute --level full",
        failures=burn_failures,
    ),
    _tool(
        "Kubernetes device plugin",
        r".{0,120}?(?:'nvidia\.com/gpu' device marked unhealthy: |XidCriticalError: Xid=)",
        _ALONE,
        "what it says of a GPU is not judged; paste the node's: dmesg",
        failures=r"marked unhealthy|XidCriticalError",
    ),
    _tool(
        "node health check (NHC)",
        r"(?:ERROR|SUCCESS|FATAL|WARNING):\s{1,4}nhc:\s|Health checks completed with exit code: \d",
        _ALONE,
        "its checks are not repeated from a text; on the node: gpudoctor check",
        failures=r"(?:ERROR|FATAL):\s{1,4}nhc:|exit code: [1-9]",
    ),
    _tool(
        "systemctl",
        r"(?:Job|A dependency job) for nvidia-(?!fabricmanager)[\w.@-]{1,60}\.service failed",
        _ALONE,
        "a service that did not start; paste: journalctl -xeu SERVICE",
        failures=".",
    ),
    _tool(
        "slurmctld",
        r".{0,200}?\bslurm(?:ctld|d)(?:\[\d{1,10}\])?: .{0,120}?(?:Setting node \S{1,100} state to [A-Z]"
        r"|node \S{1,100} state set to (?:DOWN|DRAIN|FAIL))",
        _ALONE,
        "the scheduler's own log; paste of the node: nvidia-smi -q; scontrol show node NAME",
        failures=r"(?P<words>Setting node \S{1,100} state to (?:DOWN|DRAIN|FAIL|ERR|INVAL|NO)"
        r"|node \S{1,100} state set)",
    ),
    _tool(
        "kubectl get pods",
        r"(?:NAMESPACE\s+)?NAME\s+READY\s+STATUS\s+RESTARTS\s+AGE\b"
        r"|(?:[\w.-]{1,100}\s+)?(?:pod/)?(?:nvidia|gpu|dcgm)[\w.-]{1,200}\s+\d{1,3}/\d{1,3}\s+[A-Z]\w",
        POD.pattern,
        "pods are not judged; paste of the node: nvidia-smi -q; dmesg",
        failures=pod_failures,
    ),
    _tool(
        "lspci | grep ACSCtl",
        r"\s{0,80}ACSCtl:\s+SrcValid[+-]",
        NO_MORE,
        "which bridges these are is not in the text; paste: lspci -vvv (as root)",
        failures=acs_failures,
    ),
    _tool(
        "ibdev2netdev",
        r"[a-z]\w{1,30}\s+port\s+\d{1,3}\s+==>\s+\S{1,20}\s+\((?:Up|Down)\)",
        _ALONE,
        "it shows the network interfaces of the ports, not their links; paste: ibstat",
    ),
    _tool(
        "gpustat",
        r"\[\d{1,4}\] .{3,80}\| +[\d?]{1,3} ?(?:'|\u00b0)?[CF\u2103], +(?:\d{1,3}|\?) ?% \|",
        _ALONE,
        "its readings are not judged; paste: nvidia-smi -q",
        failures=r"\(\(|Unknown Error|GPU is lost",
    ),
    _tool(
        "CUDA in a program",
        r".{0,300}?(?:CUDA initialization: |CUDA error: (?:uncorrectable ECC|unknown error|system not yet"
        r"|no CUDA-capable|hardware stack|initialization error|CUDA-capable device\(s\) is/are busy)"
        r"|\b(?:CUDA_ERROR_(?:ECC_U|NVLINK_U|HARDWARE_S|CONTAINED|SYSTEM_)|cudaError(?:ECCU|NvlinkU|HardwareS|System)"
        r"|uncorrectable (?:ECC error encountered|NVLink error detected)"
        r"|\w+ returned error (?:214|220|714|721|80[23])\b))|"
        r"(?:RuntimeError|(?:torch|cupy|numba)[\w.]{1,60}Error|CUDA error|CUDA_ERROR_\w{1,40}|THCudaCheck FAIL"
        r"|Check failed: .{1,80}\(\d{1,4} vs\. 0\)|cudaGetDeviceCount|\S{1,200}UserWarning: CUDA init).{0,200}"
        r"(?:no CUDA-capable device|No CUDA GPUs are available|CUDA unknown error|CUDA driver initialization failed"
        r"|devices? are busy|device\(s\) is/are busy|Error 80[234]\b)",
        _ALONE,
        "a program's error, whose cause is not judged; on the node: gpudoctor check; its log: gpudoctor diagnose FILE",
        failures=cuda_failures,
    ),
    _tool(
        "nvidia-smi mig",
        r"\| (?:GPU|Compute) instance(?: profile)?s: +\|",
        _TABLE_ROW,
        "which instances there are is not judged; paste: nvidia-smi",
    ),
    _tool(
        "ip",
        r"\d{1,4}: \S{1,40}: <[A-Z_,]{2,100}> mtu \d",
        r"\s+(?:link|inet6?|valid_lft|altname|vf \d{1,3}|RX|TX)\b",
        "the state of network interfaces is not judged; paste: ibstat",
    ),
    _tool(
        "perfquery",
        r"# Port (?:extended )?counters: Lid ",
        r"\w{3,40}:\.{3,60}",
        "it does not name the device of its port; paste: ibstat",
    ),
    _tool(
        "lspci -t",
        r"[ |]{0,60}[-+\\](?:\+-)?\[[0-9a-f]{4,8}(?::[0-9a-f]{2})?\]-",
        r"[ |]{1,200}[+\\]-\S",
        "it shows no state of a device; paste: lspci -vvv",
    ),
    _tool(
        "ibstat",
        r"ibpanic: \[\d{1,10}\] ",
        _ALONE,
        "it ended before all devices; see: ls /sys/class/infiniband; dmesg",
        failures=".",
    ),
    _tool(
        "DCGM",
        r"`?(?:\S{1,40} ){0,4}\[\[Health\]\] Detected an? (?:WARNING|ERROR|FAILURE) in health system",
        _ALONE,
        "of its health watches, not judged; on the node: gpudoctor check",
        failures=".",
    ),
    _tool(
        "nvidia-debugdump",
        r"ERROR: (?:GetCaptureBufferSize|internal_(?:getDumpBuffer|dump\w{1,40}))\b",
        _ALONE,
        "it does not name the GPU; paste: nvidia-smi; dmesg",
        failures="GPU is lost|requires reset|Unknown Error",
    ),
    _tool(
        "nvidia-smi",
        r"(?:-?\w{0,6}sh: (?:(?:line )?\d{1,6}: )?)?nvidia-smi: (?:command )?not found"
        r"|\w{0,6}sh: command not found: nvidia-smi|Command 'nvidia-smi' not found"
        r"|.{0,200}\"nvidia-smi\": executable file not found",
        _ALONE,
        "not found there: no driver, or a container that was given no GPU; on the host: nvidia-smi",
    ),
    _tool(
        "tegrastats",
        r"(?:\d\d-\d\d-\d{4} \d\d:\d\d:\d\d )?RAM \d{1,7}/\d{1,7}MB \(lfb ",
        _ALONE,
        "of a Jetson, whose readings gpudoctor does not judge",
    ),
    _tool(
        "AMD's tool",
        r"=+ ?(?:ROCm System Management Interface|ROCM-SMI|End of ROCm SMI Log)|\| AMD-SMI \d",
        r"=+ ?(?!NVSMI)[\w ]{0,60} ?=+\s*$|GPU\[\d{1,3}\]\s*:|(?:GPU|Device) +(?:Temp|Node)|\d{1,3} +\S.{10,200}%|"
        + _TABLE_ROW,
        "AMD GPUs, which gpudoctor does not read: it judges NVIDIA's only",
    ),
    _tool(
        "another vendor's tool",
        r"\| (?:HL-SMI|npu-smi|mx-smi|XPU-SMI) ",
        _TABLE_ROW,
        "accelerators that gpudoctor does not read: it judges NVIDIA's GPUs only",
    ),
)
