"""The colour themes: dark, light, colour-blind safe. Their names are the values of `--theme`."""

from __future__ import annotations

from textual.theme import Theme

_DARK = Theme(
    name="dark",
    primary="#4f9fd9",
    secondary="#b48ead",
    accent="#e0b25c",
    foreground="#dce3ea",
    background="#10151b",
    surface="#171d25",
    panel="#1f2833",
    success="#7fc97f",
    warning="#e9b44c",
    error="#ff6b6b",
    dark=True,
)
_LIGHT = Theme(
    name="light",
    primary="#1f5f99",
    secondary="#6b3d8f",
    accent="#9a5b00",
    foreground="#1b232b",
    background="#fbfbf9",
    surface="#f3f3ef",
    panel="#e4e7e9",
    success="#1e7a34",
    warning="#8f5a00",
    error="#b3161f",
    dark=False,
)
# blue for good, orange for bad: distinguishable with every common colour vision deficiency (Okabe and Ito)
_COLOUR_BLIND = Theme(
    name="colour-blind",
    primary="#56b4e9",
    secondary="#cc79a7",
    accent="#f0e442",
    foreground="#e6e6e6",
    background="#101418",
    surface="#171c21",
    panel="#222a32",
    success="#56b4e9",
    warning="#f0e442",
    error="#e69f00",
    dark=True,
)
THEMES = {theme.name: theme for theme in (_DARK, _LIGHT, _COLOUR_BLIND)}


def next_theme(name: str) -> str:
    """The name of the next theme; the first one after the last or an unknown name."""
    names = list(THEMES)
    return names[(names.index(name) + 1) % len(names)] if name in names else names[0]
