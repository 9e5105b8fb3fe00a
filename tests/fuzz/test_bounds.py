"""Inputs that would eat the machine are refused before they are read or built."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpudoctor.api.config import load_config
from gpudoctor.checks.core.registry import registry
from gpudoctor.errors import UserError
from gpudoctor.facts.captures import SourceError, directory
from gpudoctor.facts.captures.source import load_source
from gpudoctor.profiles.load import profile_for
from gpudoctor.report.model import Report
from gpudoctor.report.saved_report import load_report
from tests.fuzz import seeds

GIB = 1 << 30
HEADS = {
    "facts": b'{"schema": "gpudoctor.facts/1", "gpus": [',
    "facts.yaml": b"schema: gpudoctor.facts/1\n",
    "report": b'{"schema": "gpudoctor.report/1",',
    "smi.xml": b"<?xml version='1.0'?><nvidia_smi_log>",
    "smi.txt": b"==============NVSMI LOG==============\nAttached GPUs : 8\n",
    "topology": b"\tGPU0\tGPU1\nGPU0\t X \tSYS\n",
    "bug-report": b"Start of NVIDIA bug report log file.\n",
    "gzip": b"\x1f\x8b\x08\x00",
    "tar": gzip.decompress(seeds.bundle())[:512],
    "stream": b'{"kind": "opening", "schema": "gpudoctor.watch/1", ',
    "zeros": b"",
}


def sparse(path: Path, head: bytes, size: int = GIB) -> Path:
    path.write_bytes(head)
    os.truncate(path, size)
    return path


@contextlib.contextmanager
def in_bounds() -> Iterator[None]:
    """What happens inside never holds more than is ever read of a dump."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()


def refused(read: Callable[[], object]) -> str:
    """The one line with which it is refused."""
    with in_bounds(), pytest.raises(UserError) as error:
        read()
    assert "\n" not in str(error.value)
    return str(error.value)


TEXTS = ("smi.xml", "smi.txt", "topology", "bug-report", "zeros")


@pytest.mark.parametrize("name", [name for name in HEADS if name not in TEXTS])
def test_a_file_of_1_gb_is_refused_by_its_size(name: str, tmp_path: Path) -> None:
    path = sparse(tmp_path / name, HEADS[name])
    said = refused(lambda: load_source(str(path)))
    # of a stream the first line is read, which may be 16 MiB; all others go by the size of the file
    assert ("longer than 16 MiB" if name == "stream" else "larger than") in said


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_of_1_gb_is_read_line_by_line(name: str, tmp_path: Path) -> None:
    path = sparse(tmp_path / name, HEADS[name])
    with in_bounds(), contextlib.suppress(SourceError):
        load_source(str(path))


def test_a_configuration_a_profile_and_a_saved_report_of_1_gb_are_refused(tmp_path: Path) -> None:
    path = sparse(tmp_path / "huge.yaml", b"level: quick\n")
    assert "larger than 1 MiB" in refused(lambda: load_config(path, {"HOME": "/nonexistent"}, registry, path / "x"))
    assert "larger than 1 MiB" in refused(lambda: profile_for(seeds.broken_node(), str(path)))
    assert "larger than" in refused(lambda: load_report(str(path), Report))


def test_a_directory_with_a_file_of_1_gb_still_ends(tmp_path: Path) -> None:
    sparse(tmp_path / "topo.txt", HEADS["topology"])
    assert refused(lambda: load_source(str(tmp_path)))


