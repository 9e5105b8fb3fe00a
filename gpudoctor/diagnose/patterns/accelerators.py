"""Tables of patterns: errors of CUDA and ROCm, of TPUs and of Ascend's NPUs."""

from __future__ import annotations

from gpudoctor.diagnose.patterns.rows import rows

# Errors of CUDA, reported by torch or directly. Codes and texts: cudaError_t in the CUDA Runtime API reference
CUDA = rows(
    ("gpu_ecc", "uncorrectable", r"[Uu]ncorrectable ECC error (?:encountered|was detected)"),
    # whoever reads a peer's memory reports it: the link or the peer failed
    ("nvlink_failed", "nvlink error", r"[Uu]ncorrectable NVLink error (?:encountered|(?:was )?detected)", "cause", 3, False),
    ("nvlink_failed", "peer gpu memory over nvlink", r"Invalid access of peer GPU memory over nvlink", "cause", 3, False),
    ("nvlink_failed", "cuda_error_contained", r"CUDA_ERROR_CONTAINED", "cause", 3, False),
    ("cuda_device_assert", "assert", r"device-side assert triggered|:\d+: \S+: block: \[\d.{0,60}Assertion `.{0,300}failed"),
    ("cuda_illegal_access", "illegal", r"an illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS"),
    ("cuda_illegal_access", "memory access fault", r"Memory access fault by GPU (?P<gpu>node-\d+)"),
    ("cuda_launch_failure", "illegal", r"an illegal instruction was encountered|CUDA_ERROR_ILLEGAL_INSTRUCTION", "cause", 2),
    ("cuda_launch_failure", "invalid", r"invalid program counter|CUDA_ERROR_INVALID_PC", "cause", 2),
    ("cuda_launch_failure", "launch", r"unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED", "cause", 2),
    ("cuda_launch_failure", "misaligned", r"misaligned address", "cause", 2),
    ("cuda_launch_failure", "launch", r"the launch timed out and was terminated", "cause", 2),
    ("cuda_oom", "memory",
     r"(?:CUDA|HIP) out of memory|(?:CUDA|HIP) error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
     r"|OutOfMemoryError: (?:CUDA|HIP|Allocation)|Cuda failure (?:\d+ )?'out of memory'|cudaMalloc failed: out of memory|Test CUDA failure \S+ 'out of memory'"
     r"|RESOURCE_EXHAUSTED: .{0,120}?[Oo]ut of memory"
     # TensorRT
     r"|Cuda Runtime \(out of memory\)|Error Code \d+: OutOfMemory|Requested amount of GPU memory .{0,80}could not be allocated"),
    ("cuda_oom", "resource_exhausted", r"RESOURCE_EXHAUSTED: .{0,120}?Failed to allocate"),
    # vLLM and SGLang at their start
    ("cuda_oom", "memory", r"Free memory on device .{0,60} is less than desired GPU memory utilization|No available memory for the cache blocks"
     r"|Not enough memory\. Please try to increase --mem-fraction-static", "cause", 3, False),
    # TensorFlow's allocator: first its words for an allocation that it can do without
    ("cuda_oom", "ran out of memory", r"ran out of memory trying to allocate .{0,120}(?P<warning>The caller indicates that this is not a failure)", "echo", 1, False),
    ("cuda_oom", "resource exhausted", r"(?P<warning>convolution algorithm): Resource exhausted: Out of memory", "echo", 1, False),
    ("cuda_oom", "of memory", r"Allocator \(GPU_\d+_bfc\) ran out of memory trying to allocate|Resource exhausted: Out of memory"),
    ("cuda_oom", "oom when allocating", r"OOM when allocating tensor with shape"),
    ("cuda_system_not_ready", "system not yet initialized", r"system not yet initialized", "cause", 3, False),
    ("cuda_driver_mismatch", "driver combination", r"unsupported display driver / cuda driver combination",
     "cause", 3, False),
    ("cuda_driver_mismatch", "driver/library version mismatch", r"[Dd]river/library version mismatch"),
    ("cuda_driver_mismatch", "forward compat", r"forward compatibility was attempted on non supported HW"),
    ("cuda_driver_mismatch", "dso version", r"kernel version \S+ does not match DSO version"),
    ("cuda_driver_too_old", "driver", r"CUDA driver version is insufficient for CUDA runtime version|cudaErrorInsufficientDriver"
     r"|The NVIDIA driver on your system is too old", "cause", 3, False),
    ("cuda_driver_too_old", "unsupported", r"provided PTX was compiled with an unsupported toolchain|CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "cause", 3, False),
    ("cuda_busy", "busy", r"all CUDA-capable devices are busy or unavailable|CUDA-capable device\(s\) is/are busy"),
    ("gpu_isolated", "cuda", r"no CUDA-capable device is detected|No CUDA GPUs are available|"
     r"CUDA_ERROR_NO_DEVICE"),
    ("gpu_isolated", "found no nvidia driver", r"Found no NVIDIA driver on your system"),
    ("gpu_isolated", "invalid device ordinal", r"invalid device ordinal"),
    ("cuda_not_supported", "not supported", r"(?:CUDA|Cuda|cuda)\b.{0,80}operation not supported"),
    ("cuda_no_kernel_image", "kernel image", r"no kernel image is available for execution on the device|device kernel image is invalid", "cause", 3, False),
    # torch's warning at its start, for any GPU of the machine; nvcc and ptxas, where a kernel is built for it
    ("cuda_no_kernel_image", "is not compatible with the current", r"with CUDA capability sm_\w+ is not compatible with the current PyTorch installation", "echo", 1, False),
    ("cuda_no_kernel_image", "no longer supports this gpu", r"PyTorch no longer supports this GPU because it is too old", "echo", 1, False),
    ("cuda_no_kernel_image", "cuda enabled", r"Torch not compiled with CUDA enabled", "cause", 3, False),
    ("cuda_no_kernel_image", "gpu", r"CUDA_ERROR_NO_BINARY_FOR_GPU|[Uu]nsupported gpu architecture '\w+'|Value 'sm_\w+' is not defined for option 'gpu-name'", "cause", 3, False),
    ("cuda_no_kernel_image", "invalid device function", r"invalid device function"),
    ("cuda_no_kernel_image", "success (", r"Check failed: \w+ == (?:cuda|hip)Success \((?:98|209) vs\. 0\)"),
    ("cuda_illegal_access", "hsa_status", r"HSA_STATUS_ERROR_MEMORY_(?:APERTURE_VIOLATION|FAULT)"),
    ("cuda_launch_failure", "hsa_status", r"HSA_STATUS_ERROR_(?:EXCEPTION|ILLEGAL_INSTRUCTION)", "cause", 2),
    ("cuda_launch_failure", "hw exception", r"HW Exception by GPU node-\d+", "cause", 2),
    ("cuda_init_failed", "initialization error", r"(?:CUDA|Cuda|cuda)\b.{0,80}initialization error", "cause", 2),
    ("cuda_init_failed", "unknown error", r"CUDA unknown error|CUDA (?:error|failure)[^a-z]{0,20}unknown error",
     "cause", 2),
    ("cuda_init_failed", "nvml", r"Failed to initialize NVML: ", "cause", 2),
    ("cuda_init_failed", "nvidia-smi has failed", r"NVIDIA-SMI has failed because", "cause", 2),
    ("cuda_init_failed", "failed", r"CUDA backend failed to initialize: |operation cuInit\(0\) failed", "cause", 2),
    ("cuda_init_failed", "cublas", r"CUBLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)", "cause", 1),
    ("cuda_init_failed", "cudnn", r"CUDNN_STATUS_NOT_INITIALIZED|[Cc]ould not create cudnn handle", "cause", 1),
    ("cuda_launch_failure", "cublas", r"CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)", "cause", 1),
    ("gpu_lost", "device handle", r"Unable to determine the device handle for (?:GPU|gpu) ?(?P<gpu>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"),
    ("gpu_lost", "lost", r"GPU is lost\. +Reboot|NVMLError_GpuIsLost|NVML_ERROR_GPU_IS_LOST|(?i:nvml)\w*.{0,60}: GPU is lost"),
)  # fmt: skip

# Errors of TPUs, reported by JAX, PyTorch/XLA and libtpu
TPU = rows(
    ("tpu_fault", "fatal error", r"!!!! FATAL ERROR !!!! for \[(?P<gpu>/dev/\w+)"),
    ("tpu_fault", "physical location", r"\[Physical location: [\w:.-]+\].{0,20}error has occurred", "cause", 2),
    ("tpu_init_failed", "tpu", r"TPU initialization failed|The TPU is already in use by"),
)  # fmt: skip

# Ascend's CANN and its HCCL. Codes: "Error Codes" of CANN's troubleshooting guide; EI0006: a peer did not connect in time
ACCELERATORS = rows(
    ("peer_timeout", "ei0006", r"\bEI0006: ", "wait"),
    ("accelerator_error", "reason: ", r"\bE[A-Z]\d{4}: .{1,300}? Reason: \S", "cause", 2),
    ("accelerator_error", "device:", r"Device:(?P<gpu>\d{1,3}), RankID:(?P<task_rank>\d{1,6})\) ERR\d{5} ", "cause", 1),
    ("accelerator_error", "error", r"\b(?:HCCL|RCCL|XCCL|oneCCL|HCCP|acl[A-Za-z]\w{0,40}) error\b(?!\s?[:=]?\s?\d+\.\d)|\berror code is 507\d{3}\b", "cause", 1),
)  # fmt: skip
