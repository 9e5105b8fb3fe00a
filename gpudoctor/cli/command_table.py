"""The commands in groups, the start page that lists them, and the module of each."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Protocol, cast

from gpudoctor import __version__

# each is a module of that name in commands/, with `add_options`, `run`, and `write_error` if errors are documents too
GROUPS: dict[str, dict[str, str]] = {
    "Node": {
        "check": "judge this node, a simulated one, or what somebody pasted",
        "status": "one line a GPU: health, load, links, program; and a verdict",
        "explain": "what a check, cause, fault or Xid means, and the fix",
        "list": "every check: id, level, title",
    },
    "Job": {
        "run": "your own training, watched and judged",
        "diagnose": "what happened first in a failed or hanging job, and why",
    },
    "Watch": {
        "tui": "the live view, with verdicts",
        "watch": "live values as JSON lines",
    },
    "Plan": {
        "plan": "which strategy trains a model here, and how to launch it",
    },
    "Cluster": {
        "cluster": "many nodes: check them, or read their reports",
        "agent": "check on a schedule, for Prometheus and health checks",
        "slurm": "Slurm's prolog, epilog and health check: log or drain",
        "baseline": "one node over time: save what was measured, compare",
    },
    "Develop": {
        "nodes": "the simulated nodes, and the faults to put on them",
        "fake-driver": "run any NVML program against a simulated node",
        "facts": "the facts as JSON, unjudged",
        "bundle": "facts, a quick report and the kernel log in one archive",
        "schema": "the JSON Schema of a document",
        "config": "the merged configuration, as YAML",
        "completion": "completion for bash, zsh or fish",
    },
}
QUESTION = "is this multi-GPU node fit to train on, and if not, which part is at fault?"
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}

EXIT_CODES = "exit codes: 0 no failure, 1 a failure, 2 gpudoctor could not do its work, 3 something is unknown"
_EXAMPLES = (
    ("gpudoctor check", "this machine"),
    ("gpudoctor check --node hgx-h100-8 --fault gpu-lost@3", "a broken node, simulated"),
    ("gpudoctor diagnose slurm-4711.out", "a job that died or hangs"),
)


class CommandModule(Protocol):
    """What every command module has: its options, and its work, which returns the exit code or raises UserError."""

    def add_options(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def module_of(command: str) -> CommandModule:
    """The module of a command, imported on first use."""
    return cast(CommandModule, import_module(f"gpudoctor.cli.commands.{command.replace('-', '_')}"))


def start_page(width: int) -> str:
    """What `gpudoctor` alone, `gpudoctor help` and `--help` print: the commands by what they are for, and examples."""
    from textwrap import wrap

    name_width = max(map(len, COMMANDS)) + 2
    group_width = max(map(len, GROUPS)) + 2
    lines = [*wrap(f"gpudoctor {__version__}: {QUESTION}", width), ""]
    for group, commands in GROUPS.items():
        for place, (name, text) in enumerate(commands.items()):
            head = f"{group if place == 0 else '':<{group_width}}{name:<{name_width}}"
            lines += wrap(text, width, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)
    lines += ["", "Try:"]
    lines += [f"  {command:<54}{text}" for command, text in _EXAMPLES]
    lines += ["", "gpudoctor COMMAND --help shows the options of a command.", *wrap(EXIT_CODES, width)]
    return "\n".join(lines) + "\n"
