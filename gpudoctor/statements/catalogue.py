"""The catalogue of error texts of CUDA, NVML, NCCL and the kernel that ranks, pasted texts and logs of jobs share.

Sources: cudaError_t and CUresult in the CUDA Runtime and Driver API references, nvmlReturn_t in the NVML API reference
(codes in `source`), NCCL's src, torch. The first row that matches counts: texts that name the hardware come before
those that any failure may cause. An unknown text is still an error, in its own words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import Literal, Protocol, TypeVar

import msgspec

from gpudoctor.lazy import lazy_pattern

# hardware: a GPU or link is at fault. kernel: work on a GPU died; program or hardware. refused: the GPU accepts no
# process. memory: none is left. setup: driver, library, container or configuration. program: its own input
Effect = Literal["hardware", "kernel", "refused", "memory", "setup", "program"]
_ILLEGAL = "the GPU reached for memory that is not its own"
_NO_GPU = "CUDA shows this process no GPU"
_TOO_OLD = "the driver is too old for the CUDA of this program"
_MISMATCH = "kernel module and library of the driver do not fit"
_NO_START = "CUDA does not start in this process"
_NO_KERNEL = "this build has no code for the GPU"
_FULL = "the GPU has no memory left"
_LOST = "the GPU is lost"
_NOT_READY = (
    "CUDA waits for the system: does nvidia-fabricmanager run, and, with confidential computing, is the GPU ready?"
)

_Row = tuple[str, str, str, Effect, str, str, int, bool]
_ROWS: tuple[_Row, ...] = (
    ("gpu_ecc", "ecc", r"[Uu]ncorrectable ECC error (?:encountered|(?:was )?detected)|CUDA_ERROR_ECC_UNCORRECTABLE|cudaErrorECCUncorrectable", "hardware", "the GPU met an error in its memory that ECC cannot correct", "CUDA 214", 3, True),
    ("nvlink_failed", "nvlink", r"[Uu]ncorrectable NVLink error (?:encountered|(?:was )?detected)|CUDA_ERROR_NVLINK_UNCORRECTABLE|cudaErrorNvlinkUncorrectable", "hardware", "an NVLink of the GPU failed in the middle of the work", "CUDA 220", 3, True),
    # whoever reads a peer's memory reports it: the link or the peer failed
    ("nvlink_failed", "nvlink|contained", r"Invalid access of peer GPU memory over nvlink|CUDA_ERROR_CONTAINED|cudaErrorContained", "hardware", "the GPU contained an error of its hardware or of a peer's", "CUDA 226", 3, False),
    ("gpu_lost", "device handle", r"Unable to (?:determine|detect) the device handle for (?:GPU|gpu) ?(?P<gpu>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])", "hardware", _LOST, "nvidia-smi", 3, True),
    ("gpu_lost", "lost", r"(?i)GPU[ _]?is[ _]?lost", "hardware", _LOST, "NVML 15", 3, True),
    ("gpu_lost", "the bus", r"(?i)(?:fallen|fell) off the bus", "hardware", "the GPU fell off the bus", "NVML 15, Xid 79", 3, True),
    ("gpu_reset_required", "reset", r"(?i)GPU requires (?:a )?reset|ERROR_RESET_REQUIRED", "hardware", "the GPU must be reset", "NVML 16", 3, True),
    ("cuda_launch_failure", "hardware", r"hardware stack error|CUDA_ERROR_HARDWARE_STACK_ERROR|cudaErrorHardwareStackError", "hardware", "the GPU lost its call stack", "CUDA 714", 2, True),
    ("cuda_launch_failure", "illegal", r"an illegal instruction was encountered|CUDA_ERROR_ILLEGAL_INSTRUCTION|cudaErrorIllegalInstruction", "kernel", "the GPU met an instruction that does not exist", "CUDA 715", 2, True),
    ("cuda_launch_failure", "invalid", r"invalid program counter|CUDA_ERROR_INVALID_PC", "kernel", "the GPU left its program", "CUDA 718", 2, True),
    ("cuda_launch_failure", "misaligned", r"misaligned address", "kernel", "the GPU computed an address that cannot be", "CUDA 716", 2, True),
    ("cuda_illegal_access", "illegal", r"an illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress", "kernel", _ILLEGAL, "CUDA 700", 3, True),
    ("cuda_illegal_access", "memory access fault|hsa_status", r"Memory access fault by GPU (?P<gpu>node-\d+)|HSA_STATUS_ERROR_MEMORY_(?:APERTURE_VIOLATION|FAULT)", "kernel", _ILLEGAL, "ROCm", 3, True),
    ("cuda_launch_failure", "launch", r"unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED|cudaErrorLaunchFailure", "kernel", "the GPU stopped in the middle of the work", "CUDA 719", 2, True),
    ("cuda_launch_failure", "hsa_status|hw exception", r"HSA_STATUS_ERROR_(?:EXCEPTION|ILLEGAL_INSTRUCTION)|HW Exception by GPU node-\d+", "kernel", "the GPU stopped in the middle of the work", "ROCm", 2, True),
    ("cuda_launch_failure", "timed out", r"the launch timed out and was terminated", "program", "the GPU drives a screen, and the time limit for that ended the work", "CUDA 702", 2, True),
    ("cuda_system_not_ready", "system not yet initialized|not_ready", r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY", "setup", _NOT_READY, "CUDA 802", 3, False),
    ("cuda_driver_mismatch", "driver combination|driver_mismatch", r"unsupported display driver / cuda driver combination|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "setup", _MISMATCH, "CUDA 803", 3, False),
    ("cuda_driver_mismatch", "driver/library version mismatch", r"[Dd]river/library version mismatch", "setup", _MISMATCH, "NVML 18", 3, True),
    ("cuda_driver_mismatch", "dso version", r"kernel version \S+ does not match DSO version", "setup", _MISMATCH, "TensorFlow", 3, True),
    ("cuda_driver_mismatch", "forward compat", r"(?i)forward compatibility was attempted on non supported HW", "setup", "the CUDA compatibility package does not work on this GPU", "CUDA 804", 3, True),
    ("cuda_driver_too_old", "driver", r"CUDA driver version is insufficient for CUDA runtime version|cudaErrorInsufficientDriver|The NVIDIA driver on your system is too old", "setup", _TOO_OLD, "CUDA 35, torch", 3, False),
    ("cuda_driver_too_old", "unsupported", r"provided PTX was compiled with an unsupported toolchain|CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "setup", _TOO_OLD, "CUDA 222", 3, False),
    ("cuda_busy", "busy", r"all CUDA-capable devices are busy or unavailable|CUDA-capable device\(s\) is/are busy|\bbusy or unavailable", "refused", "the GPU does not accept a process", "CUDA 46", 3, True),
    ("cuda_device_assert", "assert", r"device-side assert triggered|:\d+: .{1,300}?: block: \[\d.{0,60}Assertion `.{0,300}failed", "program", "a kernel refused its input", "CUDA 710", 3, True),
    ("gpu_isolated", "cuda|found no nvidia driver", r"no CUDA-capable device is detected|No CUDA GPUs are available|CUDA_ERROR_NO_DEVICE|Found no NVIDIA driver on your system", "setup", _NO_GPU, "CUDA 100, torch, nvidia-smi", 3, True),
    ("gpu_isolated", "no devices were found", r"No devices were found", "setup", _NO_GPU, "CUDA 100, torch, nvidia-smi", 3, True),
    ("gpu_isolated", "invalid device ordinal", r"invalid device ordinal", "setup", "CUDA shows this process fewer GPUs than it was given", "CUDA 101", 3, True),
    ("cuda_not_supported", "not supported", r"(?:CUDA|Cuda|cuda)\b.{0,80}operation not supported|Cuda failure (?:\d+ )?'(?:operation|feature) not supported'", "setup", "the driver or this virtual GPU lacks what is asked for", "CUDA 801", 3, True),
    ("cuda_no_kernel_image", "kernel image", r"no kernel image is available for execution on the device|device kernel image is invalid", "setup", _NO_KERNEL, "CUDA 209", 3, False),
    ("cuda_no_kernel_image", "gpu", r"CUDA_ERROR_NO_BINARY_FOR_GPU|[Uu]nsupported gpu architecture '\w+'|Value 'sm_\w+' is not defined for option 'gpu-name'", "setup", _NO_KERNEL, "CUDA 209", 3, False),
    ("cuda_no_kernel_image", "cuda enabled", r"Torch not compiled with CUDA enabled", "setup", _NO_KERNEL, "torch", 3, False),
    ("cuda_no_kernel_image", "invalid device function|success (", r"invalid device function|Check failed: \w+ == (?:cuda|hip)Success \((?:98|209) vs\. 0\)", "setup", _NO_KERNEL, "CUDA 98", 3, True),
    ("cuda_init_failed", "initializ", r"(?:CUDA|Cuda|cuda)\b.{0,80}initialization error|CUDA driver initialization failed|CUDA backend failed to initialize: ", "setup", _NO_START, "CUDA 3", 2, True),
    ("cuda_init_failed", "unknown error", r"CUDA unknown error|CUDA (?:error|failure)[^a-z]{0,20}unknown error", "setup", _NO_START, "CUDA 999", 2, True),
    ("cuda_init_failed", "nvml", r"Failed to initialize NVML: |Unable to initialize NVML", "setup", "the driver does not answer NVML", "NVML", 2, True),
    ("cuda_init_failed", "nvidia-smi has failed", r"NVIDIA-SMI has failed because", "setup", "the driver is not loaded or does not answer", "nvidia-smi", 2, True),
    ("cuda_init_failed", "cuinit", r"operation cuInit\(0\) failed", "setup", _NO_START, "CUDA", 2, True),
    ("cuda_init_failed", "mps ", r"(?i)\bMPS (?:client|server)\b.{0,80}(?:fail|terminat|not ready|disconnect|unable|exceed|max)", "setup", "the MPS server does not serve this process", "CUDA 805 to 808", 2, True),
    ("cuda_init_failed", "os call failed", r"OS call failed or operation not supported on this OS", "setup", "the system refused the driver a call: a container without /dev/nvidia-uvm?", "CUDA 304", 2, True),
    ("cuda_oom", "memory",
     r"(?:CUDA|HIP) out of memory|(?:CUDA|HIP) error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
     r"|OutOfMemoryError: (?:CUDA|HIP|Allocation)|Cuda failure (?:\d+ )?'out of memory'|cudaMalloc failed: out of memory|Test CUDA failure \S+ 'out of memory'"
     r"|Cuda Runtime \(out of memory\)|Error Code \d+: OutOfMemory|Requested amount of GPU memory .{0,80}could not be allocated"
     r"|No available memory for the cache blocks|Non-OK-status: Gpu.{0,300}: out of memory", "memory", _FULL, "CUDA 2, TensorRT, vLLM", 3, True),
    ("cuda_oom", "exhausted", r"(?i:resource[_ ]exhausted): .{0,200}?\b(?:memory|allocate|reserve)\b", "memory", _FULL, "XLA", 3, True),
    ("cuda_oom", "memory", r"Free memory on device .{0,60} is less than desired GPU memory utilization|Not enough memory\. Please try to increase --mem-fraction-static", "memory", _FULL, "vLLM, SGLang", 3, False),
    ("cuda_init_failed", "cublas|cudnn", r"CUBLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)|CUDNN_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)|[Cc]ould not create cudnn handle", "memory", _FULL, "cuBLAS, cuDNN", 1, True),
    ("cuda_launch_failure", "cublas", r"CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)", "kernel", "the GPU stopped in the middle of the work", "cuBLAS", 1, True),
    ("duplicate_gpu", "duplicate gpu", r"Duplicate GPU detected ?: ?rank (?P<a>\d+) and rank (?P<b>\d+) both on CUDA device (?P<device>\w+)", "program", "two ranks were given the same GPU", "NCCL", 3, False),
    ("shm_too_small", "/dev/shm", r"failed to extend /dev/shm/|/dev/shm/nccl-.{0,160}No space left|(?<!attaching to )shared memory segment /dev/shm", "setup", "NCCL got no room in /dev/shm", "NCCL", 3, True),
    ("host_alloc_failed", "allocat", r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory).{0,40}(?:allocate )?(?P<bytes>\d+)? ?|Unable to allocate [\d.]+ [KMGTPE]iB for an array", "memory", "the host has no memory left", "torch", 3, True),
    ("host_alloc_failed", "memory|bad_alloc", r"OSError: \[Errno 12\] Cannot allocate memory|^MemoryError|std::bad_alloc\W*$", "memory", "the host has no memory left", "errno 12, C++", 3, True),
)  # fmt: skip
_CODE = lazy_pattern(
    r"(?i)\b(?:cuda\w*|cu) ?(?:error|failure|result)?(?: code)?(?:[:= (]{1,3})(\d{3})\b|\b(?:cuda|nvml|cu\w+).{0,60}\berror(?: code)?[:= (]{1,3}(\d{3})\b|^\W*error (\d{3})\b(?=.*cuda)"
)
# the libraries and calls that run programs on accelerators without CUDA
RUNTIME = (
    r"(?:HCCL|Hccl[A-Z]\w+|RCCL|XCCL|oneCCL|HCCP|acl[A-Z]\w+|torch_npu|Nrt::\w+|nrt_\w+|NEURON\w*|libtpu|syn(?:Status|apse|[A-Z])\w*"
    r"|UR_RESULT_\w+|ZE_RESULT_\w+)"
)
_MOST_CACHED = 1000
ONE_DIGIT = str.maketrans("123456789", "0" * 9)  # makes texts equal that differ in numbers alone
_XID = lazy_pattern(r"\bXid:? ?(?:\(PCI:[\w:.]{4,20}\): ?|errors?:? |codes?:? |\()?(\d{1,3})\b")
ECC_XIDS = frozenset({48, 63, 64, 94, 95, 140, 171, 172})


class KnownError(msgspec.Struct, frozen=True):
    """One error text. `label`: the word of `gpudoctor diagnose`. `plain`: what happened, in plain words.

    `needle`: a lower-case literal of each match. `strength`: 3 the cause itself, 1 may follow from many. `own`:
    whether the fault lies with the process or GPU that reports it, not with a peer, a path or the whole node.
    """

    label: str
    needle: str
    text: re.Pattern[str]
    effect: Effect
    plain: str = ""
    source: str = ""
    strength: int = 3
    own: bool = True


class _HasNeedle(Protocol):
    @property
    def needle(self) -> str: ...


Row = TypeVar("Row", bound=_HasNeedle)


def by_needle(rows: Iterable[Row]) -> Callable[[str], tuple[Row, ...]]:
    """What gives the rows of which a needle (several: `a|b`) is in a text, in lower case.

    Most texts differ from others in numbers alone.
    """
    needles = tuple((row.needle.translate(ONE_DIGIT).split("|"), row) for row in rows)

    @lru_cache(maxsize=2048)
    def of_kind(kind: str) -> tuple[Row, ...]:
        return tuple(row for each, row in needles if any(needle in kind for needle in each))

    def of_text(text: str) -> tuple[Row, ...]:
        kind = text.lower().translate(ONE_DIGIT)
        return of_kind(kind) if len(kind) <= _MOST_CACHED else of_kind.__wrapped__(kind)

    return of_text


KNOWN_ERRORS: tuple[KnownError, ...] = tuple(
    KnownError(label, needle, lazy_pattern(text), effect, plain, source, strength, own)
    for label, needle, text, effect, plain, source, strength, own in _ROWS
)
_rows_for = by_needle(KNOWN_ERRORS)


def known_error(text: str) -> KnownError | None:
    """The row for an error text; None if it is unknown, which does not mean harmless.

    >>> known_error("CUDA error: uncorrectable ECC error encountered").label
    'gpu_ecc'
    """
    row = next((row for row in _rows_for(text[:4096]) if row.text.search(text)), None)
    if row is None and "cu" in text[:4096].lower() and (found := _CODE.search(text[:4096])):
        row = _rows_by_code().get(int(found[1] or found[2] or found[3]))
    return row


@cache
def _rows_by_code() -> dict[int, KnownError]:
    """By the number alone: "CUDA error 804", "error code: 214"."""
    return {int(code): row for row in KNOWN_ERRORS for code in re.findall(r"CUDA (\d{3})", row.source)}


def find_label(text: str) -> tuple[str, int] | None:
    """The label of an error text or of an Xid that is named, and where in the text that begins; None if it is unknown.

    >>> find_label("NVRM: Xid (PCI:0000:4b:00): 79, pid=77"), find_label("Connection reset by peer")
    (('gpu_lost', 6), None)
    """
    if row := known_error(text):
        found = row.text.search(text)
        return row.label, found.start() if found else 0
    if (code := xid_code(text)) is None:
        return None
    label = "gpu_lost" if code == 79 else "gpu_ecc" if code in ECC_XIDS else "gpu_xid"
    return label, text.find("Xid")


def xid_code(text: str) -> int | None:
    """The Xid that a line names; None if it names none."""
    found = _XID.search(text) if "Xid" in text else None
    return int(found[1]) if found else None
