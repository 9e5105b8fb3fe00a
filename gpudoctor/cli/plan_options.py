"""What may be asked of `gpudoctor plan`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from gpudoctor.cli.options import output_option, seconds
from gpudoctor.plan.choose import MAX_BATCH

PRECISIONS = ("bf16", "fp16", "fp32", "bf16-true")
OPTIMIZERS = ("adamw", "adamw-8bit", "momentum", "lion", "sgd")
MAX_NODES, MAX_SEQ, MAX_RANKS = 4096, 2**24, 64


def add_plan_options(plan: argparse.ArgumentParser) -> None:
    """Add the options; precision None means: what the GPUs can."""
    plan.add_argument("model", metavar="MODEL_SIZE", help="350m, 7b, 1.5b ..., or a Hugging Face config.json")
    plan.add_argument("--node", metavar="SOURCE", help="as for check; a report JSON brings its measurements along")
    plan.add_argument(
        "--fault", action="append", default=[], metavar="NAME[@GPU]", help="put a fault on the node; makes it SIMULATED"
    )
    plan.add_argument("--nodes", type=_up_to(MAX_NODES), default=1, metavar="N", help="so many nodes like this one")
    plan.add_argument("--gpu", metavar="LIST", help="plan with these GPUs only: indices, UUIDs, bus ids, with commas")
    plan.add_argument("--seq", type=_up_to(MAX_SEQ), metavar="TOKENS", help="of one sequence (default: up to 4096)")
    plan.add_argument("--precision", choices=PRECISIONS, help="default: bf16 mixed with fp32, fp16 on older GPUs")
    plan.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    plan.add_argument(
        "--global-batch", type=_up_to(MAX_BATCH), metavar="N", help="sequences of one step (default: what fits)"
    )
    plan.add_argument("--tensor", type=_up_to(MAX_NODES), metavar="T", help="tensor-parallel ranks, not chosen")
    plan.add_argument("--pipeline", type=_up_to(MAX_NODES), metavar="P", help="pipeline stages, not chosen")
    plan.add_argument("--explain", action="store_true", help="print every formula with its source")
    plan.add_argument(
        "--try", dest="try_it", action="store_true", help="run a few steps of it, made smaller, and compare"
    )
    plan.add_argument(
        "--backend", choices=("auto", "nccl", "gloo"), help="of --try: GPUs of this machine, or gloo: CPU ranks"
    )
    plan.add_argument("--ranks", type=_up_to(MAX_RANKS), metavar="N", help="of --try (default: one a GPU; gloo: 2)")
    plan.add_argument("--force", action="store_true", help="--try on GPUs that another process uses")
    plan.add_argument(
        "--report", type=Path, metavar="FILE", help="of a check of this node: use its measurements, name its faults"
    )
    plan.add_argument("--config", type=Path, metavar="FILE", help="thresholds for the faults that are looked for")
    plan.add_argument("--deadline", type=seconds, metavar="SECONDS", help="for reading the facts (default 60)")
    plan.add_argument("--format", choices=("text", "json"), help="default: text")
    plan.add_argument("--json", action="store_const", const="json", dest="format", help="same as --format json")
    output_option(plan, "write to FILE, atomically")


def _up_to(largest: int) -> Callable[[str], int]:
    """A reader of whole numbers from 1 to `largest`."""

    def whole_number(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= largest:
            raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 to {largest} is wanted")
        return int(text)

    return whole_number
