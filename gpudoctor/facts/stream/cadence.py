"""When `gpudoctor watch` reads what: by what it costs the driver."""

from __future__ import annotations

from math import ceil

import msgspec

# PCIe throughput blocks for 20 ms a call; listing processes costs milliseconds at the driver's lock
PCIE_EVERY_S, SLOW_EVERY_S, LINKS_EVERY_S = 4.0, 5.0, 60.0


class Due(msgspec.Struct, frozen=True):
    """What is read besides what is cheap: PCIe; processes, counters and memory clock; the state of the NVLinks."""

    pcie: bool = True
    slow: bool = True
    links: bool = True


def due(number: int, interval_s: float, place: int = 0) -> Due:
    """What is due at a tick (its number, from 0) for the GPU at this place of the list.

    All at first; later the GPUs take turns with PCIe.
    """

    def comes(every_s: float, turn: int = 0) -> bool:
        every = max(1, ceil(every_s / interval_s))
        return number == 0 or number % every == turn % every

    return Due(comes(PCIE_EVERY_S, place), comes(SLOW_EVERY_S), comes(LINKS_EVERY_S))
