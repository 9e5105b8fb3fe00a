"""What time it is, so that an age is honest: no step of the wall clock, no suspend and no reboot makes it smaller."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

import msgspec


class Moment(msgspec.Struct, frozen=True):
    """A moment: the boot it was in, the seconds since that boot (suspends included), and Unix time for people.

    Two moments of one boot have a distance whatever was done to the wall clock; those of two have none.
    """

    boot: str
    since_boot_s: float
    unix_s: float

    def age_s(self, now: Moment) -> float | None:
        """Seconds from this moment to `now`; None where they are not of one boot, or in the wrong order."""
        age = now.since_boot_s - self.since_boot_s
        return age if self.boot == now.boot and age >= 0 else None


def now() -> Moment:
    """This moment."""
    return Moment(_boot(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time())


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        # unknown: no moment that was kept in a file is of this boot
        return f"unknown since {time.time()}"
