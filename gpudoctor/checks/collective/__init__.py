"""collective.*: measured collectives over all ranks."""

CHECKS = {
    "collective.correct": ("standard", "Sums over all ranks are exactly right"),
    "collective.bandwidth": ("standard", "all_reduce reaches the bandwidth that this kind of node has"),
    "collective.pairs": ("full", "Every two GPUs exchange data as fast as the other pairs of their kind"),
}
