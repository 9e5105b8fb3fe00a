"""How far the clocks of hosts are apart, from what two of them saw at one moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudoctor.diagnose.diagnosis import ClockSkew, Diagnosis, redacted_diagnosis
from gpudoctor.diagnose.text import render_text
from tests.diagnose.asking import answer_of, said
from tests.diagnose.test_whole_jobs import tb, wd

LOST = "RuntimeError: [x/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1"


def agent_of(host: str, at: str, pid: int, rank: int) -> str:
    """The agent's line with its own clock, and the table that names the host."""
    line = f"E0816 {at}.100000 900 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: {pid}) of binary: /usr/bin/python\n"
    return (
        line + "Failures:\n  <NO_OTHER_FAILURES>\nRoot Cause (first observed failure):\n[0]:\n"
        f"  time      : 2024-08-16_{at}\n  host      : {host}\n  rank      : {rank} (local_rank: 0)\n  exitcode  : 1 (pid: {pid})\n"
    )


def two_hosts(folder: Path, first_at: str, other_at: str, lost: str = LOST) -> Path:
    """Rank 1 on n2 raises; rank 0 on n1 says what it lost."""
    (folder / "a.log").write_text("step 1 loss 2\n" + tb(0, lost) + agent_of("n1", first_at, 50, 0))
    (folder / "b.log").write_text("step 1 loss 2\n" + tb(1, "KeyError: 'x'") + agent_of("n2", other_at, 60, 1))
    return folder


@pytest.mark.parametrize(
    ("first_at", "other_at", "clocks"),
    [
        ("02:53:10", "02:53:57", (ClockSkew("n2", "n1", 47.0, False, 1),)),
        ("02:53:57", "02:53:10", (ClockSkew("n2", "n1", -47.0, False, 1),)),
        ("02:53:10", "02:53:12", ()),
        ("02:53:10", "04:53:11", (ClockSkew("n2", "n1", 7201.0, True, 1),)),
    ],
)
def test_an_end_that_the_other_host_notices_at_once_tells_the_skew(
    first_at: str, other_at: str, clocks: tuple[ClockSkew, ...], tmp_path: Path
) -> None:
    answer = answer_of(two_hosts(tmp_path, first_at, other_at))
    assert said(answer) == ("user_exception", 1)
    assert answer.clocks == clocks
    text = render_text(answer)
    assert ("clocks" in text) is bool(clocks)
    assert ("other time zones" in text) is any(skew.zone for skew in clocks)


def test_a_host_that_waited_for_a_timeout_tells_no_skew(tmp_path: Path) -> None:
    timeout = "RuntimeError: [x/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
    folder = two_hosts(tmp_path, "03:23:10", "02:53:10", timeout)
    (folder / "a.log").write_text(tb(4, LOST) + (folder / "a.log").read_text())  # lost it when rank 0 gave up
    answer = answer_of(folder)
    assert answer.victims
    assert answer.clocks == ()


def test_one_timeout_on_two_hosts_tells_the_skew(tmp_path: Path) -> None:
    for host, ranks, clock in (("n1", (0, 1), "02:52:53"), ("n2", (2,), "02:52:41")):
        start = f"{host}:5:6 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
        (tmp_path / f"{host}.log").write_text(start + "".join(wd(r, 900).replace("02:52:53", clock) for r in ranks))
    assert answer_of(tmp_path).clocks == (ClockSkew("n2", "n1", -12.0, False, 1),)


def test_names_of_hosts_are_taken_out() -> None:
    answer = Diagnosis(verdict="nothing", cause=None, clocks=(ClockSkew("n2", "n1", 47.0, False, 1),))
    (skew,) = redacted_diagnosis(answer).clocks
    assert {skew.host, skew.than} == {"host-1", "host-2"}
