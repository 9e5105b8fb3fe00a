"""Runs the acceptance: the steps in order, then the summary and the archive, also after a signal.

The archive is a bundle that `--node` reads, with reports and raw data beside the facts.
"""

from __future__ import annotations

import datetime
import os
import re
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from acceptance.assumptions import overview
from acceptance.children import Guardian
from acceptance.driver_steps import read_cold
from acceptance.run import (
    Acceptance,
    AcceptanceRequest,
    AcceptanceRun,
    Item,
    Step,
    StepResult,
    could_not,
    differs,
    result_of,
)
from acceptance.smi_step import DUMP
from acceptance.steps import TAKES, wanted_steps
from gpudoctor.errors import UserError
from gpudoctor.facts.captures.archives import ACCEPTANCE, FACTS, KERNEL, MEASURED, REPORT, VERSIONS, pack
from gpudoctor.facts.model.gpu import system_program
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import to_json
from gpudoctor.facts.redaction.redact import Redaction
from gpudoctor.lazy import lazy_pattern
from gpudoctor.process.exit_codes import FAILED, OK
from gpudoctor.process.signals import InterruptedBySignal, hold_signals
from gpudoctor.report.bundle_files import kernel_lines, versions
from gpudoctor.report.model import render_json
from gpudoctor.report.output_files import OutputError, write_new_file
from gpudoctor.text.json_text import terminal_safe
from gpudoctor.text.output import printable, write_stdout

_WIDTH = 80
_INDENT = 4
_SIGNS = {"agreed": "+", "did not agree": "!", "could not look": "?"}


def summary(acceptance: Acceptance) -> str:
    """The summary, in lines of at most 80 columns: the steps, then what was not compared, at last the differences."""
    made_up = "SIMULATED node: nothing here is about a real machine\n" if acceptance.simulated else ""
    head = f"gpudoctor acceptance of {acceptance.node}, backend {acceptance.backend}, {acceptance.duration_s:.0f} s"
    lines = [made_up + "\n".join(textwrap.wrap(printable(head), _WIDTH)), ""]
    for step in acceptance.steps:
        lines.append(_step_line(step))
        for item in step.items:
            if item.outcome == "agreed":
                lines += _wrapped(item)
    for outcome, title in (("could not look", "Could not look at:"), ("did not agree", "Did not agree:")):
        found = [(step.step, item) for step in acceptance.steps for item in step.items if item.outcome == outcome]
        if found:
            lines += ["", title]
            for name, item in found:
                lines += _wrapped(item, f"{name}: ")
    lines += ["", "The ten measurements, and whether they confirm gpudoctor's constants:"]
    lines += [line for row in overview(acceptance.steps, TAKES) for line in _indented(row)]
    return "\n".join([*lines, "", *textwrap.wrap(_last_line(acceptance), _WIDTH)]) + "\n"


def _step_line(step: StepResult) -> str:
    return f"{step.outcome.upper():<15} {step.step:<12} {step.seconds:6.1f} s  {step.title}"[:_WIDTH]


def _indented(row: str) -> list[str]:
    return textwrap.wrap(row, _WIDTH, subsequent_indent=" " * 16, break_on_hyphens=False, break_long_words=False)


def _wrapped(item: Item, before: str = "") -> list[str]:
    sign = f"{' ' * (_INDENT - 2)}{_SIGNS[item.outcome]} "
    return textwrap.wrap(
        printable(before + item.text),
        _WIDTH,
        initial_indent=sign,
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
    )


def _last_line(acceptance: Acceptance) -> str:
    counts = (
        f"{acceptance.count('agreed')} steps agreed, {acceptance.count('did not agree')} did not, "
        f"{acceptance.count('could not look')} could not look"
    )
    if acceptance.interrupted:
        return f"INTERRUPTED by {acceptance.interrupted}: {counts}."
    return f"{'AGREED' if acceptance.exit_code == 0 else 'DID NOT AGREE'}: {counts}."


