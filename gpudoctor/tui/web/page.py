"""The pages served to a browser: the terminal, and the one that exchanges the token for a cookie."""

from __future__ import annotations

from gpudoctor.report.html.elements import document, element

_FONT_SIZE = 16


def index_page(title: str, websocket_url: str, font_size: str) -> str:
    """The terminal page. textual-serve's script needs its class, the two data attributes and #start.

    Everything is loaded from this server.
    """
    size = (
        int(font_size)
        if font_size.isascii() and font_size.isdecimal() and 6 <= int(font_size[:4]) <= 48
        else _FONT_SIZE
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"gpudoctor {title}"),
        element("link", rel="icon", href="data:,"),
        # the terminal measures its font only once, when the page loads
        element(
            "link",
            rel="preload",
            as_="font",
            type="font/ttf",
            crossorigin="anonymous",
            href="/static/fonts/RobotoMono-VariableFont_wght.ttf",
        ),
        element("link", rel="stylesheet", href="/static/css/xterm.css"),
        element("link", rel="stylesheet", href="/page.css"),
        element("script", src="/static/js/textual.js"),
        element("script", src="/page.js"),
    )
    terminal = element(
        "div", id="terminal", class_="textual-terminal", data_session_websocket_url=websocket_url, data_font_size=size
    )
    body = element(
        "body",
        element(
            "noscript", "The screen of gpudoctor needs JavaScript; a page without is: gpudoctor check --format html"
        ),
        element("p", f"gpudoctor: opening {title}", class_="opening"),
        element("p", "The session has ended. ", element("a", "Start it again", href="/"), class_="closed"),
        element("span", id="start"),
        terminal,
    )
    return document(element("html", head, body, lang="en"))


def open_page() -> str:
    """Redirects to the screen. A request from this page is same-site, so the browser sends its new cookie."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="refresh", content="0; url=/"),
        element("title", "gpudoctor"),
        element("link", rel="stylesheet", href="/page.css"),
    )
    body = element(
        "body", element("p", "The token is right. ", element("a", "Go on to the screen", href="/"), class_="opening")
    )
    return document(element("html", head, body, lang="en"))
