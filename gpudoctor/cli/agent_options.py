"""What may be asked of `gpudoctor agent`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpudoctor.agent.access import DEFAULT_LISTEN


def add_agent_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the agent. There is none for the token itself: ps shows arguments."""
    parser.epilog = (
        "Serves /metrics (Prometheus), /healthz (200 where the last report is fresh and neither fail nor unknown, "
        "else 503, with the reason) and /report (JSON). It runs level quick only: load beside jobs is for a prolog or "
        "a job of its own. SIGTERM, SIGINT and SIGHUP end it with 128 + their number; 2: it could not start."
    )
    parser.add_argument(
        "--interval", type=_interval, default=600.0, metavar="SECONDS", help="between starts of runs: 1 to 86400 (600)"
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="run one check now as the agent does, write how the node stands, and end: 0 healthy, 1 fail, 3 unknown",
    )
    parser.add_argument(
        "--listen",
        default=DEFAULT_LISTEN,
        metavar="HOST:PORT",
        help=f"default {DEFAULT_LISTEN}; port 0 takes a free one and says which; others than loopback want a token",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="holds the token that /metrics and /report want (Authorization: Bearer); else GPUDOCTOR_AGENT_TOKEN",
    )
    parser.add_argument(
        "--strikes",
        type=_strikes,
        default=3,
        metavar="N",
        help="runs in a row with a warn before it is an alarm: 1 to 100 (3); fail and unknown are one at once",
    )
    parser.add_argument(
        "--jitter",
        type=_jitter,
        metavar="SECONDS",
        help="the first run waits up to so long, by chance, so that many agents do not run at once "
        "(default: a tenth of the interval, at most 60)",
    )
    parser.add_argument(
        "--deadline",
        type=_deadline,
        default=90.0,
        metavar="SECONDS",
        help="for a run: 1 to 3600 (90); then it is ended",
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="keeps the last report and the strikes over a restart "
        "(default: $STATE_DIRECTORY, else gpudoctor in $XDG_STATE_HOME or ~/.local/state)",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="for the checks that are run")
    parser.add_argument("--node", metavar="SOURCE", help="as for check, to try it; without it, this machine")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NAME[@GPU]", help="put a fault on the node; makes it SIMULATED"
    )


def _interval(text: str) -> float:
    return _between(text, 1.0, 86400.0)


def _deadline(text: str) -> float:
    return _between(text, 1.0, 3600.0)


def _jitter(text: str) -> float:
    return _between(text, 0.0, 86400.0)


def _strikes(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r}: a number from 1 to 100 is wanted")
    return int(text)


def _between(text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value <= most:  # nan is not
        raise argparse.ArgumentTypeError(f"{text!r}: a number of seconds from {least:g} to {most:g} is wanted")
    return value
