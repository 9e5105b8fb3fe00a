"""What may be asked of `gpudoctor cluster check` and `gpudoctor cluster rank`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpudoctor.cli.options import output_option, seconds

LEVELS = ("quick", "standard", "full")


def add_check_options(parser: argparse.ArgumentParser) -> None:
    """Add those of check: how to start a process on each node, and what all of them are to do."""
    from gpudoctor.cluster.check.launchers import LAUNCHERS

    parser.add_argument(
        "--launcher", choices=("auto", *LAUNCHERS), default="auto", help="what places one process on each node"
    )
    parser.add_argument("-N", "--nodes", type=_number, metavar="NODES", help="how many (default: the whole allocation)")
    parser.add_argument("--hosts", metavar="HOST,...", help="for mpirun")
    parser.add_argument("--hostfile", metavar="FILE", help="for mpirun")
    parser.add_argument(
        "--launcher-args", metavar="WORDS", help="more for srun or mpirun, in one argument: '-p gpu --gres=gpu:8'"
    )
    _common(parser)
    parser.set_defaults(meet=None, join=None, numbered=None, token_fd=None)


def add_rank_options(parser: argparse.ArgumentParser) -> None:
    """Add those of rank: where the processes meet, and what all of them are to do."""
    parser.add_argument("-N", "--nodes", type=_number, metavar="NODES", help="where the engine does not tell (k8s)")
    parser.add_argument(
        "--meet", metavar="HOST", help="where the first process runs, if neither the engine nor MASTER_ADDR tells"
    )
    parser.add_argument("--join", help=argparse.SUPPRESS)
    parser.add_argument("--numbered", help=argparse.SUPPRESS)
    parser.add_argument("--token-fd", type=int, help=argparse.SUPPRESS)
    _common(parser)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--level",
        choices=LEVELS,
        default="standard",
        help="of each node's own check (default: standard); quick puts no load on GPUs, between nodes neither",
    )
    parser.add_argument(
        "--backend", choices=("auto", "nccl", "gloo"), default="auto", help="gloo: CPU ranks, at any level"
    )
    parser.add_argument(
        "--ranks", type=_ranks, default=None, metavar="N", help="CPU ranks a node between nodes (default 1)"
    )
    parser.add_argument(
        "--node",
        "--source",  # torchrun takes --node for a short form of its own --node-rank
        metavar="SOURCE",
        help="check this instead of each machine (see: gpudoctor nodes); --source under torchrun",
    )
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="[HOST:]NAME[@GPU]",
        help="put a fault on the simulated node, or on that of one host",
    )
    parser.add_argument(
        "--skip", action="append", default=[], metavar="ID|DOMAIN", help="leave out of each node's check"
    )
    parser.add_argument("--profile", metavar="NAME|FILE", help="of each node's check")
    parser.add_argument("--config", type=Path, metavar="FILE", help="of each node's check; at this path on every node")
    parser.add_argument(
        "--at-least", type=_rate, metavar="GBIT_S", help="what every pair of nodes has to reach; else: as the others do"
    )
    parser.add_argument(
        "--deadline",
        type=seconds,
        metavar="SECONDS",
        help="for all nodes to come, and for each group of them to be measured (default: 60; groups on CPU ranks: 20)",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="same as --format json")
    output_option(parser, "write the report to FILE, atomically")
    parser.add_argument(
        "--reports", type=Path, metavar="DIR", help="keep each node's own report there, for gpudoctor cluster report"
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="the secret by which the job's processes know each other (default: GPUDOCTOR_CLUSTER_TOKEN)",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="as a rank without a token on many nodes: run, though anybody on the network could pose as a node",
    )
    parser.add_argument("--fail-on", choices=("fail", "warn", "never"), default="fail", help="what exits with 1")
    parser.add_argument("-v", "--verbose", action="store_true", help="every pair, and every finding")
    parser.add_argument("--progress", action="store_true", help="say on stderr what goes on, as JSON lines")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")


def passed_on(args: argparse.Namespace) -> list[str]:
    """The options that every node's process gets as they were given."""
    words = ["--level", args.level, "--backend", args.backend]
    for name in ("ranks", "node", "profile", "config", "deadline"):
        value = getattr(args, name)
        if value is not None:
            words += [f"--{name}={value}"]
    for name in ("fault", "skip"):
        for value in getattr(args, name):
            words.append(f"--{name}={value}")
    return words


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r}: a number of nodes from 1 to 100000 is wanted")
    return int(text)


def _ranks(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r}: a number from 1 to 64 is wanted")
    return int(text)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r}: a rate in Gbit/s, above 0, is wanted")
    return value