DEEP = 200_000
HOSTILE = {
    "deep facts": b'{"schema": "gpudoctor.facts/1", "x": ' + b"[" * DEEP,
    "deep report": b'{"schema": "gpudoctor.report/1", "facts": ' + b'{"a":' * DEEP,
    "deep stream": b'{"kind": "opening", "at_s": 1, "x": ' + b"[" * DEEP,
    "deep yaml": b"schema: gpudoctor.facts/1\nx: " + b"[" * DEEP,
    "deep xml": b"<nvidia_smi_log>" + b"<a>" * DEEP,
    "laughing yaml": b"schema: gpudoctor.facts/1\na: &a [1]\n"
    + b"".join(b"%c: &%c [*%c,*%c,*%c]\n" % (c + 1, c + 1, c, c, c) for c in range(97, 110)),
    "laughing xml": b"<!DOCTYPE nvidia_smi_log [<!ENTITY a 'ha'>"
    + b"".join(b"<!ENTITY %c '&%c;&%c;&%c;'>" % (c + 1, c, c, c) for c in range(97, 110))
    + b"]><nvidia_smi_log><gpu id='&m;'/></nvidia_smi_log>",
    "external xml": b"<!DOCTYPE nvidia_smi_log SYSTEM 'file:///etc/passwd' [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>"
    b"<nvidia_smi_log><gpu id='x'>&x;</gpu></nvidia_smi_log>",
    "deep JSON": b'{"a":' * DEEP,
    "deep JSON on many lines": b'{"a": "[\\"",\n"b":\n' * (DEEP // 8),
    "wide JSON": b'{"x": [' + b"[]," * 3_000_000 + b"1]}",
    "huge number": b'{"schema": "gpudoctor.facts/1", "gpus": [{"index": ' + b"9" * 100_000 + b', "bus_id": "x"}]}',
    "huge float": b'{"schema": "gpudoctor.facts/1", "host": {"load_1m": 1e99999}}',
    "zero bytes": b"\0" * 100_000,
    "no utf-8 facts": b'{"schema": "gpudoctor.facts/1", "source": {"name": "\xff"}}',
    "no utf-8 report": b'{"schema": "gpudoctor.report/1", "facts": {"source": {"name": "\xff"}}}',
    "no utf-8 stream": b'{"kind": "opening", "at_s": 1, "schema": "\xff"}',
    "half a surrogate": b'{"schema": "gpudoctor.facts/1", "source": {"name": "\\ud800"}}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_in_one_line(name: str) -> None:
    assert refused(lambda: load_source("-", stdin=io.BytesIO(HOSTILE[name])))


@pytest.mark.parametrize("name", [name for name in HOSTILE if "report" in name or "facts" in name])
def test_a_hostile_base_report_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    path.write_bytes(HOSTILE[name].replace(b"gpudoctor.facts/1", b"gpudoctor.report/1"))
    assert "not a report of gpudoctor check --json" in refused(lambda: load_report(str(path), Report))


def test_a_base_report_with_a_gpu_twice_is_refused(tmp_path: Path) -> None:
    raw = json.loads(seeds.report_json())
    raw["facts"]["gpus"].append(raw["facts"]["gpus"][0])
    (tmp_path / "base.json").write_text(json.dumps(raw))
    assert "there twice" in refused(lambda: load_report(str(tmp_path / "base.json"), Report))


def archive(*entries: tuple[str, bytes, bytes]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.USTAR_FORMAT) as made:
        for name, kind, data in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.size = kind, len(data)
            made.addfile(entry, io.BytesIO(data))
    return whole.getvalue()


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([("../../etc/cron.d/x", tarfile.REGTYPE, b"x")], "no dump in this archive"),
        ([("/etc/passwd", tarfile.REGTYPE, b"x")], "no dump in this archive"),
        ([("facts.json", tarfile.REGTYPE, b"{}")], "there is no MANIFEST in it"),
        ([("facts.json", tarfile.REGTYPE, b"{}"), ("MANIFEST", tarfile.REGTYPE, b"x")], "not what its MANIFEST says"),
        ([("x", tarfile.REGTYPE, b"")] * 1001, "more than 1000 files"),
    ],
)
def test_an_archive_that_is_no_bundle_is_refused(entries: list[tuple[str, bytes, bytes]], said: str) -> None:
    assert said in refused(lambda: load_source("-", stdin=io.BytesIO(archive(*entries))))


def test_an_archive_with_a_negative_or_endless_size_is_refused() -> None:
    block = bytearray(archive(("gpudoctor-bundle/facts.json", tarfile.REGTYPE, b"x")))
    for size in (b"\xff" * 12, b"\x80" + b"\x7f" * 11, b"77777777777\0"):
        block[124:136] = size
        block[148:156] = b"%06o\0 " % sum(b" " * 8 + block[:148] + block[156:512])
        assert "bundle: cut off in the entry at byte 0" in refused(lambda: load_source("-", stdin=io.BytesIO(block)))


ENDLESS = {
    "a number to the base of 60": b"x: 1" + b":1" * 5000,
    "a decimal number": b"x: " + b"9" * 4000,
    "a fraction": b"x: 1." + b"0" * 4000,
}


@pytest.mark.parametrize("what", ENDLESS)
def test_a_number_of_yaml_that_takes_the_square_of_its_length_is_not_built(what: str, tmp_path: Path) -> None:
    """1 MB of 1:1:1:... took 47 s: a facts file from a stranger would hold up whoever judges it."""
    path = tmp_path / "facts.yaml"
    path.write_bytes(b"schema: gpudoctor.facts/1\n" + ENDLESS[what] + b"\n...\n")
    said = refused(lambda: load_source(str(path)))
    assert said == f"{path}: line 2: a number of {len(ENDLESS[what]) - 3} characters: put text in quotes"


def test_merge_keys_of_yaml_which_take_the_square_of_their_number_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "facts.yaml"
    path.write_bytes(b"schema: gpudoctor.facts/1\nx:\n" + b"  <<: {}\n" * 9 + b"...\n")
    assert refused(lambda: load_source(str(path))) == f"{path}: line 3: YAML merge keys are refused"


@pytest.mark.wide(but=["bombs"])
@pytest.mark.parametrize("kind", ["dumps", "bombs"])
def test_a_directory_of_dumps_is_bounded_as_a_whole(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1000 files of 64 MiB each would be 64 GB."""
    monkeypatch.setattr(directory, "MAX_TOTAL_BYTES", 16 << 20)  # so that the test is quick
    log = b"[    0.000000] Linux version 6.8.0\n" + b"[    1.000000] usb 1-1: new device\n" * 20_000
    if kind == "dumps":
        for number in range(25):
            (tmp_path / f"dmesg-{number}.txt").write_bytes(log)
    else:
        for number in range(3):
            (tmp_path / f"{number}.gz").write_bytes(gzip.compress(bytes(65 << 20), 1))
    with pytest.raises(UserError) as error:
        load_source(str(tmp_path))
    limit = "more than 16 MiB unpacked; a directory of dumps has at most that"
    assert str(error.value) == f"{tmp_path}: {limit}: keep those of one machine in it"


def test_a_directory_of_very_many_files_is_not_listed_to_its_end(tmp_path: Path) -> None:
    for number in range(1003):
        (tmp_path / str(number)).touch()
    said = refused(lambda: load_source(str(tmp_path)))
    assert said == f"{tmp_path}: 1001 files or more; a directory of dumps has at most 1000"
