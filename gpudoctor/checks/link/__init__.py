"""link.*: measured copies between host and GPU, and between GPUs."""

# level and title of each check: a run of a lower level needs nothing else of this domain
CHECKS = {
    "link.host": ("full", "Copies between host and GPU are as fast as the link allows"),
    "link.peer": ("full", "Every GPU reaches every other fast, and every byte arrives right"),
}
