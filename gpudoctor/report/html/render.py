"""Templates to text: what is not in a template is data, escaped, with control characters made visible."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from gpudoctor.report.html.parts import Page, drawable
from gpudoctor.text.output import printable

_TEMPLATES = Path(__file__).parent / "templates"


def render_page(page: Page) -> str:
    """One self-contained page without scripts, which loads nothing; the same page gives the same bytes."""
    return render(_TEMPLATES / "page.html", page=page)


def render(template: Path, **data: object) -> str:
    """A template with data; every text is escaped, and a name that the data does not have is an error."""
    return _environment(template.parent).get_template(template.name).render(data)


@cache
def _environment(folder: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_final,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(lines=_lines, kind=lambda part: type(part).__name__, drawable=drawable)
    return environment


def _final(value: Any) -> Any:
    if isinstance(value, Markup):
        return value
    return printable(f"{value:.6g}" if isinstance(value, float) else str(value))


def _lines(text: str) -> Markup:
    """Newlines are kept, other control characters escaped."""
    return Markup("\n").join(escape(printable(line)) for line in text.split("\n"))
