"""The code blocks of docs/python-api.md work as the page describes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gpudoctor

TEXT = (Path(__file__).parent.parent.parent / "docs" / "python-api.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_runs(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"block {number}", "exec"), {})
    out = capsys.readouterr().out.splitlines()
    # a comment after a print is its output; ... leaves the rest out
    said = [text.removesuffix("...") for text in re.findall(r"print\(.*\)  # (.*)$", BLOCKS[number], re.MULTILINE)]
    assert [line.startswith(text) for line, text in zip(out, said, strict=False)] == [True] * len(said)


def test_every_public_name_has_its_promise() -> None:
    promised = {
        name for row in re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert promised == set(gpudoctor.__all__)
