"""PCIe generations: signalling rate and bandwidth of a lane. Source: PCI Express Base Specification."""

# GT/s per lane
GT_S: dict[int, float] = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
# share of the bits that carry data: 8b/10b up to Gen2, 128b/130b up to Gen5, 242 of 256 bytes per FLIT in Gen6
_ENCODING: dict[int, float] = {1: 0.8, 2: 0.8, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 242 / 256}
_GENERATIONS = {speed: generation for generation, speed in GT_S.items()}
# GB/s (1e9) per lane and direction after line coding, to three places as tables print it (7.5625 as 7.563)
LANE_GB_S: dict[int, float] = {
    generation: int(speed * _ENCODING[generation] / 8 * 1000 + 0.5) / 1000 for generation, speed in GT_S.items()
}


def generation_of(speed_gt_s: float) -> int | None:
    """The PCIe generation with this many GT/s per lane; None if no generation has that speed.

    >>> generation_of(16.0)
    4
    """
    return _GENERATIONS.get(round(speed_gt_s, 1))


def link_gb_s(generation: int, lanes: int) -> float | None:
    """Line rate in GB/s (1e9) each way, before packet overhead; None for an unknown generation.

    >>> link_gb_s(4, 8)
    15.75
    """
    if generation not in GT_S:
        return None
    return round(GT_S[generation] * _ENCODING[generation] / 8 * lanes, 2)
