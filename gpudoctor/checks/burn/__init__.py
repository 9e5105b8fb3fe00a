"""burn.*: what repeating the load for minutes reveals."""

CHECKS = {
    "burn.drift": ("burn", "Sustained load does not make the GPUs slower"),
    "burn.counters": ("burn", "Nothing counts errors under sustained load"),
}
