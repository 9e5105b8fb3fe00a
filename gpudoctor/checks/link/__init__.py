"""link.*: measured copies between host and GPU, and between GPUs."""

CHECKS = {
    "link.host": ("full", "Copies between host and GPU are as fast as the link allows"),
    "link.peer": ("full", "Every GPU reaches every other fast, and every byte arrives right"),
}
