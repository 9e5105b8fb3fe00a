"""Every key of the screen; the footer and the help screen are made of these."""

from __future__ import annotations

from textual.binding import Binding, BindingType

from gpudoctor.tui.tabs import TABS

# only a recording has a time to turn to
PLAYBACK_ACTIONS = ("pause", "faster", "seek", "seek_end")
# not to be done while a modal screen is open
MAIN_ACTIONS = ("help", "run_one", "run_all", "level", "problems", "filter", "save", "tab", *PLAYBACK_ACTIONS)

KEYS: tuple[BindingType, ...] = (
    Binding("q", "quit", "Quit"),
    Binding("question_mark", "help", "Help", key_display="?"),
    Binding("c", "cancel", "Cancel", tooltip="End the check that runs, with what it has learnt"),
    Binding("space", "pause", "Pause", tooltip="Pause the recording, or go on"),
    Binding("r", "run_one", "Check", tooltip="Run the chosen check again"),
    Binding("R", "run_all", "All", tooltip="Run all checks, as deep as last chosen (quick at first)"),
    Binding("l", "level", "Level", tooltip="Choose a level and run all checks at it"),
    Binding("f", "problems", "Problems", tooltip="Only problems in the check list, or all again"),
    Binding("slash", "filter", "Filter", key_display="/", tooltip="Filter the check list"),
    Binding("s", "save", "Save", tooltip="Save the report as JSON or HTML"),
    Binding("t", "theme", "Theme", tooltip="Next theme: dark, light, colour-blind"),
    Binding("x", "export", "Export", tooltip="Export the screen as SVG into the working directory"),
    *(
        Binding(str(n), f"tab('{name}')", title, show=False, tooltip=f"Turn to {title}")
        for n, (name, title) in enumerate(TABS, 1)
    ),
    Binding("plus,equals_sign", "faster(1)", "Faster", key_display="+", show=False),
    Binding("minus", "faster(-1)", "Slower", key_display="-", show=False),
    Binding("left", "seek(-1)", "10 s back", show=False),
    Binding("right", "seek(1)", "10 s on", show=False),
    Binding("home", "seek_end(-1)", "To the beginning", show=False),
    Binding("end", "seek_end(1)", "To the end", show=False),
    Binding("ctrl+z", "suspend_process", "Suspend", show=False, tooltip="Back to the shell; fg returns"),
)
