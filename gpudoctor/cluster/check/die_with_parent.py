"""Programs that get SIGTERM when the process that starts them dies, however it dies."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from collections.abc import Sequence

from gpudoctor.probes.runner.starter import tie_to_parent
from gpudoctor.process.own_program import own_python


def tied_program(argv: Sequence[str]) -> list[str]:
    """The command line that ties any program to this process."""
    return _tied("program", argv)


def tied_gpudoctor(argv: Sequence[str], python: str | None = None) -> list[str]:
    """The same for a `gpudoctor` with these arguments, in this Python; `python`: as for `own_python`."""
    return _tied("gpudoctor", argv, python)


def tied_ray(argv: Sequence[str]) -> list[str]:
    """The same for the process that talks to Ray; argv are what `run_on_every_node` takes, as JSON."""
    return _tied("ray", argv)


def _tied(what: str, argv: Sequence[str], python: str | None = None) -> list[str]:
    order = json.dumps([os.getpid(), what, list(argv)])
    return own_python("gpudoctor.cluster.check.die_with_parent", "begin", order, python=python)


def begin(argument: str) -> None:
    """Be what the argument says. Ends the process; raises OSError where there is no such program."""
    parent, what, argv = json.loads(argument)
    tie_to_parent(parent, signal.SIGTERM)
    if what == "program":
        os.execvp(argv[0], argv)
    if what == "ray":
        os.chdir("/")  # Ray has its workers search for modules in the working directory of who asks
        from gpudoctor.cluster.check.ray_tasks import run_on_every_node

        sys.exit(run_on_every_node(*json.loads(argv[0])))
    sys.argv = ["gpudoctor", *argv]
    runpy.run_module("gpudoctor", run_name="__main__", alter_sys=False)
