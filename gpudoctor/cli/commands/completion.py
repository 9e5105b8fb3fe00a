"""`gpudoctor completion`: completion scripts for shells, generated from the parsers of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpudoctor.process.exit_codes import OK
from gpudoctor.text.output import write_stdout

_SHELLS = ("bash", "zsh", "fish")
# arguments that are files, besides those of type Path
_PATHS = ("sources", "report", "against", "hostfile", "model")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=_SHELLS)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "write it once, so that no shell waits for it at its start:\n"
        "  bash   gpudoctor completion bash >~/.local/share/bash-completion/completions/gpudoctor\n"
        "  zsh    gpudoctor completion zsh >~/.zfunc/_gpudoctor   (fpath=(~/.zfunc $fpath) before compinit)\n"
        "  fish   gpudoctor completion fish >~/.config/fish/completions/gpudoctor.fish"
    )


def run(args: argparse.Namespace) -> int:
    """Write the script. Raise UserError for a plugin that cannot be loaded."""
    import shtab

    from gpudoctor.cli.parsing import parser_of_all_commands

    parser = parser_of_all_commands()
    _offer_names(parser)
    write_stdout(shtab.complete(parser, args.shell).rstrip() + "\n")
    return OK


def _offer_names(parser: argparse.ArgumentParser) -> None:
    """Store the names that each argument accepts in the script, since they rarely change.

    Running gpudoctor at every TAB would take a quarter of a second.
    """
    import shtab

    from gpudoctor.checks.core.registry import all_checks
    from gpudoctor.diagnose.causes import CAUSES
    from gpudoctor.facts.simulated.load import fault_names, node_names
    from gpudoctor.profiles.load import profile_names

    checks = [check.id for check in all_checks()]
    domains = sorted({name.partition(".")[0] for name in checks})
    names: dict[str, Sequence[str]] = {
        "only": [*domains, *checks],
        "skip": [*domains, *checks],
        "require": checks,
        "id": [*checks, *CAUSES, *fault_names()],
        "faults": fault_names(),
    }
    names_or_files = {"node": node_names(), "profile": profile_names()}
    for action in _actions(parser):
        if action.dest in names:
            action.choices = names[action.dest]
        elif action.dest in names_or_files:
            action.complete = _name_or_file(action.dest, names_or_files[action.dest])  # type: ignore[attr-defined]
        elif action.type is Path or action.dest in _PATHS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and of all its subparsers."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
        else:
            yield action


def _name_or_file(kind: str, names: Sequence[str]) -> dict[str, object]:
    """A custom completion for shtab: names or files. bash quotes the results of functions with "file" in their name."""
    function, text = f"_gpudoctor_{kind}_or_file", " ".join(names)
    bash = f'{function}() {{ compgen -W "{text}" -- "$1"; compgen -f -- "$1"; }}'
    zsh = f"{function}() {{ _alternative 'names:{kind}:({text})' 'files:file:_files' }}"
    return {
        "bash": function,
        "zsh": function,
        "fish": f"{text} (__fish_complete_path (commandline -ct))",
        "preamble": {"bash": bash, "zsh": zsh},
    }
