"""`gpudoctor plan`: which strategy trains a model on a node."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from gpudoctor.cli import options
from gpudoctor.errors import UserError
from gpudoctor.lazy import lazy_imports
from gpudoctor.plan import MAX_BATCH
from gpudoctor.process.exit_codes import FAILED, OK, UNKNOWN
from gpudoctor.text.json_text import json_line
from gpudoctor.text.output import printable

with lazy_imports():
    from gpudoctor.api import node_check
    from gpudoctor.plan import make_plan, model, model_shape, not_planned, plan_text, unread_node

PRECISIONS = ("bf16", "fp16", "fp32", "bf16-true")
OPTIMIZERS = ("adamw", "adamw-8bit", "momentum", "lion", "sgd")
_NOT_PLANNED = {"lora": "LoRA", "qlora": "QLoRA"}
MAX_NODES, MAX_SEQ, MAX_RANKS, MAX_RAM_GIB = 4096, 2**24, 64, 2**20


def add_options(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("model", metavar="MODEL_SIZE", help="350m, 7b, 1.5b ..., or a Hugging Face config.json")
    options.add_node(
        plan,
        "as for check; a report JSON brings its measurements along. Or what you do not have: a kind of node "
        "(dgx-a100-40gb-8), GPUs (4xa100-pcie-40gb)",
    )
    options.add_fault(plan)
    plan.add_argument("--nodes", type=_up_to(MAX_NODES), default=1, metavar="N", help="so many nodes like this one")
    plan.add_argument("--gpu", metavar="LIST", help="plan with these GPUs only: indices, UUIDs, bus ids, with commas")
    plan.add_argument(
        "--ram", type=_up_to(MAX_RAM_GIB), metavar="GIB", help="of each node, free (default: what was read)"
    )
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
        "--try", dest="verify", action="store_true", help="run a few steps of it, made smaller, and compare"
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
    for method, name in _NOT_PLANNED.items():
        plan.add_argument(
            f"--{method}",
            dest=method,
            action="store_true",
            help=f"{name} is not planned: print a rule of thumb (exit 2)",
        )
    options.add_facts_deadline(plan, "for reading the facts (default 60)")
    options.add_formats(plan, "text", "json")
    options.add_output(plan, "write to FILE, atomically")


def _up_to(largest: int) -> Callable[[str], int]:
    return options.up_to(largest, "a whole number")


def run(args: argparse.Namespace) -> int:
    """Plan and write the plan. Raise UserError, naming the nearest possibility, if no plan is possible.

    The exit code is 1 if the verification failed, 3 if it did not finish or was refused a GPU.
    """
    asked = options.request_from(args, model.PlanRequest)
    shape = make_plan.shape_of(asked.model)
    unread = unread_node.node_of_profile(args.node) if args.node and not args.faults else None
    sourced = node_check.Sourced(unread) if unread is not None else options.read_source(args)
    method = next((each for each in _NOT_PLANNED if getattr(args, each)), None)
    if method is not None:
        raise UserError(f"--{method}: {_rule_of_thumb(method, asked, shape, sourced)}")
    made = make_plan.planned(asked, shape, sourced)
    is_json = args.format == "json"
    options.write_output(
        json_line(made) if is_json else plan_text.render_text(made, width=options.terminal_width()), args
    )
    if made.verification is None or made.verification.error is None:
        return OK
    return UNKNOWN if made.verification.error_kind in ("timeout", "refused") else FAILED


def _rule_of_thumb(
    method: str, asked: model.PlanRequest, shape: model_shape.ModelShape, sourced: node_check.Sourced
) -> str:
    """For a GPU of the node; without one to plan on, for the model alone. Raises UserError of a wrong request."""
    if not sourced.node.gpus:
        return f"{not_planned.words_of(method, shape)}. For the figures of a GPU: --node 8xa100-sxm4-40gb"
    ground = make_plan.ground_of(asked, shape, sourced)
    return not_planned.words_on(method, ground.machine, ground.job)


def write_error(args: argparse.Namespace, message: str, code: int) -> int:
    """Write the error as a JSON document if JSON was requested; return the exit code."""
    if args.format == "json":
        options.write_error_document(json_line(model.Plan(error=printable(message))), args)
    return code
