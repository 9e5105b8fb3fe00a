"""Errors of CUDA, reported by torch or directly. Codes and texts: cudaError_t in the CUDA Runtime API reference."""

from __future__ import annotations

from gpudoctor.diagnose.patterns.model import rows

CUDA = rows(
    ("gpu_ecc", "uncorrectable", r"[Uu]ncorrectable (?:ECC|NVLink) error (?:encountered|was detected)"),
    ("cuda_device_assert", "assert", r"device-side assert triggered|:\d+: \S+: block: \[\d.{0,60}Assertion `.{0,300}failed"),
    ("cuda_illegal_access", "illegal", r"an illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS"),
    ("cuda_illegal_access", "memory access fault", r"Memory access fault by GPU node-\d+"),
    ("cuda_illegal_access", "illegal", r"an illegal instruction was encountered", "cause", 2),
    ("cuda_launch_failure", "launch", r"unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED", "cause", 2),
    ("cuda_launch_failure", "misaligned", r"misaligned address", "cause", 2),
    ("cuda_launch_failure", "launch", r"the launch timed out and was terminated", "cause", 2),
    ("cuda_oom", "out of memory",
     r"CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
     r"|OutOfMemoryError: (?:CUDA|Allocation)|Cuda failure (?:\d+ )?'out of memory'|cudaMalloc failed: out of memory"
     r"|RESOURCE_EXHAUSTED: Out of memory while trying to allocate"),
    ("cuda_oom", "oom when allocating", r"OOM when allocating tensor with shape"),
    ("cuda_system_not_ready", "system not yet initialized", r"system not yet initialized", "cause", 3, False),
    ("cuda_driver_mismatch", "driver combination", r"unsupported display driver / cuda driver combination",
     "cause", 3, False),
    ("cuda_driver_mismatch", "driver/library version mismatch", r"[Dd]river/library version mismatch"),
    ("cuda_driver_mismatch", "forward compat", r"forward compatibility was attempted on non supported HW"),
    ("cuda_driver_mismatch", "driver", r"CUDA driver version is insufficient for CUDA runtime version"
     r"|The NVIDIA driver on your system is too old"),
    ("cuda_busy", "busy", r"all CUDA-capable devices are busy or unavailable|CUDA-capable device\(s\) is/are busy"),
    ("gpu_isolated", "no cuda", r"no CUDA-capable device is detected|No CUDA GPUs are available|"
     r"CUDA_ERROR_NO_DEVICE"),
    ("gpu_isolated", "invalid device ordinal", r"invalid device ordinal"),
    ("cuda_not_supported", "not supported", r"(?:CUDA|Cuda|cuda)\b.{0,80}operation not supported"),
    ("cuda_not_supported", "no kernel image", r"no kernel image is available for execution on the device"),
    ("cuda_init_failed", "initialization error", r"(?:CUDA|Cuda|cuda)\b.{0,80}initialization error", "cause", 2),
    ("cuda_init_failed", "unknown error", r"CUDA unknown error|CUDA (?:error|failure)[^a-z]{0,20}unknown error",
     "cause", 2),
    ("cuda_init_failed", "cublas", r"CUBLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)", "cause", 1),
    ("cuda_init_failed", "cudnn", r"CUDNN_STATUS_NOT_INITIALIZED", "cause", 1),
    ("cuda_launch_failure", "cublas", r"CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)", "cause", 1),
    ("gpu_lost", "device handle", r"Unable to determine the device handle for (?:GPU|gpu) ?(?P<gpu>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"),
    ("gpu_lost", "lost", r"GPU is lost\. +Reboot|NVMLError_GpuIsLost|NVML_ERROR_GPU_IS_LOST|nvml\w*.{0,60}: GPU is lost"),
)  # fmt: skip
