"""The messages of the starter, which is too early to import their types, are those types' all the same."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from gpudoctor.probes.runner import local_workers, messages, rank_starter


@pytest.mark.parametrize("module", [rank_starter, local_workers])
def test_a_message_that_is_written_by_hand_is_one_that_the_parent_reads(module: object) -> None:
    source = Path(str(getattr(module, "__file__", ""))).read_text(encoding="utf-8")
    known = {each.__name__: each for each in messages.RankMessage.__subclasses__()}
    written = re.findall(r'\{"type": "(\w+)"((?:, "\w+": [^,}]+)*)', source)
    assert written
    for tag, rest in written:
        assert set(re.findall(r'"(\w+)": ', rest)) <= {field.name for field in msgspec.structs.fields(known[tag])}
