from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import gpudoctor as library
from gpudoctor.api.node_check import CheckRequest
from gpudoctor.errors import UserError
from tests.cli.conftest import Gpudoctor, assert_refused
from tests.needs import needs


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo")
    return folder / "fifo"


def _socket(folder: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket"))
    return folder / "socket"


def _empty(folder: Path) -> Path:
    (folder / "empty.bin").touch()
    return folder / "empty.bin"


def _loop(folder: Path) -> Path:
    (folder / "loop").symlink_to(folder / "loop")
    return folder / "loop"


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda folder: folder / "no" / "such", "not there"),
        (lambda folder: _empty(folder) / "below-a-file", "not there"),
        (lambda folder: folder / ("x" * 300), "too long"),
        (lambda folder: Path("/dev/zero"), "character device"),
        (lambda folder: Path("/proc/version"), "(proc)"),
        (lambda folder: Path("/sys/kernel"), "(sysfs)"),
        (_fifo, "FIFO"),
        (_socket, "socket"),
        (_empty, "0 bytes"),
        (_loop, "loop"),
    ],
)
def test_a_path_that_no_data_can_be_read_from_is_refused_in_one_line(
    make: Callable[[Path], Path], word: str, gpudoctor: Gpudoctor, tmp_path: Path
) -> None:
    path = make(tmp_path)
    assert_refused(gpudoctor("check", "--level", "quick", "--data", "/usr", "--data", str(path)), str(path), word)


@needs("a user other than root")
def test_a_folder_without_permission_is_refused_in_one_line(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0o000)
    assert_refused(gpudoctor("check", "--level", "quick", "--data", str(tmp_path / "shut")), "may not be read")


@pytest.mark.parametrize("need", ["", "fast", "400", "400MB", "0MB/s", "9999999GB/s", "10Gb/s", "1" * 400 + "MB/s"])
def test_a_need_that_is_no_rate_is_refused(need: str, gpudoctor: Gpudoctor) -> None:
    assert_refused(gpudoctor("check", "--level", "quick", "--need", need), "--need")


@pytest.mark.parametrize(("need", "gb_s"), [("400MB/s", 0.4), ("1.5 gb/s", 1.5), ("512MiB/s", 0.536870912)])
def test_a_need_is_kept_with_the_measurements(need: str, gb_s: float) -> None:
    report = library.check(node="cpu-only", level="quick", need=need)
    assert report.measurements is not None
    assert report.measurements.data_need_gb_s == pytest.approx(gb_s)


def test_data_of_this_machine_says_nothing_of_another_node(gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("check", "--node", "hgx-h100-8", "--level", "quick", "--data", "/usr")
    assert_refused(outcome, "--node names another")


def test_a_request_has_absolute_paths_each_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    load = CheckRequest(data=("x", "./x", "/y/../z"), need="1GB/s").load
    assert (load.data, load.need_gb_s) == ((str(tmp_path / "x"), "/z"), 1.0)
    with pytest.raises(UserError, match="at most 32"):
        _ = CheckRequest(data=tuple(f"/{n}" for n in range(33))).load


@pytest.mark.wide
def test_data_is_read_at_level_full_and_judged_against_the_need(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    folder = tmp_path / "amelie"
    folder.mkdir()
    (folder / "shard.bin").write_bytes(os.urandom(1 << 20))
    args = ("check", "storage.read", "--data", str(folder), "--need", "9000GB/s", "--json")
    outcome = gpudoctor(*args, "--redact")
    assert outcome.code == 1
    [read] = outcome.json["measurements"]["storage"]
    assert {(rate["pattern"], rate["readers"]) for rate in read["rates"]} >= {("sequential", 1), ("random", 4)}
    [check] = outcome.json["checks"]
    [finding] = check["findings"]
    assert (check["level"], finding["status"], finding["subject"]["kind"]) == ("full", "fail", "path")
    assert "amelie" not in outcome.out
    assert [path.name for path in folder.iterdir()] == ["shard.bin"]


def test_data_of_another_node_is_not_read_here(gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("check", "storage.read", "--node", "hgx-h100-8", "--json")
    [check] = outcome.json["checks"]
    assert check["status"] == "skip"
    assert "says nothing of another node" in check["findings"][0]["reason"]
