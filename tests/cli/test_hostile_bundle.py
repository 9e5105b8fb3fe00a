"""Archives from strangers that are no bundles: one line, exit 2, and nothing unpacked."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gpudoctor.facts.model.node import to_json
from gpudoctor.facts.simulated.load import load_node
from tests.cli.conftest import Gpudoctor, assert_error

FOLDER = "gpudoctor-bundle"
FACTS = to_json(load_node("t4-cloud-4", {}))
Change = Callable[[tarfile.TarFile], None]


def with_file(name: str, data: bytes = b"x") -> Change:
    def change(archive: tarfile.TarFile) -> None:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))

    return change


def with_special(name: str, kind: bytes, target: str = "") -> Change:
    def change(archive: tarfile.TarFile) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, target
        archive.addfile(entry)

    return change


def many_folders(archive: tarfile.TarFile) -> None:
    for place in range(200):
        with_special(f"folder-{place}", tarfile.DIRTYPE)(archive)


def archive(change: Change | None) -> bytes:
    """A good bundle, and how it is spoilt."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as made:
        with_file(f"{FOLDER}/facts.json", FACTS)(made)
        with_file(f"{FOLDER}/MANIFEST", f"{hashlib.sha256(FACTS).hexdigest()}  facts.json\n".encode())(made)
        if change is not None:
            change(made)
    return whole.getvalue()


def bomb() -> bytes:
    """1 GiB of zeros in 1 MB."""
    entry = tarfile.TarInfo(f"{FOLDER}/kernel.log")
    entry.size = 1 << 30
    part = gzip.compress(b"\0" * (1 << 24))
    return gzip.compress(entry.tobuf()) + part * 64


HOSTILE = {
    "link": (with_special(f"{FOLDER}/report.json", tarfile.SYMTYPE, "/etc/passwd"), "is no plain file"),
    "hard link": (with_special(f"{FOLDER}/report.json", tarfile.LNKTYPE, f"{FOLDER}/facts.json"), "is no plain file"),
    "device": (with_special(f"{FOLDER}/kernel.log", tarfile.CHRTYPE), "is no plain file"),
    "pipe": (with_special(f"{FOLDER}/kernel.log", tarfile.FIFOTYPE), "is no plain file"),
    "absolute path": (with_file("/etc/cron.d/evil"), "'/etc/cron.d/evil' does not belong in one"),
    "path upwards": (with_file(f"{FOLDER}/../../facts.json"), "does not belong in one"),
    "escape sequence": (with_file("\x1b[31mevil"), "does not belong in one"),
    "two facts files": (with_file(f"{FOLDER}/facts.json", FACTS), "there are two of facts.json in it"),
    "200 folders": (many_folders, "more than 64 entries"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_what_does_not_belong_in_a_bundle_is_refused(
    name: str, pack: Callable[[bytes], bytes], gpudoctor: Gpudoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, says = HOSTILE[name]
    refused(gpudoctor, tmp_path, monkeypatch, pack(archive(change)), says)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (gzip.compress(archive(None))[:-9], "cut off"),
        (archive(None)[:2000], "cut off"),
        (archive(None)[:700], "cut off"),
        (gzip.compress(gzip.compress(archive(None))), "no dump"),
        (bomb(), "larger than 64 MiB"),
    ],
    ids=["cut .gz", "cut archive", "cut header", "packed twice", "bomb"],
)
def test_what_is_cut_off_or_blown_up_is_refused(
    data: bytes, says: str, gpudoctor: Gpudoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(gpudoctor, tmp_path, monkeypatch, data, says)


def test_the_archive_that_all_these_are_made_of_is_good(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(archive(None))
    assert gpudoctor("check", "--level", "quick", "--node", str(tmp_path / "good")).code == 0


def refused(gpudoctor: Gpudoctor, folder: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, says: str) -> None:
    path = folder / "stranger.tar.gz"
    path.write_bytes(data)
    monkeypatch.chdir(folder)
    done = gpudoctor("check", "--level", "quick", "--json", "--node", str(path))
    assert_error(done, str(path), says)
    assert "\x1b" not in done.err
    assert done.json["verdict"] == "unknown"
    assert [entry.name for entry in folder.iterdir()] == ["stranger.tar.gz"]
