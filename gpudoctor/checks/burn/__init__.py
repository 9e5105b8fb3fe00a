"""burn.*: what repeating the load for minutes reveals."""

# level and title of each check: a run of a lower level needs nothing else of this domain
CHECKS = {
    "burn.drift": ("burn", "Sustained load does not make the GPUs slower"),
    "burn.counters": ("burn", "Nothing counts errors under sustained load"),
}
