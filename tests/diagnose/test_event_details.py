"""The table of the keys of `Event.detail`, against the code that reads and writes them."""

from __future__ import annotations

import re
from pathlib import Path

import gpudoctor.diagnose

_CODE = [path.read_text() for path in Path(gpudoctor.diagnose.__file__).parent.rglob("*.py")]
_PAGE = Path(__file__).parents[2] / "docs" / "event-details.md"
_LISTED = {
    key
    for row in _PAGE.read_text().splitlines()
    if row.startswith("| `")
    for key in re.findall(r"`(\w+)`", row.split("|")[1])
}
_READ = re.compile(
    r"\.(?:number|word)\(\"(\w+)\"\)|detail(?:\.get\(|\.setdefault\(|\[)\"(\w+)\"|\"(\w+)\" in \w+\.detail"
)
_WRITTEN = re.compile(r"detail(?:: dict\[str, str \| int\])? ?\|?= ?\{([^}]*)\}")


def test_each_detail_of_an_event_is_in_the_table() -> None:
    read = {key for text in _CODE for keys in _READ.findall(text) for key in keys if key}
    written = {
        key for text in _CODE for literal in _WRITTEN.findall(text) for key in re.findall(r"\"(\w+)\":", literal)
    }
    assert len(read) > 40
    assert len(written) > 20
    assert read | written <= _LISTED


def test_each_row_of_the_table_is_a_detail() -> None:
    code = "".join(_CODE)
    assert [key for key in sorted(_LISTED) if f'"{key}"' not in code and f"<{key}>" not in code] == []
