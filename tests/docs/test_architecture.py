"""The architecture page names files that are there, and every folder of the package."""

from __future__ import annotations

import re
from pathlib import Path

import gpudoctor

PACKAGE = Path(gpudoctor.__file__).parent
DOCS = PACKAGE.parent / "docs"
PAGE = (DOCS / "architecture.md").read_text(encoding="utf-8")


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`((?:[\w]+/)*[\w]+\.(?:py|md|toml))`", PAGE)) | set(re.findall(r"`((?:\w+/)+)`", PAGE))
    assert len(named) > 40
    # a file listed after another in one line may be in the first one's folder
    known = {path.name for path in PACKAGE.rglob("*")}
    missing = [
        name
        for name in sorted(named)
        if not (PACKAGE / name).exists()
        and not (PACKAGE.parent / name).exists()
        and not ("/" not in name.rstrip("/") and name.rstrip("/") in known)
    ]
    assert missing == []


def test_every_folder_of_the_package_is_on_the_page_and_says_what_lives_there() -> None:
    folders = [path for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").is_file()]
    assert [path.name for path in folders if f"`{path.name}/" not in PAGE and path.name != "testing"] == []
    for init in PACKAGE.rglob("__init__.py"):
        assert init.read_text(encoding="utf-8").startswith('"""'), init


def test_links_between_the_documents_lead_somewhere() -> None:
    for page in (*DOCS.rglob("*.md"), *PACKAGE.parent.glob("*.md")):
        for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
