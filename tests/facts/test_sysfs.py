"""The reading of files under /sys and /proc: a value, or why there is none."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gpudoctor.facts.system.sysfs import format_cpu_list, link_name, list_names, parse_cpu_list, read_int, read_text
from tests.sysfs_tree import kind_of, link, write


def test_a_reading_is_absent_denied_or_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"/number": "0x10", "/words": "N/A", "/bytes": b"\xff\xfe ok"})
    assert read_int(tmp_path / "number") == 16
    assert read_text(tmp_path / "bytes") == "\ufffd\ufffd ok"
    assert kind_of(read_int(tmp_path / "words")) == "failed"
    assert kind_of(read_text(tmp_path / "nothing")) == "absent"
    assert kind_of(read_text(tmp_path / "words/below")) == "absent"
    assert kind_of(read_text(tmp_path)) == "failed"
    assert kind_of(list_names(tmp_path / "nothing")) == "absent"
    assert kind_of(link_name(tmp_path / "words")) == "failed"
    assert link_name(tmp_path / "nothing") is None
    link(tmp_path, "/alias", "/words")
    assert link_name(tmp_path / "alias") == "words"

    def forbidden(path: Path, mode: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", forbidden)
    assert kind_of(read_text(tmp_path / "words")) == "denied"


@pytest.mark.parametrize(("text", "cpus"), [("0-3,8", {0, 1, 2, 3, 8}), ("", set()), ("5", {5})])
def test_cpu_lists_are_read_and_written_as_the_kernel_does(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == frozenset(cpus)
    assert format_cpu_list(frozenset(cpus)) == text


@pytest.mark.parametrize("text", ["a-b", "1-", "0-99999999999", "-3", "9" * 5000])
def test_what_is_no_cpu_list_is_none(text: str) -> None:
    assert parse_cpu_list(text) is None
