"""Bytes, rates, durations, times and lists of indices as text: the formatters of reports, plans and the screen."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence

KIB, MIB, GIB = 2**10, 2**20, 2**30


def size_text(size_bytes: int) -> str:
    """
    >>> size_text(1 << 20), size_text(4012), size_text(1 << 30)
    ('1 MiB', '4012 B', '1 GiB')
    """
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes / MIB:.2f} MiB" if size_bytes >= MIB else f"{size_bytes} B"


def short_size(size_bytes: int) -> str:
    """In three significant digits.

    >>> short_size(64 * MIB), short_size(4012), short_size(1023 * MIB)
    ('64 MiB', '3.92 KiB', '1023 MiB')
    """
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= factor:
            return f"{three_digits(size_bytes / factor)} {unit}"
    return f"{size_bytes} B"


def mib_text(size_bytes: float) -> str:
    """
    >>> mib_text(256 << 20), mib_text(1.5 * MIB), mib_text(2 << 40)
    ('256 MiB', '1.5 MiB', '2097152 MiB')
    """
    size_mib = size_bytes / MIB
    return f"{size_mib:g} MiB" if size_mib < 1e5 else f"{size_mib:.0f} MiB"


def short_mib(size_bytes: float) -> str:
    """
    >>> short_mib(1.256 * MIB), short_mib(1 << 30)
    ('1.26 MiB', '1024 MiB')
    """
    return f"{three_digits(size_bytes / MIB)} MiB"


def whole_mib_text(size_bytes: float) -> str:
    """
    >>> whole_mib_text(68 << 30), whole_mib_text(1.6 * MIB)
    ('69632 MiB', '2 MiB')
    """
    return f"{size_bytes / MIB:.0f} MiB"


def gib_number(size_bytes: float, digits: int = 1) -> str:
    """The number alone, for a column that names the unit.

    >>> gib_number(80 * GIB), gib_number(79.6 * GIB, 0)
    ('80.0', '80')
    """
    return f"{size_bytes / GIB:.{digits}f}"


def gib_text(size_bytes: float, digits: int = 1) -> str:
    """
    >>> gib_text(1.5 * 2**30), gib_text(503.4 * GIB, 0)
    ('1.5 GiB', '503 GiB')
    """
    return f"{gib_number(size_bytes, digits)} GiB"


def three_digits(value: float) -> str:
    """Three significant digits, more from 1000 on: large figures get no exponent.

    >>> three_digits(0.01133), three_digits(45.0), three_digits(999.9), three_digits(3350)
    ('0.0113', '45', '1000', '3350')
    """
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def figure_text(value: float) -> str:
    """Up to three significant digits; only 0 itself is shown as 0.

    >>> figure_text(0.0004), figure_text(0.0521), figure_text(1.234), figure_text(45.61), figure_text(481.4)
    ('<0.01', '0.05', '1.23', '45.6', '481')
    """
    if 0 < value < 0.01:
        return "<0.01"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def short_figure(value: float) -> str:
    """A figure from 0 to 9999 in at most four characters.

    >>> [short_figure(value) for value in (0, 0.001, 0.0521, 0.999, 1.234, 9.97, 45.61, 99.97, 1800)]
    ['0', '<.01', '.05', '1.0', '1.2', '10.0', '45.6', '100', '1800']
    """
    if value == 0:
        return "0"
    if value < 0.01:
        return "<.01"
    if value < 0.995:
        return f"{value:.2f}".removeprefix("0")
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def rate_number(gb_s: float | None) -> str:
    """GB/s in at most 3 characters, 4 from 1000 on.

    >>> rate_number(3.14), rate_number(0.04), rate_number(26.6), rate_number(131.2), rate_number(None)
    ('3.1', '0.0', '27', '131', '-')
    """
    if gb_s is None:
        return "-"
    return f"{gb_s:.1f}" if gb_s < 9.95 else f"{gb_s:.0f}"


def rate_text(gb_s: float) -> str:
    """Bus bandwidth in GB/s, and in Gbit/s, the unit in which links between nodes are sold.

    >>> rate_text(0.01133)
    '0.0113 GB/s (0.0906 Gbit/s)'
    >>> rate_text(181.2)
    '181 GB/s (1450 Gbit/s)'
    """
    return f"{three_digits(gb_s)} GB/s ({three_digits(gb_s * 8)} Gbit/s)"


def time_text(us: float, *, exact: bool = False) -> str:
    """Microseconds in a suitable unit, with two digits; `exact`: with three.

    >>> time_text(12.34), time_text(123.4), time_text(1234.5), time_text(12_345.6), time_text(2.5e6)
    ('12 us', '123 us', '1.2 ms', '12 ms', '2.5 s')
    >>> time_text(9_960.0), time_text(999.6), time_text(999.9, exact=True), time_text(999_600, exact=True)
    ('10 ms', '1.0 ms', '1 ms', '1 s')
    >>> time_text(12.34, exact=True), time_text(1234.5, exact=True), time_text(1.5e9, exact=True)
    ('12.3 us', '1.23 ms', '1500 s')
    """
    for unit, factor in (("s", 1e6), ("ms", 1e3)):
        if us >= 0.9995 * factor:  # three digits round up to the next unit
            return f"{three_digits(us / factor) if exact else rate_number(us / factor)} {unit}"
    return f"{three_digits(us) if exact else f'{us:.0f}'} us"


def seconds_text(seconds: float) -> str:
    """
    >>> seconds_text(0.0421), seconds_text(3.14159), seconds_text(0.9999), seconds_text(1200)
    ('42.1 ms', '3.14 s', '1 s', '1200 s')
    """
    return f"{three_digits(seconds * 1000)} ms" if seconds < 0.9995 else f"{three_digits(seconds)} s"


def duration_text(seconds: float) -> str:
    """Rounded to seconds.

    >>> duration_text(9.4), duration_text(90), duration_text(600)
    ('9 s', '1 min 30 s', '10 min 0 s')
    """
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def rounded_duration_text(seconds: float) -> str:
    """Rounded to minutes from 90 s on.

    >>> rounded_duration_text(45), rounded_duration_text(300), rounded_duration_text(5400)
    ('45 s', '5 min', '1 h 30 min')
    """
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min".replace(" 0 min", "")


def rfc3339(time_s: float) -> str:
    """A time in seconds since 1970 as an RFC 3339 timestamp in UTC, to the second.

    >>> rfc3339(0.5)
    '1970-01-01T00:00:00+00:00'
    """
    return datetime.datetime.fromtimestamp(time_s, datetime.timezone.utc).isoformat(timespec="seconds")


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The first and last of each run of consecutive numbers; they ascend.

    >>> runs([0, 1, 2, 5])
    [(0, 2), (5, 5)]
    """
    found: list[tuple[int, int]] = []
    for number in numbers:
        start = found.pop()[0] if found and number == found[-1][1] + 1 else number
        found.append((start, number))
    return found


def ranges(numbers: Iterable[int], between: str = ", ") -> str:
    """Ascending indices, with consecutive ones joined to ranges.

    >>> ranges([0, 1, 2, 5]), ranges([0, 1, 2, 5], ",")
    ('0-2, 5', '0-2,5')
    """
    return between.join(str(first) if first == last else f"{first}-{last}" for first, last in runs(numbers))


def option_ranges(numbers: Iterable[int]) -> str:
    """Indices in the form that --gpu accepts.

    >>> option_ranges([0, 1, 2, 5])
    '0-2,5'
    """
    return ranges(numbers, ",")


def counted(number: int, word: str) -> str:
    """
    >>> counted(1, "node"), counted(0, "node")
    ('1 node', '0 nodes')
    """
    return f"{number} {word}{'s' * (number != 1)}"


def listed(names: Sequence[str], most: int) -> str:
    """The first of them, and how many more there are.

    >>> listed(["a", "b", "c", "d"], 2), listed(["a", "b"], 2)
    ('a, b and 2 more', 'a, b')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
