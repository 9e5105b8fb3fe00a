"""Tables of patterns: errors of CUDA and ROCm, of TPUs and of Ascend's NPUs."""

from __future__ import annotations

from gpudoctor.diagnose.patterns.rows import LinePattern, rows
from gpudoctor.statements.catalogue import KNOWN_ERRORS, RUNTIME

# Errors of CUDA and the driver: first the warnings of those who can do without, then the catalogue
CUDA = (
    *rows(
        # TensorFlow's allocator
        ("cuda_oom", "ran out of memory", r"ran out of memory trying to allocate .{0,120}(?P<warning>The caller indicates that this is not a failure)", "echo", 1, False),
        ("cuda_oom", "resource exhausted", r"(?P<warning>convolution algorithm): Resource exhausted: Out of memory", "echo", 1, False),
        ("cuda_oom", "of memory|oom when allocating", r"Allocator \(GPU_\d+_bfc\) ran out of memory trying to allocate|Resource exhausted: Out of memory|OOM when allocating tensor with shape"),
        # torch at its start, for any GPU of the machine
        ("cuda_no_kernel_image", "is not compatible with the current", r"with CUDA capability sm_\w+ is not compatible with the current PyTorch installation", "echo", 1, False),
    ),
    *(LinePattern(e.label, e.text, e.needle, strength=e.strength, names_rank=e.own) for e in KNOWN_ERRORS),
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
    ("accelerator_error", "error", rf"\b{RUNTIME}.{{0,80}}\berror\b(?!\s?[:=]?\s?\d+\.\d)|\berror code is 507\d{{3}}\b", "cause", 1),
)  # fmt: skip
