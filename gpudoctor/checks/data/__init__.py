"""data.*: do samples come as fast as the GPUs consume them?"""

CHECKS = {
    "data.loader": ("full", "A DataLoader feeds the GPUs, with enough workers and room for them"),
}
