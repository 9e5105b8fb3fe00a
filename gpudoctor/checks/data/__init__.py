"""data.*: do samples come as fast as the GPUs consume them?"""

# level and title of each check: a run of a lower level needs nothing else of this domain
CHECKS = {
    "data.loader": ("full", "A DataLoader feeds the GPUs, with enough workers and room for them"),
}
