"""Short labels, signs, styles and themes of the screen, bars and graphs on fixed scales."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal, TypeVar

from rich.style import Style
from textual.content import Content, Span
from textual.theme import Theme
from textual.widget import Widget

from gpudoctor.checks.core.finding import WORST_FIRST, Finding, Status
from gpudoctor.text.output import printable
from gpudoctor.text.units import rate_number

# colour never carries the meaning alone: the word is always shown
STYLE_OF = {"FAIL": "fail", "LOST": "fail", "warn": "warn", "unknown": "unknown", "ok": "ok", "-": "dim"}

# clock event reasons, most serious first; those that a healthy idle GPU shows come last
_HELD = {
    "hw-thermal": "hot (hw)",
    "hw-power-brake": "brake",
    "hw-slowdown": "hw slow",
    "sw-thermal": "hot",
    "sw-power-cap": "power cap",
    "sync-boost": "sync",
    "application-clocks": "set",
    "display-clocks": "display",
    "idle": "idle",
}
LEVELS = "▁▂▃▄▅▆▇█"
T = TypeVar("T")
# "low": a figure far below its peers that no check has judged
Tone = Literal["fail", "unknown", "warn", "pass", "skip", "low", "head", "quiet"]

WORDS = {Status.FAIL: "FAIL", Status.UNKNOWN: "unknown", Status.WARN: "warn", Status.PASS: "PASS", Status.SKIP: "skip"}
_GREY = "$foreground 65%"  # not $text-muted: as a style of Content it is brighter than the text beside it
# the tones above, and those of widgets that draw their lines themselves
_COLOURED: dict[str, str] = {
    "fail": "bold $text-error",
    "unknown": "bold $text-secondary",
    "warn": "$text-warning",
    "pass": "$text-success",
    "ok": "$text-success",
    "skip": _GREY,
    "quiet": _GREY,
    "dim": _GREY,
    "detail": "$foreground 75%",
    "rest": "$foreground 25%",
    "low": "$text-error",
    "head": "bold",
    "strong": "bold",
    "title": "bold $text-primary",
    "bar-low": "$primary 40%",
    "bar": "$primary 75%",
    "bar-high": "$success",
    "tag": "bold reverse $text-warning",
    "kernel": "bold $text-warning",
    "event": "$text-accent",
    "cursor": "on $primary-muted",
    "cursor-focused": "$block-cursor-foreground on $block-cursor-background",
}
# Textual's grey of an error colour is darker than that of plain text
_PLAIN: dict[str, str] = {
    **dict.fromkeys(("warn", "head", "strong", "title", "kernel"), "bold"),
    **dict.fromkeys(("fail", "tag"), "bold reverse"),
    "unknown": "bold underline",
    "cursor": "underline",
    "cursor-focused": "reverse",
}
# in the themes dark, light and colour-blind, where blue is good and orange bad: distinguishable with every common
# colour vision deficiency (Okabe and Ito)
_THEME_COLOURS = {
    "primary": ("#4f9fd9", "#1f5f99", "#56b4e9"),
    "secondary": ("#b48ead", "#6b3d8f", "#cc79a7"),
    "accent": ("#e0b25c", "#9a5b00", "#f0e442"),
    "foreground": ("#dce3ea", "#1b232b", "#e6e6e6"),
    "background": ("#10151b", "#fbfbf9", "#101418"),
    "surface": ("#171d25", "#f3f3ef", "#171c21"),
    "panel": ("#1f2833", "#e4e7e9", "#222a32"),
    "success": ("#7fc97f", "#1e7a34", "#56b4e9"),
    "warning": ("#e9b44c", "#8f5a00", "#f0e442"),
    "error": ("#ff6b6b", "#b3161f", "#e69f00"),
}
# their names are the values of `--theme`
THEMES = {
    name: Theme(name, **{role: each[n] for role, each in _THEME_COLOURS.items()}, dark=name != "light")  # type: ignore[arg-type]
    for n, name in enumerate(("dark", "light", "colour-blind"))
}


def held(events: Sequence[str] | None) -> str:
    """The most serious reason why clocks are below their maximum, in at most 9 characters.

    >>> held(("idle", "sw-thermal")), held(()), held(None), held(("0x200",))
    ('hot', '', '-', '0x200')
    """
    if events is None:
        return "-"
    word = next((word for reason, word in _HELD.items() if reason in events), None)
    return word or (printable(events[0][:9])[:9] if events else "")


def bar(share: float | None, width: int) -> tuple[str, str]:
    """The filled and the empty part of a bar for a share from 0 to 1; blank if nothing was read.

    No sign fills its cell to the top, so that the bars of adjacent rows do not merge; the height of the last one is the
    rest of the share.

    >>> bar(0.5, 4), bar(0.94, 4), bar(0.97, 4), bar(1.2, 2), bar(None, 2)
    (('▇▇', '▁▁'), ('▇▇▇▅', ''), ('▇▇▇▆', ''), ('▇▇', ''), ('', '  '))
    """
    if share is None:
        return "", " " * width
    steps = len(LEVELS) - 1
    full, part = divmod(round(min(max(share, 0.0), 1.0) * width * steps), steps)
    filled = LEVELS[steps - 1] * full + (LEVELS[part - 1] if part else "")
    return filled, LEVELS[0] * (width - len(filled))


def load_tone(share: float | None) -> str:
    """The tone of a bar: the brighter, the higher."""
    return "bar-high" if (share or 0) >= 0.9 else "bar" if (share or 0) >= 0.5 else "bar-low"


def graph(values: Sequence[float | None], low: float, high: float, height: int = 1) -> list[str]:
    """The lines of a graph, top first, on the fixed scale `low` to `high`; None leaves a blank column.

    >>> graph([0, 50, 100, None], 0, 100), graph([0, 50, 100], 0, 100, 2)
    (['▁▅█ '], [' ▁█', '▁██'])
    """
    steps = len(LEVELS)
    span = high - low
    lines = [[" "] * len(values) for _ in range(height)]
    for x, value in enumerate(values):
        if value is None or span <= 0:
            continue
        level = round(min(max((value - low) / span, 0.0), 1.0) * (height * steps - 1)) + 1
        for y in range(height):
            inside = level - y * steps
            if inside > 0:
                lines[height - 1 - y][x] = LEVELS[min(inside, steps) - 1]
    return ["".join(line) for line in lines]


def both(received: float | None, sent: float | None) -> str:
    """GB/s received/sent; one dash if neither was read."""
    return "-" if received is None and sent is None else f"{rate_number(received)}/{rate_number(sent)}"


def clock(at_s: float) -> str:
    """HH:MM:SS in this machine's time zone."""
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def style_of(tone: str | Status, no_color: bool) -> str:
    """A style for textual.content; `no_color` is the App's."""
    name = tone.value if isinstance(tone, Status) else tone
    return (_PLAIN if no_color else _COLOURED).get(name, "")


def in_styles(content: Content, no_color: bool) -> Content:
    """The content, whose spans are in tones, in the styles of these."""
    spans = [Span(start, end, style_of(tone, no_color)) for start, end, tone in content.spans if isinstance(tone, str)]
    return Content(content.plain, [span for span in spans if span.style])


def drawn_style(widget: Widget, *tones: str) -> Style:
    """The style of text that a widget draws itself: its own, with that of each tone over it."""
    style = widget.visual_style
    for tone in tones:
        style += widget.app.stylesheet.parse_style(style_of(tone, widget.app.no_color))
    return style.rich_style


def worst_first(finding: Finding) -> int:
    """For sorting: FAIL first."""
    return WORST_FIRST.index(finding.status)


def following(names: Sequence[T], now: T) -> T:
    """The name after `now`; the first one after the last or an unknown name."""
    return names[(names.index(now) + 1) % len(names)] if now in names else names[0]