_FACTS_S = 180.0
# unexpected errors of a step: it counts as "did not agree", the other steps go on
_STEP_ERRORS = (
    *(UserError, msgspec.MsgspecError, OSError, ValueError, TypeError, LookupError, AttributeError),
    *(ArithmeticError, RuntimeError),
)


def accept(request: AcceptanceRequest, output: Path | None) -> int:
    """Do one run and return its exit code. Raise UserError if it cannot start or the archive cannot be written."""
    path = _writable(output or Path(time.strftime("gpudoctor-acceptance-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime())))
    mark = str(uuid.uuid4())
    folder = _private_folder()
    guardian = None
    steps = wanted_steps(request)
    show = _progress()
    try:
        guardian = Guardian(mark=mark, folder=folder)
        run = AcceptanceRun(request, folder, mark, show)
        began_s, started = time.monotonic(), datetime.datetime.now(datetime.timezone.utc)
        results, interrupted = run_steps(run, steps)
        show("")
        code = FAILED if any(step.outcome == "did not agree" for step in results) else OK
        acceptance = Acceptance(
            node=known(run.node.host.hostname) or run.node.source.name or "this node",
            simulated=run.simulated,
            backend=request.backend,
            started_at=started.isoformat(timespec="seconds"),
            duration_s=round(time.monotonic() - began_s, 1),
            exit_code=code if interrupted is None else interrupted.exit_code,
            steps=tuple(results),
            interrupted=None if interrupted is None else str(interrupted),
        )
        try:
            write_new_file(path, packed(run, acceptance, int(time.time())))
        finally:  # print the summary also if the archive cannot be written
            write_stdout(summary(acceptance))
        write_stdout(f"{printable(str(path))}\n")
        return acceptance.exit_code
    finally:
        if guardian is not None:
            guardian.close()
        else:
            folder.rmdir()


def run_steps(run: AcceptanceRun, steps: tuple[Step, ...]) -> tuple[list[StepResult], InterruptedBySignal | None]:
    """The results, and the signal that ended the run early. Raise UserError if there is no GPU."""
    results: list[StepResult] = []
    items: list[Item] = []
    began_s = time.monotonic()
    try:
        first_look(run)
        for step in steps:
            began_s, items = time.monotonic(), []
            run.begin(step)
            try:
                for item in step.function(run):
                    items.append(item)
            except _STEP_ERRORS as error:
                words = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
                items.append(differs(f"the step broke off: {words}"))
            results.append(result_of(step.name, step.title, time.monotonic() - began_s, tuple(items)))
        hold_signals()
        return results, None
    except InterruptedBySignal as stop:
        hold_signals(stop)
        for step in steps[len(results) :]:
            seconds = time.monotonic() - began_s if items else 0.0
            results.append(result_of(step.name, step.title, seconds, (*items, could_not(f"ended by {stop}"))))
            items = []
        return results, stop


def first_look(run: AcceptanceRun) -> None:
    """Read the driver before anything else wakes it, then the facts. Raise UserError if there is no GPU."""
    read_cold(run)
    run.allow(_FACTS_S)
    run.node = run.facts()
    if not run.node.gpus:
        why = known(run.node.driver.init_error) or "there is none, or its driver is not loaded"
        raise UserError(
            f"no NVIDIA GPU answers here ({why}); gpudoctor check says more. Without a GPU: "
            "make gpu-acceptance BACKEND=gloo"
        )


def _writable(path: Path) -> Path:
    """The path. Raise OutputError if no file can be created there: better now than after 20 minutes."""
    if str(path) == "-":
        raise OutputError("-o -: the summary goes to stdout; name a file for the archive")
    if os.path.lexists(path):
        raise OutputError(f"{path}: cannot write: there is one already, and it is not replaced")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot write: {getattr(error, 'strerror', None) or error}") from None


def _private_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="gpudoctor-acceptance-"))
    except OSError as error:
        raise UserError(f"no place for temporary files: {error.strerror or error}") from None


def _progress() -> Callable[[str], None]:
    """A function that shows progress on one line of stderr, on a terminal only; "" clears it."""
    try:
        on_terminal = bool(sys.stderr and sys.stderr.isatty())
    except ValueError:
        on_terminal = False

    def show(text: str) -> None:
        if on_terminal:
            sys.stderr.write(f"\r\x1b[2K{printable(text)[:78]}")
            sys.stderr.flush()

    return show


T = TypeVar("T")

# tags of nvidia-smi's dump that identify a part, a user's program or a rack
_NAMING_TAGS = "serial|board_part_number|gpu_part_number|process_name|chassis_serial_number"
_TAG = lazy_pattern(rf"<({_NAMING_TAGS})>([^<]*)</\1>")
_NOTHING = ("N/A", "None", "")
# the reports whose measurements go into the archive: the first one present
_RICHEST = ("burn", "full", "standard")


def packed(run: AcceptanceRun, acceptance: Acceptance, made_s: int) -> bytes:
    """The .tar.gz, redacted unless the options disable it."""
    redaction = Redaction(run.node) if run.request.redact else None

    def clean(thing: T) -> T:
        return thing if redaction is None else redaction.of(thing)

    node = run.node if redaction is None else redaction.node
    files = {
        FACTS: _pretty(to_json(node)),
        ACCEPTANCE: _pretty(msgspec.json.encode(_redacted(acceptance, redaction))),
        VERSIONS: _pretty(msgspec.json.encode(versions(node))),
        KERNEL: kernel_lines(node).encode("utf-8", "backslashreplace"),
    }
    for name, report in run.reports.items():
        files[REPORT if name == "quick" else f"report-{name}.json"] = render_json(clean(report)).encode()
    richest = next((run.reports[name] for name in _RICHEST if name in run.reports), None)
    if richest is not None:
        files[MEASURED] = _pretty(msgspec.json.encode(clean(richest.measurements)))
    for name, data in run.raw.items():
        files[name] = data if redaction is None else _text_of(redaction, name, data)
    return pack(files, made_s)


def _redacted(acceptance: Acceptance, redaction: Redaction | None) -> Acceptance:
    if redaction is None:
        return acceptance

    def clean(item: Item) -> Item:
        assumption = item.assumption
        if assumption is not None:
            texts = {name: redaction.text(getattr(assumption, name)) for name in ("measured", "assumed", "why")}
            assumption = replace(assumption, **texts)
        return replace(item, text=redaction.text(item.text), assumption=assumption)

    steps = tuple(replace(step, items=tuple(map(clean, step.items))) for step in acceptance.steps)
    return replace(acceptance, node=redaction.text(acceptance.node), steps=steps)


def _pretty(data: bytes) -> bytes:
    return terminal_safe(msgspec.json.format(data, indent=2)) + b"\n"


def _text_of(redaction: Redaction, name: str, data: bytes) -> bytes:
    if name.endswith(".json"):
        # the strings only: among the digits of a measured number may be those of a serial
        return msgspec.json.encode(_with_clean_strings(redaction, msgspec.json.decode(data)))
    text = data.decode("utf-8", "replace")
    if name == DUMP:
        text = _TAG.sub(_hidden, text)
    return redaction.text(text).encode("utf-8", "backslashreplace")


def _with_clean_strings(redaction: Redaction, value: object) -> object:
    if isinstance(value, str):
        return redaction.text(value)
    if isinstance(value, list):
        return [_with_clean_strings(redaction, each) for each in value]
    if isinstance(value, dict):
        return {redaction.text(name): _with_clean_strings(redaction, each) for name, each in value.items()}
    return value


def _hidden(match: re.Match[str]) -> str:
    tag, value = match[1], match[2].strip()
    kept = value in _NOTHING or (tag == "process_name" and system_program(value) is not None)
    return match[0] if kept else f"<{tag}>redacted</{tag}>"
