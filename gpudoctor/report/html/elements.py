"""Elements of the page. Text and attributes are data that only the serializer turns into HTML, with escaping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, tostring

from gpudoctor.checks.core.finding import Status
from gpudoctor.output import printable

Child = Element | str | None
Value = str | int | float | bool | None

# the browser loads, runs and sends nothing, whatever the page contains
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

# inline elements; all others end with a newline, so that a diff of two pages is readable
_WITHIN = frozenset(("b", "code", "i", "span", "strong"))


def element(tag: str, *children: Child, **attributes: Value) -> Element:
    """An element with texts and elements as children; None is left out.

    Attributes: `class_` is class, `aria_label` is aria-label, True is an attribute without a value. Control characters
    are escaped, since names come from outside.
    """
    made = Element(tag)
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        text = "" if value is True else f"{value:g}" if isinstance(value, float) else str(value)
        made.set(name.rstrip("_").replace("_", "-"), printable(text))
    if tag not in _WITHIN:
        made.tail = "\n"
    append(made, *children)
    return made


def append(parent: Element, *children: Child) -> None:
    """Append texts and elements to an element."""
    for child in children:
        if child is None:
            continue
        if isinstance(child, str):
            text = printable(child)
            if len(parent):
                parent[-1].tail = (parent[-1].tail or "") + text
            else:
                parent.text = (parent.text or "") + text
        else:
            parent.append(child)


def lines(text: str, **attributes: Value) -> Element:
    """Preformatted text; newlines are kept, other control characters escaped."""
    made = element("pre", **attributes)
    # HTML parsers drop a newline right after <pre>
    made.text = "\n" + "\n".join(printable(line) for line in text.split("\n"))
    return made


def page(title: str, *body: Child, css: str = "") -> str:
    """A page with our common style, followed by `css`; it contains no script and loads nothing."""
    style = element("style")
    style.text = "\n" + (Path(__file__).parent / "page.css").read_text(encoding="utf-8") + css
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        style,
    )
    return document(element("html", head, element("body", *body), lang="en"))


def document(root: Element) -> str:
    """The whole page as text, ending in a newline."""
    return "<!DOCTYPE html>\n" + tostring(root, encoding="unicode", method="html").rstrip("\n") + "\n"


def chip(status: Status) -> Element:
    """The status as a coloured word."""
    return element("span", status.value.upper(), class_=f"chip {status.value}")


def table(
    head: Sequence[Child], rows: Iterable[Sequence[Child]], *, caption: str | None = None, class_: str = "figures"
) -> Element:
    """A table that scrolls sideways on narrow screens; the first cell of each row is its heading."""
    made = element("table", class_=class_)
    if caption:
        append(made, element("caption", caption))
    append(made, element("thead", element("tr", *(element("th", cell, scope="col") for cell in head))))
    body = element("tbody")
    for first, *rest in rows:
        append(body, element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in rest)))
    append(made, body)
    return scroll(made, caption or "table")


def scroll(wide: Element, label: str) -> Element:
    """A box in which a wide element can be scrolled, also by keyboard."""
    return element("div", wide, class_="scroll", tabindex=0, role="region", aria_label=label)


def tally(tiles: Iterable[tuple[str, str, int]]) -> Element:
    """Tiles with counts: (status that sets the colour, word, count)."""
    return element(
        "ul",
        *(
            element("li", element("b", str(count)), f" {word}", class_=status if count else "none")
            for status, word, count in tiles
        ),
        class_="tally",
    )


def banner(word: str, text: str, how: str) -> Element:
    """A line across the page; `how` is loud or quiet."""
    return element("p", element("strong", word), f" {text}", class_=f"banner {how}")


def section(title: str, *children: Child, id_: str | None = None) -> Element | None:
    """A titled part of the page; None if it has no content."""
    inside = [child for child in children if child is not None]
    return element("section", element("h2", title), *inside, id_=id_) if inside else None
