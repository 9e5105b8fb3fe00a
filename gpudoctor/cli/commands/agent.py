"""`gpudoctor agent`: checks this node on a schedule and serves the result over HTTP."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpudoctor.agent import DEFAULT_LISTEN
from gpudoctor.cli import options
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import FAILED, OK, UNKNOWN
from gpudoctor.text.output import printable, write_stdout

with lazy_imports():
    from gpudoctor.agent import run_agent

_EXIT_OF = {"pass": OK, "warn": OK, "fail": FAILED, "unknown": UNKNOWN}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gpudoctor agent`. There is no option for the token itself, since ps shows arguments."""
    parser.epilog = (
        "Serves /metrics (Prometheus), /healthz (200 if the last report is fresh and neither fail nor unknown, "
        "else 503, with the reason) and /report (JSON). It runs level quick only: load beside jobs is for a prolog or "
        "a job of its own. SIGTERM, SIGINT and SIGHUP end it with 128 + their number; 2: it could not start."
    )
    parser.add_argument(
        "--interval",
        dest="interval_s",
        type=options.seconds_between(1, 86400),
        default=600.0,
        metavar="SECONDS",
        help="between starts of runs: 1 to 86400 (600)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="run one check now as the agent does, write the state of the node, and exit: 0 healthy, 1 fail, 3 unknown",
    )
    parser.add_argument(
        "--listen",
        default=DEFAULT_LISTEN,
        metavar="HOST:PORT",
        help=f"default {DEFAULT_LISTEN}; port 0 takes a free one and prints it; any address but loopback needs a token",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="holds the token that /metrics and /report want (Authorization: Bearer); else GPUDOCTOR_AGENT_TOKEN",
    )
    parser.add_argument(
        "--strikes",
        type=options.up_to(100),
        default=3,
        metavar="N",
        help="runs in a row with a warn before it is an alarm: 1 to 100 (3); fail and unknown are one at once",
    )
    parser.add_argument(
        "--jitter",
        dest="jitter_s",
        type=options.seconds_between(0, 86400),
        metavar="SECONDS",
        help="the first run waits up to so long, by chance, so that many agents do not run at once "
        "(default: a tenth of the interval, at most 60)",
    )
    parser.add_argument(
        "--no-events",
        dest="events",
        action="store_false",
        help="check on schedule only, not also when the kernel log or the driver (Xid, ECC, clocks) reports something "
        "(at most every 30 s). Waiting for the driver keeps the GPUs open: stop the agent before a GPU reset",
    )
    parser.add_argument(
        "--deadline",
        dest="deadline_s",
        type=options.seconds_between(1, 3600),
        default=90.0,
        metavar="SECONDS",
        help="for a run: 1 to 3600 (90); then it is ended",
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="keeps the last report and the strikes over a restart "
        "(default: $STATE_DIRECTORY, else gpudoctor in $XDG_STATE_HOME or ~/.local/state; tried in it for --node)",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="for the checks that are run")
    options.add_node(parser, "as for check, to try it; without it, this machine")
    options.add_fault(parser)


def run(args: argparse.Namespace) -> int:
    """Run until a signal arrives, or once; return the exit code. Raise UserError if it cannot start."""
    request = options.request_from(args, run_agent.AgentRequest)
    if not args.once:
        return run_agent.run_agent(request)
    ended = run_agent.check_once(request)
    if isinstance(ended, int):
        return ended
    status, prefix = ended
    write_stdout(f"{prefix}{printable(status.line)}\n")
    return _EXIT_OF[status.verdict]
