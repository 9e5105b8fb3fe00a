"""The site builds without a warning and has every page, and no link is dead."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from gpudoctor.checks.core.registry import registry
from gpudoctor.diagnose.causes import page_names
from tests.needs import find, needs
from tests.subprocesses import completed
from tests.tui.chromium import browsing

pytestmark = [pytest.mark.wide, needs("mkdocs")]
ROOT = Path(__file__).parent.parent.parent


class _Links(HTMLParser):
    """The addresses and the ids of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.addresses.append(value)
            if name == "id" and value:
                self.ids.add(value)


def _read(page: Path) -> _Links:
    links = _Links()
    links.feed(page.read_text(encoding="utf-8"))
    return links


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = completed(command, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_check_and_cause_has_its_page(site: Path) -> None:
    assert {path.stem for path in (site / "checks").glob("*.html")} == {c.id for c in registry()} | {"index"}
    assert {path.stem for path in (site / "causes").glob("*.html")} == {*page_names(), "index"}


def _titles(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for title, below in entry.items() if isinstance(entry, dict) else ():
            yield title
            yield from _titles(below if isinstance(below, list) else [])


def test_the_navigation_shows_every_title(site: Path) -> None:
    """mkdocs treats a page called index.md as the page of its section, and hides its own title."""
    text = (site / "index.html").read_text(encoding="utf-8")
    titles = list(_titles(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert "JSON schemas" in titles
    assert [title for title in titles if not re.search(rf">\s*{re.escape(title)}\s*<", text)] == []


def test_the_start_page_shows_a_report_that_was_just_made(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert "SIMULATED node hgx-h100-8 with pcie-width-x8@5" in text
    assert "1 fault on GPU 5 (1 check failed)" in text


def test_every_configuration_key_says_what_it_means(site: Path) -> None:
    text = (site / "configuration-reference.html").read_text(encoding="utf-8")
    assert "<code>deadline_s</code>" in text
    assert "<td></td>\n</tr>" not in text.split('id="thresholds"')[0]


def test_no_link_leads_nowhere_and_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = {path: _read(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 100
    wrong = []
    for path, links in pages.items():
        for address in links.addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.exists() or (anchor and target in pages and anchor not in pages[target].ids):
                wrong.append(f"{path.relative_to(site)}: {address}")
    assert wrong == []
    loaded = [page.read_text(encoding="utf-8") for page in pages]
    assert not any('<script src="http' in text or 'rel="stylesheet" href="http' in text for text in loaded)


# as the button of the theme does it
_COPIED = """[...document.querySelectorAll(".highlight code")].map(code => {
  code.setAttribute("data-md-copying", "");
  const text = code.innerText;
  code.removeAttribute("data-md-copying");
  return text.trim();
})"""


@needs("chromium")
async def test_what_is_copied_can_be_pasted_into_a_shell(site: Path, tmp_path: Path) -> None:
    path = str(find("chromium"))

    async with browsing(path, tmp_path / "profile") as page:
        for name in ("install", "slurm", "kubernetes", "prometheus"):
            await page.open(f"{site.as_uri()}/{name}.html")
            copied = await page.evaluate(_COPIED)
            assert copied, name
            assert [text for text in copied if not text or text.startswith("$ ") or "\n$ " in text] == [], name
