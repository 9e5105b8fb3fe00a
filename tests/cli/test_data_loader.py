"""data.loader on real CPU ranks, as a user runs it: what starves workers, bad files, and what is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.conftest import Gpudoctor, Outcome
from tests.needs import missing, needs
from tests.probes.conftest import GONE_WITHIN_S, goes_on
from tests.subprocesses import completed

HERE = ("check", "data.loader", "--backend", "gloo", "--json")
CHECK = (sys.executable, "-m", "gpudoctor", *HERE)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / ("longer-than-the-name-of-a-socket-may-be-" * 3)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return folder


def checked(*argv: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Exit code, the check and its measurements."""
    done = completed(argv)
    return told(Outcome(done.returncode, done.stdout, done.stderr))


def told(outcome: Outcome) -> tuple[int, dict[str, Any], dict[str, Any]]:
    assert "Traceback" not in outcome.err
    [check] = outcome.json["checks"]
    return outcome.code, check, outcome.json["measurements"]


def of_status(check: dict[str, Any], status: str) -> list[dict[str, Any]]:
    return [finding for finding in check["findings"] if finding["status"] == status]


@pytest.mark.wide
@needs("taskset", "two processor cores")
def test_files_are_loaded_by_workers_and_a_core_that_they_all_share_is_named_with_its_cause(
    temporary: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(40):
        with (data / f"{number}.jpg").open("wb") as file:
            file.write(os.urandom(10_000))
            os.fsync(file.fileno())  # what is not on the disk yet comes from RAM, and feeds no GPU
    (data / "empty.jpg").touch()
    (data / "closed.jpg").symlink_to("/proc/self/mem")  # of another file system
    latin_1 = tmp_path / os.fsdecode(b"donn\xe9es")  # its files are left out, and its name in the report is not UTF-8
    latin_1.mkdir()
    (latin_1 / "0.jpg").write_bytes(b"x")
    cpu = str(min(os.sched_getaffinity(0)))
    command = (*CHECK, "--ranks", "2", "--data", str(data), "--data", str(latin_1), "--need", "1kB/s")
    code, check, measured = checked("taskset", "-c", cpu, *command)
    loading = measured["data_loading"]
    if "perhaps_in_ram" in loading:
        pytest.skip(f"on this file system no rate is known: {loading['perhaps_in_ram']}")
    assert (code, check["status"]) == (0, "warn")
    assert loading["paths"] == [str(data), f"{tmp_path}/donn?es"]
    assert (loading["files"], loading["empty_files"]) == (40, 1)
    assert "unreadable" not in loading, "0, which is left out"
    assert loading["cpus"] == [1, 1]
    assert [step["workers"] for step in loading["steps"]] == [0, 2]
    for step in loading["steps"]:
        rates = step["rates"]
        assert 0 < rates["slowest_rank_gb_s"] <= rates["gb_s"]
        assert rates["gb_s"] == pytest.approx(rates["samples_per_s"] * 10_000 / 1e9)
    shared, *others = of_status(check, "warn")
    assert "share 1 of the" in shared["found"]["text"]
    assert "taskset" in shared["likely"]
    assert all("TMPDIR" in other["found"]["text"] for other in others), "not of Python 3.14"
    assert "num_workers=0" in of_status(check, "pass")[0]["found"]["text"]
    assert list(temporary.iterdir()) == []


def _own_shm(command: str, size: str = "1m") -> list[str]:
    shell, mount = ["unshare", "-m", "sh", "-c"], f"mount -t tmpfs -o size={size} tmpfs /dev/shm"
    tried = completed([*shell, mount])
    if tried.returncode:
        missing("mounts", tried.stderr.strip())
    return [*shell, f"{mount} && {command}"]


@pytest.mark.wide
@needs("root", "unshare", "mount")
def test_a_tiny_dev_shm_is_named_and_never_filled(temporary: Path) -> None:
    code, check, measured = checked(*_own_shm(" ".join((*CHECK, "--ranks", "1"))))
    assert (code, check["status"]) == (0, "warn")
    warned, *_ = of_status(check, "warn")
    assert warned["found"]["text"].startswith("num_workers=2 was not tried: its batches hold 13.4 MiB of /dev/shm")
    loading = measured["data_loading"]
    assert loading["shm_bytes"] == 1 << 20
    assert [step.get("rates") is None for step in loading["steps"]] == [False, True]
    assert list(temporary.iterdir()) == []


@pytest.mark.wide
@needs("root", "unshare", "mount")
def test_a_dev_shm_without_a_limit_is_not_a_full_one(temporary: Path) -> None:
    code, check, measured = checked(*_own_shm(" ".join((*CHECK, "--ranks", "1")), size="0"))
    assert code == 0
    assert not [each for each in of_status(check, "warn") if "was not tried" in each["found"]["text"]]
    loading = measured["data_loading"]
    assert loading["shm_bytes"] == {"missing": "/dev/shm has no size: RAM is its limit", "kind": "unsupported"}
    assert [step["rates"]["shm_bytes"]["kind"] for step in loading["steps"]] == ["unsupported", "unsupported"]


def test_data_in_which_there_is_nothing_to_read_is_no_pass(
    temporary: Path, tmp_path: Path, gpudoctor: Gpudoctor, forked_starters: None
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "empty.jpg").touch()
    code, check, _ = told(gpudoctor(*HERE, "--ranks", "2", "--data", str(data)))
    assert (code, check["status"]) == (3, "unknown")
    [finding] = check["findings"]
    assert "files there have 0 bytes" in finding["reason"]
    assert list(temporary.iterdir()) == []


@pytest.mark.wide
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_ends_while_workers_load(temporary: Path, number: signal.Signals) -> None:
    run = subprocess.Popen(
        [*CHECK, "--ranks", "2", "--inject", "hang-rank=1:data"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    children: list[psutil.Process] = []
    while len(children) < 4 + 2:  # starter, guardian and ranks; the workers of one rank
        goes_on(run)
        children = psutil.Process(run.pid).children(recursive=True)
    run.send_signal(number)
    output, _ = run.communicate()
    if number is signal.SIGINT:
        assert run.returncode == 130
        assert json.loads(output)["checks"][0]["status"] == "unknown"
    assert psutil.wait_procs(children, timeout=GONE_WITHIN_S)[1] == []
    assert list(temporary.iterdir()) == []
    assert not [path for path in Path("/dev/shm").iterdir() for child in children if f"torch_{child.pid}_" in path.name]


def test_a_rank_that_dies_while_it_loads_is_told_and_convicts_no_gpu(
    temporary: Path, gpudoctor: Gpudoctor, forked_starters: None
) -> None:
    code, check, measured = told(gpudoctor(*HERE, "--ranks", "2", "--inject", "die-rank=1:data"))
    assert (code, check["status"]) == (3, "unknown")
    [problem] = measured["problems"]
    assert (problem["probe"], problem["kind"], problem["rank"]) == ("data", "crash", 1)
    assert list(temporary.iterdir()) == []
