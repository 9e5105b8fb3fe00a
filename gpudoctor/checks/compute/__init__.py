"""compute.*: measured arithmetic and memory of each device."""

CHECKS = {
    "compute.exact": ("full", "Equal work gives equal bits on every device"),
    "compute.pattern": ("full", "Memory keeps what is written to it"),
    "compute.gemm": ("full", "Every GPU multiplies matrices as fast as its siblings"),
    "compute.memory": ("full", "Every GPU moves its own memory as fast as its model should"),
}
