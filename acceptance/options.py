"""`python -m acceptance`: its options, and the request made of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from acceptance.command import accept
from acceptance.run import AcceptanceRequest
from acceptance.steps import NAMES
from gpudoctor.api.load.burn import burn_duration_s
from gpudoctor.cli.guarded import guarded
from gpudoctor.cli.options import add_output, up_to
from gpudoctor.cli.parsing import Parser
from gpudoctor.errors import UserError
from gpudoctor.probes.runner.launch_engine import MAX_RANKS
from gpudoctor.process.signals import catch_signals

_MOST_REPEATS = 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Run it and return the exit code: 0 all agreed, 1 something did not, 2 it could not run, 128 + n for a signal."""

    def run() -> int:
        catch_signals()
        return accept(*_parsed(argv, NAMES))

    return guarded(run, lambda message, code: code)


def _parsed(argv: Sequence[str] | None, names: Sequence[str]) -> tuple[AcceptanceRequest, Path | None]:
    """The request and the path of the archive. Exits as argparse does if the options are wrong."""
    parser = Parser(
        prog="python -m acceptance",
        description="Compare gpudoctor with nvidia-smi, torch loops and nccl-tests on this node, measure what its "
        "constants rest on, and write all of it into one archive. Takes about 15 minutes on one GPU and 30 on eight.",
        epilog=f"steps: {', '.join(names)}. Exit codes: 0 all agreed, 1 something did not agree, 2 it could not run, "
        "130 and 143 ended by a signal (with what was seen until then in the archive).",
        allow_abbrev=False,
    )
    add_output(parser, "default: gpudoctor-acceptance-DATE.tar.gz here; never replaces one")
    parser.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="gloo: CPU ranks")
    parser.add_argument(
        "--ranks", type=up_to(MAX_RANKS), default=2, metavar="N", help="number of CPU ranks (default 2)"
    )
    parser.add_argument("--burn", metavar="TIME", help="of level burn (default: 3m; 10s on CPU ranks)")
    parser.add_argument(
        "--repeats", type=up_to(_MOST_REPEATS), default=60, metavar="N", help="quick checks beside a load (default 60)"
    )
    parser.add_argument("--only", action="append", default=[], choices=names, metavar="STEP", help="only these steps")
    parser.add_argument("--skip", action="append", default=[], choices=names, metavar="STEP", help="all but these")
    parser.add_argument("--no-redact", action="store_true", help="keep serials, UUIDs and names in the archive")
    args = parser.parse_args(argv)
    request = AcceptanceRequest(
        backend=args.backend,
        ranks=args.ranks,
        burn_s=None if args.burn is None else _burn_s(args.burn),
        repeats=args.repeats,
        redact=not args.no_redact,
        only=tuple(args.only),
        skip=tuple(args.skip),
    )
    if all(name in request.skip or (request.only and name not in request.only) for name in names):
        raise UserError("--only and --skip leave no step to run")
    return request, args.output


def _burn_s(text: str) -> float | None:
    try:
        return burn_duration_s(text, "burn", 0.0)
    except UserError as error:
        raise UserError(str(error).replace("--duration", "--burn")) from None
