"""`gpudoctor slurm`: what the scripts in contrib/slurm call, and the check under load of a drained node."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from gpudoctor.process.exit_codes import FAILED, OK
from gpudoctor.slurm import HOOKS
from gpudoctor.text.output import printable, write_stdout


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Reads SLURMD_NODENAME, SLURM_JOB_ID, SLURM_JOB_GPUS and the settings of /etc/default/gpudoctor from the "
        "environment, into which contrib/slurm/*.sh put them. Hooks write one line: `go on: ...` (exit 0) or "
        "`refuse: ...` (exit 1, so that Slurm starts no job here). Anything else is no verdict. `load`: the node that "
        "gpudoctor drained passes under load (exit 0) or does not (exit 1). `failed-job` writes the cause in one line, "
        "if there is one."
    )
    parser.add_argument(
        "hook",
        choices=(*HOOKS, "load", "failed-job"),
        help="which of Slurm's hooks this is; load: check a node that gpudoctor drained for a hardware fault under "
        "load, so that its health checks may return it; failed-job: diagnose the job that ended (EpilogSlurmctld)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the hook; return its exit code."""
    environ = dict(os.environ)
    # variables of a job would narrow what is judged
    for name in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES"):
        os.environ.pop(name, None)
    return _failed_job(environ) if args.hook == "failed-job" else _on_node(args.hook, environ)


def _failed_job(environ: Mapping[str, str]) -> int:
    from gpudoctor.diagnose.failed_job import diagnose_failed_job

    cause = diagnose_failed_job(environ)
    if cause is not None:
        write_stdout(printable(cause) + "\n")
    return OK


def _on_node(hook: str, environ: Mapping[str, str]) -> int:
    from gpudoctor.slurm.hooks import run_hook, run_load

    result = run_load(environ) if hook == "load" else next(run_hook(each, environ) for each in HOOKS if each == hook)
    write_stdout(f"{'go on' if result.go_on else 'refuse'}: {printable(result.why)}\n")
    return OK if result.go_on else FAILED
