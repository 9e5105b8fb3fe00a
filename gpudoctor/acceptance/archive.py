"""The archive of an acceptance run: a bundle that `--node` reads, with reports and raw data beside the facts."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from gpudoctor.acceptance.run import Acceptance, AcceptanceRun
from gpudoctor.acceptance.smi_step import DUMP
from gpudoctor.facts.captures.archives import ACCEPTANCE, FACTS, KERNEL, MEASURED, REPORT, VERSIONS, pack
from gpudoctor.facts.model.gpu import system_program
from gpudoctor.facts.model.node import to_json
from gpudoctor.facts.redaction.redact import Redaction
from gpudoctor.json_text import terminal_safe
from gpudoctor.report.bundle_files import kernel_lines, versions
from gpudoctor.report.model import render_json

T = TypeVar("T")

# tags of nvidia-smi's dump that identify a part, a user's program or a rack
_NAMING_TAGS = "serial|board_part_number|gpu_part_number|process_name|chassis_serial_number"
_TAG = re.compile(rf"<({_NAMING_TAGS})>([^<]*)</\1>")
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
    steps = tuple(
        replace(step, items=tuple(replace(item, text=redaction.text(item.text)) for item in step.items))
        for step in acceptance.steps
    )
    return replace(acceptance, node=redaction.text(acceptance.node), steps=steps)


def _pretty(data: bytes) -> bytes:
    return terminal_safe(msgspec.json.format(data, indent=2)) + b"\n"


def _text_of(redaction: Redaction, name: str, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    if name == DUMP:
        text = _TAG.sub(_hidden, text)
    return redaction.text(text).encode("utf-8", "backslashreplace")


def _hidden(match: re.Match[str]) -> str:
    tag, value = match[1], match[2].strip()
    kept = value in _NOTHING or (tag == "process_name" and system_program(value) is not None)
    return match[0] if kept else f"<{tag}>redacted</{tag}>"
