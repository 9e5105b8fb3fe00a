"""The help screen: every key that works now, told by the bindings themselves."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import ModalScreen
from textual.widgets import Static

# (heading, [(keys, what they do)])
Group = tuple[str, list[tuple[str, str]]]
_LEGEND = (
    "FAIL not fit   warn costs speed or will cause trouble   unknown tried, and got no answer\n"
    "ok looked, judged, fine   - not judged or not read   LOST the driver no longer tells of it"
)


class HelpScreen(ModalScreen[None]):
    """Keys by where they work; escape, q or ? goes back."""

    DEFAULT_CSS = """
    HelpScreen {
        align: center middle;
        & > VerticalScroll {
            width: 90%; max-width: 92; height: auto; max-height: 90%;
            border: round $primary; background: $surface; padding: 0 1;
            border-title-color: $text-primary; border-title-style: bold;
        }
        Static { height: auto; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,question_mark", "back", "Back")]

    def __init__(self, groups: list[Group]) -> None:
        super().__init__()
        self._groups = groups

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = "Keys"
            box.border_subtitle = "escape goes back"
            yield Static(help_content(self._groups))

    def action_back(self) -> None:
        self.dismiss(None)


def help_content(groups: list[Group]) -> Content:
    """The groups as text, and what the health words mean."""
    width = max((len(keys) for _, rows in groups for keys, _ in rows), default=0)
    parts: list[tuple[str, str] | str] = []
    for heading, rows in groups:
        parts.append((f"{heading}\n", "bold $text-primary"))
        parts += [part for keys, text in rows for part in ((f"  {keys:<{width}}  ", "bold"), f"{text}\n")]
        parts.append("\n")
    parts += [("Words\n", "bold $text-primary"), _LEGEND]
    return Content.assemble(*parts)


def groups_of(app: App[Any]) -> list[Group]:
    """The bindings of the screen below: of what has the focus, of what else is to be seen, and of the App."""
    screen = app.screen
    nodes: list[DOMNode] = []
    if screen.focused is not None:
        nodes += [node for node in screen.focused.ancestors_with_self if node is not app and node is not screen]
    nodes += [widget for widget in screen.query("*") if widget.is_on_screen and widget not in nodes]
    groups: dict[str, list[tuple[str, str]]] = {}
    for node in (*nodes, app):
        # what Textual's own widgets scroll by is no news
        if not type(node).__module__.startswith("gpudoctor."):
            continue
        rows = _rows(app, node)
        if rows:
            groups.setdefault(_heading(app, node), rows)
    everywhere = groups.pop("Everywhere", [])
    return [("Everywhere", everywhere), *groups.items()]


def _rows(app: App[Any], node: DOMNode) -> list[tuple[str, str]]:
    actions: dict[str, tuple[list[str], str]] = {}
    for key, bindings in node._bindings.key_to_bindings.items():
        for binding in bindings:
            if binding.system or not binding.description or not _enabled(node, binding):
                continue
            keys, _ = actions.setdefault(binding.action, ([], binding.tooltip or binding.description))
            keys.append(app.get_key_display(binding) if binding.key_display or "," not in key else key)
    return [(" ".join(keys), text) for keys, text in actions.values()]


def _enabled(node: DOMNode, binding: Binding) -> bool:
    name, _, rest = binding.action.partition("(")
    return "." in name or node.check_action(name, (rest.rstrip(")"),) if rest else ()) is not False


def _heading(app: App[Any], node: DOMNode) -> str:
    if node is app:
        return "Everywhere"
    title = getattr(node, "border_title", None)
    if title:
        return f"In {title}"
    return "On this tab" if type(node).__name__.endswith("Pane") else type(node).__name__
