"""Programs that get SIGTERM when the process that starts them dies, however it dies."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from collections.abc import Sequence

from gpudoctor.probes.between_start import boot
from gpudoctor.probes.starter import tie_to_parent


def tied_program(argv: Sequence[str]) -> list[str]:
    """The command line that ties any program to this process."""
    return _tied("program", argv)


def tied_gpudoctor(argv: Sequence[str]) -> list[str]:
    """The same for a `gpudoctor` with these arguments, in this Python."""
    return _tied("gpudoctor", argv)


def tied_ray(argv: Sequence[str]) -> list[str]:
    """The same for the process that talks to Ray; argv are what `run_on_every_node` takes, as JSON."""
    return _tied("ray", argv)


def _tied(what: str, argv: Sequence[str]) -> list[str]:
    return [sys.executable, "-c", boot("gpudoctor.cluster.tied"), json.dumps([os.getpid(), what, list(argv)])]


def begin() -> None:
    """Be what argv[1] says. Ends the process; raises OSError where there is no such program."""
    parent, what, argv = json.loads(sys.argv[1])
    tie_to_parent(parent, signal.SIGTERM)
    if what == "program":
        os.execvp(argv[0], argv)
    if what == "ray":
        from gpudoctor.cluster.ray_tasks import run_on_every_node

        sys.exit(run_on_every_node(*json.loads(argv[0])))
    sys.argv = ["gpudoctor", *argv]
    runpy.run_module("gpudoctor", run_name="__main__", alter_sys=False)
