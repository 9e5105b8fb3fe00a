"""`gpudoctor slurm`: the prolog, epilog and health check that the scripts in contrib/slurm call."""

from __future__ import annotations

import argparse
import os

from gpudoctor.exit_codes import FAILED, OK
from gpudoctor.output import printable, write_stdout
from gpudoctor.slurm import HOOKS


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Reads SLURMD_NODENAME, SLURM_JOB_ID, SLURM_JOB_GPUS and the settings of /etc/default/gpudoctor from the "
        "environment, into which contrib/slurm/*.sh put them. Writes one line: `go on: ...` (exit 0) or "
        "`refuse: ...` (exit 1, so that Slurm starts no job here). Anything else is no verdict."
    )
    parser.add_argument("hook", choices=HOOKS, help="which of Slurm's hooks this is")


def run(args: argparse.Namespace) -> int:
    """Run the hook; return its exit code."""
    from gpudoctor.slurm.hooks import run_hook

    environ = dict(os.environ)
    # variables of a job would narrow what is judged
    for name in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES"):
        os.environ.pop(name, None)
    result = run_hook(args.hook, environ)
    write_stdout(f"{'go on' if result.go_on else 'refuse'}: {printable(result.why)}\n")
    return OK if result.go_on else FAILED
