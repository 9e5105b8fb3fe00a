"""What the kernel counts of a rank's process, where its files have another form."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gpudoctor.run import rank_process


@pytest.mark.parametrize(
    ("group", "folder", "name", "counts"),
    [
        ("0::/job7", "job7", "memory.events", "low 0\nhigh 0\nmax 12\noom 2\noom_kill 2\noom_group_kill 0\n"),
        (
            "11:cpu,cpuacct:/job7\n4:memory:/job7\n0::/user.slice",
            "memory/job7",
            "memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        ),
        # a container sees the path of the host, and only its own group
        ("4:memory:/docker/4f", "memory", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
    ],
)
def test_kills_for_the_memory_limit_are_counted_in_both_versions_of_cgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, folder: str, name: str, counts: str
) -> None:
    monkeypatch.setattr(rank_process, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(rank_process, "_CGROUP_ROOT", tmp_path / "cgroup")
    for path, text in (("proc/7/cgroup", group + "\n"), (f"cgroup/{folder}/{name}", counts)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    events = rank_process.memory_events(7)
    assert events == tmp_path / "cgroup" / folder / name
    assert rank_process.oom_kills(events) == 2
    assert rank_process.memory_events(8) is None


def test_only_a_process_with_a_handler_is_sent_the_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_process, "_PROC", tmp_path)
    (tmp_path / "7").mkdir()
    caught = 1 << signal.SIGUSR1 - 1 | 1 << signal.SIGRTMAX - 5 - 1
    (tmp_path / "7" / "status").write_text(f"Name:\tpython\nSigIgn:\t{0:016x}\nSigCgt:\t{caught:016x}\n")
    assert [rank_process.handles(7, n) for n in (signal.SIGRTMAX - 5, signal.SIGRTMAX - 4)] == [True, False]
    assert not rank_process.handles(8, signal.SIGUSR1)


@pytest.mark.parametrize(
    ("state", "flags", "lives"), [("R", 0x400100, True), ("D", 0x400104, False), ("Z", 0x44, False)]
)
def test_a_process_that_exits_lives_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, flags: int, lives: bool
) -> None:
    # its sockets may be closed long before the driver has let go of it, so that others end first
    monkeypatch.setattr(rank_process, "_PROC", tmp_path)
    (tmp_path / "7").mkdir()
    fields = [state, "1", "7", "7", "0", "-1", str(flags), *["0"] * 12, "4711", *["0"] * 30]
    (tmp_path / "7" / "stat").write_text(f"7 (python) {' '.join(fields)}\n")
    assert rank_process.lives(7, 4711) == lives
