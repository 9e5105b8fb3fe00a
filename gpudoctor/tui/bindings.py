"""The keys of the screen; the footer, the command palette and the help screen are built from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

from gpudoctor.tui.labels import THEMES
from gpudoctor.tui.panes.pane import TABS

if TYPE_CHECKING:
    from gpudoctor.tui.app import Doctor

# only for a recording
PLAYBACK_ACTIONS = ("pause", "faster", "seek")
# disabled while a modal screen is open
MAIN_ACTIONS = ("help", "page", "run_one", "run_all", "level", "problems", "filter", "save", "tab", *PLAYBACK_ACTIONS)
# what a read-only view does not offer
REFUSED_ACTIONS = ("run_one", "run_all", "run_domain", "measure", "level", "save", "export", "compare")

KEYS: tuple[BindingType, ...] = (
    Binding("q", "quit", "Quit"),
    Binding("ctrl+q", "quit", "Quit", show=False, priority=True),  # Textual's own, with a text for the help screen
    Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
    Binding("question_mark", "help", "Help", key_display="?"),
    Binding("c", "cancel", "Cancel", tooltip="End the check that runs, with what it has learnt"),
    Binding("space", "pause", "Pause", tooltip="Pause the recording, or go on"),
    Binding("r", "run_one", "Check", tooltip="Run the chosen check again"),
    Binding("e", "page", "Explain", tooltip="The page of the chosen check"),
    Binding("R", "run_all", "All", tooltip="Run all checks, as deep as last chosen (quick at first)"),
    Binding("l", "level", "Level", tooltip="Choose a level and run all checks at it"),
    Binding("f", "problems", "Problems", tooltip="Only problems in the check list, or all again"),
    Binding("slash", "filter", "Filter", key_display="/", tooltip="Filter the check list"),
    Binding("s", "save", "Save", tooltip="Save the report as JSON or HTML"),
    Binding("t", "theme", "Theme", tooltip="Next theme: dark, light, colour-blind"),
    Binding("x", "export", "Export", show=False, tooltip="Export the screen as SVG into the working directory"),
    *(
        Binding(str(n), f"tab('{name}')", title, show=False, tooltip=f"Turn to {title}")
        for n, (name, title) in enumerate(TABS, 1)
    ),
    Binding("plus,equals_sign", "faster(1)", "Faster", key_display="+", show=False),
    Binding("minus", "faster(-1)", "Slower", key_display="-", show=False),
    Binding("left", "seek(-1)", "10 s back", show=False),
    Binding("right", "seek(1)", "10 s on", show=False),
    Binding("home", "seek(-1e9)", "To the beginning", show=False),
    Binding("end", "seek(1e9)", "To the end", show=False),
    Binding("ctrl+z", "suspend_process", "Suspend", show=False, tooltip="Back to the shell; fg returns"),
)
# (heading, [(keys, description)])
Group = tuple[str, list[tuple[str, str]]]
# every widget of Textual that scrolls has these; the obvious keys
_SCROLLING = ("scroll_", "page_")


def palette_commands(app: Doctor) -> Iterable[SystemCommand]:
    """The commands of the palette: everything that has a key."""
    for name, title in TABS:
        yield SystemCommand(f"Show {title}", f"Turn to the tab {title}", lambda name=name: app.action_tab(name))
    for theme in THEMES:
        yield SystemCommand(f"Theme: {theme}", "Change the colours", lambda theme=theme: setattr(app, "theme", theme))
    if not app.state.read_only:
        yield SystemCommand("Run all checks", f"At level {app.state.level}", app.action_run_all)
        yield SystemCommand("Run all checks at a level", "Quick, standard, full or burn", app.action_level)
        yield SystemCommand("Compare", "With a saved report, or with the run before", app.action_compare)
        yield SystemCommand("Save the report", "As JSON or HTML", app.action_save)
        yield SystemCommand("Export the screen", "As SVG into the working directory", app.action_export)
    if app.state.running is not None:
        yield SystemCommand("Cancel the check", "End it with what it has learnt", app.action_cancel)
    yield SystemCommand("Only problems", "In the check list", app.action_problems)
    yield SystemCommand("Filter checks", "In the check list", app.action_filter)
    yield SystemCommand("Keys", "All keys, and what the words mean", app.action_help)
    yield SystemCommand("Quit", "End gpudoctor", app.action_quit)


class KeyLine(Footer):
    """The footer with the keys that fit whole; `?` shows all of them.

    It is built again only if a key or its width has changed: textual builds it anew whenever the focus moves.
    """

    _built: list[tuple[Binding, bool, str]] | None = None
    _width = 0

    def compose(self) -> ComposeResult:
        room = self._width = self.app.size.width
        keys = list(super().compose())
        # the last blank may be cut, the way to all keys not
        room += 1 - sum(_columns(key) for key in keys if isinstance(key, FooterKey) and key.action == "help")
        for key in keys:
            self._built = _shown_keys(self.screen)
            if isinstance(key, FooterKey):
                if _refused(self.app, key.action):
                    continue
                room -= 0 if key.action == "help" else _columns(key)
                if room < 0 and key.action != "help":
                    continue
            yield key

    def on_resize(self) -> None:
        if self._built is not None and self.app.size.width != self._width:
            super().bindings_changed(self.screen)

    def bindings_changed(self, screen: Screen[Any]) -> None:
        if screen is not self.screen or _shown_keys(screen) != self._built:
            super().bindings_changed(screen)


def _columns(key: FooterKey) -> int:
    return cell_len(f"{key.key_display} {key.description} ")


def _shown_keys(screen: Screen[Any]) -> list[tuple[Binding, bool, str]]:
    shown = (active for active in screen.active_bindings.values() if active.binding.show)
    return [(active.binding, active.enabled, active.tooltip) for active in shown]


def groups_of(app: App[Any]) -> list[Group]:
    """The bindings of the App, of the focused widget and its ancestors, and of every other visible widget."""
    screen = app.screen
    nodes: list[DOMNode] = []
    if screen.focused is not None:
        nodes += [node for node in screen.focused.ancestors_with_self if node is not app and node is not screen]
    nodes += [widget for widget in screen.query("*") if widget.is_on_screen and widget not in nodes]
    groups: dict[str, list[tuple[str, str]]] = {}
    for node in (*nodes, app):
        if not type(node).__module__.startswith("gpudoctor."):
            continue
        rows = groups.setdefault(_heading(app, node), [])
        rows += [row for row in _rows(app, node) if row not in rows]
    everywhere = groups.pop("Everywhere", [])
    return [("Everywhere", everywhere), *(group for group in groups.items() if group[1])]


def _rows(app: App[Any], node: DOMNode) -> list[tuple[str, str]]:
    actions: dict[str, tuple[list[str], str]] = {}
    for key, bindings in node._bindings.key_to_bindings.items():
        for binding in bindings:
            if (
                binding.system
                or not binding.description
                or not _enabled(node, binding)
                or _refused(app, binding.action)
            ):
                continue
            if binding.action.startswith(_SCROLLING):
                continue
            keys, _ = actions.setdefault(binding.action, ([], binding.tooltip or binding.description))
            keys.append(app.get_key_display(binding) if binding.key_display or "," not in key else key)
    return [(" ".join(keys), text) for keys, text in actions.values()]


def _refused(app: App[Any], action: str) -> bool:
    """Whether the view is read-only and would refuse this action; its key still says why."""
    state = getattr(app, "state", None)
    return state is not None and state.read_only and action.rpartition(".")[2] in REFUSED_ACTIONS


def _enabled(node: DOMNode, binding: Binding) -> bool:
    name, _, rest = binding.action.partition("(")
    return "." in name or node.check_action(name, (rest.rstrip(")"),) if rest else ()) is not False


def _heading(app: App[Any], node: DOMNode) -> str:
    if node is app:
        return "Everywhere"
    titles = (getattr(each, "border_title", None) for each in node.ancestors_with_self)
    return next((f"In {title}" for title in titles if title), "On this tab")
