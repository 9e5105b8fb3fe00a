"""How the tests here ask: texts or files in, the answer out."""

from __future__ import annotations

from pathlib import Path

from gpudoctor.diagnose.build import diagnose
from gpudoctor.diagnose.diagnosis import Cause, Diagnosis
from gpudoctor.diagnose.gather import gather
from gpudoctor.diagnose.sources import find_sources
from tests.narrowed import present

HOROVOD_STALLS = (
    "[2020-12-30 16:35:15.18: W horovod/common/stall_inspector.cc:105] One or more tensors were submitted to be "
    "reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds. "
)


def answer_of(path: Path) -> Diagnosis:
    """The answer about one file or folder."""
    sources, unread = find_sources([str(path)])
    gathered = gather(sources)
    gathered.unread[:0] = unread
    return diagnose(gathered)


def answer_to(text: str | bytes, folder: Path, name: str = "job.log") -> Diagnosis:
    """The answer about a text."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return answer_of(path)


def cause_of(text: str | bytes, folder: Path) -> Cause:
    """The cause in the answer about a text, which must have one."""
    return present(answer_to(text, folder).cause)


def said(answer: Diagnosis) -> tuple[str, int | None]:
    """The word and the rank of the answer; `healthy` where nothing was found."""
    return (answer.cause.what, answer.cause.rank) if answer.cause else ("healthy", None)
