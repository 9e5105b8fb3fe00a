"""The ways to give gpudoctor the facts of a node, for `make soak`: each returns the report on the node.

`facts` is the node as it is. The files (`json`, `yaml`, `report`, `bundle`, `redacted`) are written and read back.
`nvml` is a fake driver of the node, read in this process; `collector` the same in the collector process, with a
driver that may hang; `library` is `gpudoctor fake-driver` with the C library; `command` types --node and --fault.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import msgspec

from gpudoctor.checks.core.registry import Check, Level
from gpudoctor.cli.main import main
from gpudoctor.errors import UserError
from gpudoctor.facts.captures.archives import pack
from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.collect import collect_live
from gpudoctor.facts.model.measurements import PROBES, Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node, to_json
from gpudoctor.facts.nvml.fake_driver_context import VARIABLE, read_fake_driver_context, write_fake_driver_context
from gpudoctor.process.exit_codes import FailOn
from gpudoctor.report.bundle_files import files_of
from gpudoctor.report.judge import Question, judge
from gpudoctor.report.model import Report, render_json
from gpudoctor.report.saved_report import load_report
from gpudoctor.testing.fake_nvml import FakeNvml, Script, write_script
from tests.facts.nvml_nodes import Heard
from tests.fuzz.seeds import as_yaml
from tests.subprocesses import completed

ROOT = Path(__file__).parent.parent
# the fake driver has no slow calls, only hung ones; and if links lead to switches, it returns the links of each GPU
# and nothing about pairs, which follow from the links
NOT_PLAYED = {"driver-slow", "driver-stall", "nvlink-asymmetric"}
HANGS = {"driver-hang"}
PATIENT_S = 120


class Asked(msgspec.Struct, frozen=True):
    """A node, its faults, and the options of the check."""

    name: str
    node: Node
    faults: tuple[str, ...] = ()
    level: Level = "quick"
    profile: str | None = None
    fail_on: FailOn = "fail"
    gpus: int | None = None
    checks: tuple[Check, ...] | None = None

    @property
    def options(self) -> list[str]:
        """The same as options of `gpudoctor check`, except for what is in the configuration."""
        words = ["--level", self.level, "--fail-on", self.fail_on, "--json"]
        return [*words, "--profile", self.profile] if self.profile else words

    def judged(self, node: Node) -> Report:
        from gpudoctor.checks.core.case import Expect

        not_run = dict.fromkeys((*PROBES, "torch"), Missing("nothing was put under load"))
        question = Question(
            checks=self.checks,
            level=self.level,
            profile=self.profile,
            fail_on=self.fail_on,
            expect=Expect(gpus=self.gpus),
        )
        return judge(node, Measurements(not_run=not_run), question)


def facts(asked: Asked) -> Report:
    return asked.judged(asked.node)


def _file(written: Callable[[Node], bytes]) -> Callable[[Asked], Report]:
    def through(asked: Asked) -> Report:
        return asked.judged(load_source("-", stdin=io.BytesIO(written(asked.node))).node)

    return through


def _report(node: Node) -> bytes:
    return render_json(judge(node, include_facts=True)).encode()


def _bundle(redact: bool) -> Callable[[Node], bytes]:
    return lambda node: pack(files_of(node, redact=redact, made_s=1e9), 10**9)


def nvml(asked: Asked) -> Report:
    from gpudoctor.facts.nvml.read_node import read_nvml

    with _fake_driver(asked.node):
        fake_driver = read_fake_driver_context(os.environ)
        assert fake_driver is not None
        heard = Heard()
        driver = read_nvml(heard.take, FakeNvml(asked.node), fake_driver.root)
        errors = tuple(f"index {index}: {words}" for index, words in sorted(heard.handle_errors.items()))
        read = Node(
            driver=msgspec.structs.replace(driver, handle_errors=errors),
            gpus=tuple(sorted(heard.gpus.values(), key=lambda gpu: gpu.bus_id)),
            pairs=tuple(heard.pairs_by_name.values()),
            **fake_driver.around(),
        )
        return asked.judged(fake_driver.placed(read))


def collector(asked: Asked) -> Report:
    with _fake_driver(asked.node) as folder:
        spec = write_script(folder / "script.json", Script(asked.node))
        return asked.judged(collect_live(nvml_module=spec))


@contextlib.contextmanager
def _fake_driver(node: Node) -> Iterator[Path]:
    with TemporaryDirectory(prefix="gpudoctor-soak-") as name:
        write_fake_driver_context(Path(name), node)
        with patch.dict(os.environ, {VARIABLE: name}):
            yield Path(name)


def command(asked: Asked) -> Report:
    said = io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        with (
            _configured(asked) as options,
            contextlib.redirect_stdout(said),
            patch.dict(os.environ, _environ(), clear=True),
        ):
            code = main(["check", *_node(asked), *options])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return _read(said.getvalue(), code)


def library(asked: Asked) -> Report:
    own = [sys.executable, "-m", "gpudoctor"]
    with _configured(asked) as options:
        done = completed(
            [*own, "fake-driver", *_node(asked), "--", *own, "check", *options],
            env={**_environ(), "PYTHONPATH": str(ROOT)},
        )
    return _read(done.stdout, done.returncode)


def _environ() -> dict[str, str]:
    """The caller's environment without the variables that facts of the node would include."""
    ours = ("CUDA_", "NCCL_", "SLURM_", "GPUDOCTOR_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


@contextlib.contextmanager
def _configured(asked: Asked) -> Iterator[list[str]]:
    with TemporaryDirectory(prefix="gpudoctor-soak-") as name:
        path = Path(name) / "gpudoctor.yaml"
        path.write_text("level: quick\n" if asked.gpus is None else f"expect: {{gpus: {asked.gpus}}}\n")
        yield [*asked.options, "--config", str(path)]


def _node(asked: Asked) -> list[str]:
    return ["--node", asked.name, *(word for fault in asked.faults for word in ("--fault", fault))]


def _read(text: str, code: int) -> Report:
    with TemporaryDirectory(prefix="gpudoctor-soak-") as name:
        path = Path(name) / "report.json"
        path.write_text(text)
        report = load_report(str(path), Report)
    if report.exit_code != code:
        raise UserError(f"the process ended with {code}, its report says {report.exit_code}")
    return report


# each with its weight: the slow ones, which start processes, are drawn seldom
SOURCES: dict[str, tuple[Callable[[Asked], Report], int]] = {
    "facts": (facts, 30),
    "json": (_file(to_json), 12),
    "yaml": (_file(as_yaml), 3),
    "report": (_file(_report), 6),
    "bundle": (_file(_bundle(redact=False)), 5),
    "redacted": (_file(_bundle(redact=True)), 5),
    "nvml": (nvml, 14),
    "command": (command, 15),
    "collector": (collector, 6),
    "library": (library, 4),
}
# these read a fake driver: a fault that no driver reports cannot show through them
DRIVERS = {"nvml", "collector", "library"}
