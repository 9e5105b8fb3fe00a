"""What a line says that a row of some table matches."""

from __future__ import annotations

import re

from gpudoctor.diagnose.events import Event
from gpudoctor.diagnose.patterns import job_facts
from gpudoctor.diagnose.patterns.accelerators import ACCELERATORS, CUDA, TPU
from gpudoctor.diagnose.patterns.frameworks import TORCH
from gpudoctor.diagnose.patterns.job_facts import is_harmless
from gpudoctor.diagnose.patterns.nccl import NCCL, NCCL_WRAPPERS
from gpudoctor.diagnose.patterns.outside import ENDINGS, KERNEL, STARTS
from gpudoctor.diagnose.patterns.rows import LinePattern
from gpudoctor.statements.catalogue import by_needle

# after these a job may go on, and worse than slow it need not be
_ONLY_WARNINGS = ("kernel_hang", "ib_device_refused", "cuda_no_kernel_image", "efa_not_found", "bootstrap_no_interface")
# in the order in which they are tried
ROWS: tuple[LinePattern, ...] = (*KERNEL, *ENDINGS, *STARTS, *NCCL, *CUDA, *TPU, *TORCH, *NCCL_WRAPPERS, *ACCELERATORS)

_FAR, _BEFORE = 250, 100
_rows_for = by_needle(ROWS)


def error_event(text: str) -> Event | None:
    """The event of the first row that matches, with its named groups as details.

    None if no row matches or the line is known to be harmless.

    >>> error_event("RuntimeError: CUDA error: an illegal memory access was encountered").what
    'cuda_illegal_access'
    """
    for row in _rows_for(text):
        if found := row.regex.search(text):
            if is_harmless(text):
                return None
            detail: dict[str, str | int] = {key: value for key, value in found.groupdict().items() if value is not None}
            if row.role == "echo" and row.what in _ONLY_WARNINGS:
                detail["warning"] = 1
            event = Event(role=row.role, what=row.what, strength=row.strength, names_rank=row.names_rank, detail=detail)
            if found.start() > _FAR:  # what matters of a long line is shown: XLA puts NCCL's warning at its end
                event.text = f"... {text[found.start() - _BEFORE :]}"
            return event
    return None


def with_place(event: Event, text: str) -> Event:
    """The event with the rank, host and GPU that its own text names."""
    if event.what == "collective_mismatch" and (found := job_facts.MISMATCH.search(text)):
        event.detail = {**event.detail, **{k: v for k, v in found.groupdict().items() if v is not None}}
    if task := event.word("task_rank"):
        event.rank = int(task)
    if event.what == "ssh_failed" and (host := event.word("host")):
        event.host = "" if host in ("localhost", "127.0.0.1", "::1") else host
    if event.what == "nan" and (named := re.search(r"[Rr]ank (\d+)", text)):
        event.rank = int(named[1])
    if where := job_facts.DEVICE_NODE.search(text):
        event.gpu, event.host = where["gpu"], where["host"]
    if event.gpu is None and event.what in ("cuda_oom", "gpu_ecc") and (gpu := job_facts.GPU.search(text)):
        event.gpu = gpu["gpu"] or gpu["device"]
    return event
