"""Asking processes where they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudoctor.run import stack_request
from gpudoctor.run.observer import layout
from gpudoctor.run.record_reader import RankRecord


def test_workers_that_do_not_answer_hold_up_the_watch_no_longer_than_a_rank(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now, asked = [0.0], []
    monkeypatch.setattr(stack_request, "monotonic", lambda: now[0])
    monkeypatch.setattr(stack_request, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(stack_request, "children", lambda pid: list(range(100, 116)))
    monkeypatch.setattr(stack_request, "handles", lambda pid, number: True)
    monkeypatch.setattr(stack_request, "send_signal", lambda pid, number: asked.append(pid))
    monkeypatch.setattr(stack_request, "kernel_place", lambda pid: "T in do_signal_stop")
    path = tmp_path / "7.rank"
    path.write_bytes(layout.IDENTITY.pack(layout.MAGIC, 7, 0, 10).ljust(layout.FILE_BYTES, b"\0"))
    assert stack_request.loader_workers(RankRecord(path)) == ("16 of 16 in the kernel: T in do_signal_stop",)
    assert asked == [100, 101]
    assert now[0] < 3.5
