"""Drivers that break the process that calls them, to be named in the order of a child process (`spec_of`)."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from gpudoctor.facts.model.node import Node
from gpudoctor.testing.fake_nvml import FakeNvml, Script, ScriptedFault, from_file, write_script


def spec_of(folder: Path, node: Node, *faults: ScriptedFault, maker: str = "") -> str:
    """The replacement for pynvml: this node's driver, as a function of this module makes it."""
    spec = write_script(folder / "script.json", Script(node, faults))
    return f"{__name__}:{maker}:{spec.rpartition(':')[2]}" if maker else spec


def _write(data: bytes) -> None:
    """Into the descriptor that the process answers on."""
    os.write(json.loads(sys.argv[1])["out"], data)


def garbled(path: str) -> FakeNvml:
    """A driver that writes into a file descriptor that belongs to us."""
    _write(b"NVRM: \xff\n")
    return from_file(path)


def garbled_and_answered(path: str) -> FakeNvml:
    """As `garbled`, with a late reader of the pipe: garbage and an answer are in it together."""
    _write(b"NVRM: \xff\n{}\n")
    return from_file(path)


def meddling(path: str) -> FakeNvml:
    """A process that writes what looks like a sample of a GPU that was not requested."""
    _write(b'{"sample":{"at_s":1.0,"gpu":99}}\n')
    return from_file(path)


def killed(path: str) -> FakeNvml:
    """A process that runs out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return from_file(path)


def broken(path: str) -> FakeNvml:
    raise RuntimeError("no such driver")


def hangs_once(path: str) -> FakeNvml:
    return _once(path, ScriptedFault("nvmlDeviceGetClockInfo", gpu=0, from_call=4, hang=True))


def dies_once(path: str) -> FakeNvml:
    return _once(path, ScriptedFault("nvmlDeviceGetMemoryInfo", gpu=1, from_call=2, crash=True))


def _once(path: str, fault: ScriptedFault) -> FakeNvml:
    """A driver with this fault in the first process that calls it, which is well in the next one."""
    fake, marker = from_file(path), Path(f"{path}.struck")
    if not marker.exists():
        marker.touch()
        fake._faults = (fault,)
    return fake
