"""The table of the keys of `Event.detail`, against the code that reads and writes them."""

from __future__ import annotations

import re
from pathlib import Path

import gpudoctor.diagnose

_FOLDER = Path(gpudoctor.diagnose.__file__).parent
_CODE = {path: path.read_text() for path in _FOLDER.rglob("*.py")}
_READ = re.compile(
    r"\.(?:number|word)\(\"(\w+)\"\)|detail(?:\.get\(|\.setdefault\(|\[)\"(\w+)\"|\"(\w+)\" in \w+\.detail"
)
_WRITTEN = re.compile(r"detail(?:: dict\[str, str \| int\])? ?\|?= ?\{([^}]*)\}")


def _listed() -> set[str]:
    table = _CODE[_FOLDER / "events.py"].partition("# The keys of `Event.detail`")[2].partition("V = TypeVar")[0]
    return {*re.findall(r"`(\w+)`", table)}


def test_each_detail_of_an_event_is_in_the_table() -> None:
    read = {key for text in _CODE.values() for keys in _READ.findall(text) for key in keys if key}
    written = {
        key
        for text in _CODE.values()
        for literal in _WRITTEN.findall(text)
        for key in re.findall(r"\"(\w+)\":", literal)
    }
    assert len(read) > 40 < len(written) + 30
    assert read | written <= _listed()


def test_each_row_of_the_table_is_a_detail() -> None:
    code = "".join(_CODE.values())
    assert [key for key in sorted(_listed()) if f'"{key}"' not in code and f"<{key}>" not in code] == []
