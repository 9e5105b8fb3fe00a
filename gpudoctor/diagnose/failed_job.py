"""After a failed job, on the controller: diagnoses the job's output and writes the answer beside it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from gpudoctor.diagnose import build, gather, sources, text
from gpudoctor.diagnose.diagnosis import Diagnosis
from gpudoctor.errors import UserError
from gpudoctor.process.command import CommandLateError, run_command
from gpudoctor.report.output_files import write_new_file

# a job's own file beside its output: slurm-7.out.diagnosis.txt
SUFFIX = ".diagnosis.txt"
_DEADLINE_S = 10.0
_LINE_LENGTH = 250
_WIDTH = 100
# scontrol writes each field of a job that may hold blanks in a line of its own
_OUTPUT = re.compile(r"^   StdOut=(/.*)$", re.MULTILINE)


def diagnose_failed_job(environ: Mapping[str, str]) -> str | None:
    """Diagnose the job that ended, as EpilogSlurmctld's environment describes it; return the cause in one line.

    None if the job succeeded or nothing was found. Raise UserError if its output cannot be read or the answer not be
    written. This runs as the job's user or as SlurmUser, on a path that the user chose: only a regular file of the user
    is read, and only a new file is written.
    """
    job, user = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_JOB_UID", "")
    # a wait status: 0 if the job succeeded
    if environ.get("SLURM_JOB_EXIT_CODE", "0") == "0" or not job:
        return None
    output = _output_of(job)
    _refuse_foreign(output, user)
    found, not_entered = sources.find_sources([str(output)])
    gathered = gather.gather(found)
    gathered.unread[:0] = not_entered
    answer = build.diagnose(gathered, ())
    if answer.cause is None:
        return None
    file = output.with_name(output.name + SUFFIX)
    _remove_own(file)
    write_new_file(file, text.render_text(answer, width=_WIDTH).encode("utf-8", "backslashreplace"))
    return f"{_cause_line(answer)}: {file}"


def _cause_line(answer: Diagnosis) -> str:
    cause = answer.cause
    assert cause is not None
    parts = (("rank", cause.rank), ("host", cause.host), ("gpu", cause.gpu))
    place = "".join(f" {name} {value}" for name, value in parts if value is not None)
    return f"{cause.what} ({cause.confidence}){place}"[:_LINE_LENGTH]


def _output_of(job: str) -> Path:
    try:
        done = run_command(["scontrol", "show", "job", job], _DEADLINE_S)
    except (OSError, CommandLateError) as error:
        raise UserError(f"scontrol: {error}") from None
    paths = _OUTPUT.findall(done.stdout)
    # a name or a comment of several lines may pretend to be the field
    if len(paths) != 1:
        raise UserError(f"scontrol shows {len(paths) or 'no'} StdOut of job {job}")
    return Path(paths[0])


def _refuse_foreign(output: Path, user: str) -> None:
    try:
        found = output.lstat()
    except OSError as error:
        raise UserError(f"{output}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode) or str(found.st_uid) != user:
        raise UserError(f"{output}: no regular file of user {user or 'unknown'}, so it is not read")


def _remove_own(file: Path) -> None:
    """Remove the answer to an earlier run of a requeued job."""
    try:
        found = file.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            file.unlink()
    except OSError:  # `write_new_file` refuses what is left
        return
