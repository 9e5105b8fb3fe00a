"""Malicious or absurd sources: impossible numbers, machines too large, names that are not text."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from gpudoctor.facts.captures.leaves import _KINDS, _REQUIRED, plausible
from gpudoctor.facts.captures.source import SourceError, load_source
from gpudoctor.facts.model.node import to_json
from gpudoctor.facts.simulated.load import node_names
from tests.checks.wired import judged, on_gpus, simulated
from tests.facts.test_source import NODE, Write, said, write

__all__ = ["write"]


@pytest.mark.parametrize("name", node_names())
def test_no_number_of_a_simulated_node_is_called_senseless(name: str) -> None:
    node = load_source(name, environ={}).node
    assert plausible(node) == node


def test_every_bounded_field_may_be_missing() -> None:
    for kind in _KINDS:
        hints = get_type_hints(kind)
        for field in msgspec.structs.fields(kind):
            words = str(hints[field.name])
            if re.search(r"\b(?:int|float)\b", words) and (kind, field.name) not in _REQUIRED:
                assert "Missing" in words, (kind, field.name)


@pytest.mark.parametrize(
    ("gpu", "field"),
    [
        ({"pcie": {"width": -16}}, "width reads -16"),
        ({"pcie": {"generation": 99}}, "generation reads 99"),
        ({"thermal": {"gpu_c": -300}}, "gpu_c reads -300"),
        ({"power": {"draw_w": -1}}, "draw_w reads -1"),
        ({"memory_total_mib": -81559}, "memory_total_mib reads -81559"),
        ({"ecc": {"uncorrected_volatile": -1}}, "uncorrected_volatile reads -1"),
    ],
)
def test_a_number_that_cannot_be_is_a_failed_reading(write: Write, gpu: dict[str, object], field: str) -> None:
    raw = {"schema": "gpudoctor.facts/1", "gpus": [{"index": 0, "bus_id": "0000:18:00.0", **gpu}]}
    saved = to_json(load_source(write(json.dumps(raw))).node).decode()
    assert f'{{"missing":"not understood: {field}' in saved
    assert '"kind":"failed"' in saved


@pytest.mark.wide
def test_more_than_1024_gpus_are_no_machine(write: Write) -> None:
    gpus = [{"index": n, "bus_id": f"{n:04x}:01:00.0"} for n in range(1025)]
    assert "more than 1024 GPUs" in said(write(json.dumps({"schema": "gpudoctor.facts/1", "gpus": gpus})))
    xml = "".join(f'<gpu id="{n:08X}:01:00.0"/>' for n in range(1025))
    assert "more than 1024 GPUs" in said(write(f"<nvidia_smi_log>{xml}</nvidia_smi_log>"))
    text = "".join(f"GPU {n:08X}:01:00.0\n" for n in range(1025))
    assert "more than 1024 GPUs" in said(write(f"==NVSMI LOG==\nAttached GPUs : 1025\n{text}"))
    links = "".join(f"GPU {n}: X (UUID: GPU-{n})\n\t Link 0: 25 GB/s\n" for n in range(1025))
    assert "more than 1024 GPUs" in said(write(links))


def test_an_empty_name_a_loop_and_a_closed_stream_are_named(tmp_path: Path) -> None:
    assert "empty name" in said("")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert said(str(tmp_path / "a")).endswith("/a: too many levels of symbolic links")
    stream = io.BytesIO()
    stream.close()
    with pytest.raises(SourceError, match="standard input is closed"):
        load_source("-", stdin=stream)


def test_names_that_are_no_text_reach_neither_facts_nor_errors_raw(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\n")
    Path(name).write_text("words\n")
    assert "caf\\udce9\\n: not recognised" in said(name)
    Path(name).write_bytes(to_json(NODE))
    node = load_source(name).node
    assert node.source.name == "caf\\udce9\\n"
    assert to_json(node)


def test_the_kernels_own_folders_are_no_dumps() -> None:
    assert "no directory of dumps" in said("/proc")
    assert "no directory of dumps" in said("/sys/class")
    assert "the file is empty; if it is one of /proc" in said("/proc/version")


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        ("pcie.link-width", {"pcie__width": -16}),
        ("pcie.link-width", {"pcie__width_max": 0, "pcie__path": ()}),
        ("pcie.link-speed", {"pcie__generation": -4}),
        ("pcie.balance", {"pcie__width": 0}),
    ],
)
def test_a_link_of_no_lanes_or_generation_is_unknown_to_the_checks(check: str, wrong: dict[str, Any]) -> None:
    findings = judged(check, on_gpus(simulated("rtx4090-4"), **wrong)).findings
    assert {finding.status for finding in findings} == {"unknown"}


@pytest.mark.parametrize("value", ["!!bool foo", '!!int ""', "!!timestamp x", "!!python/object/apply:os.system [id]"])
def test_a_yaml_tag_is_refused_before_its_constructor_can_trip(value: str, tmp_path: Path) -> None:
    path = tmp_path / "facts.yaml"
    path.write_text(f"schema: gpudoctor.facts/1\nsource: {{name: {value}}}\nnetwork: {{}}\n...\n")
    with pytest.raises(SourceError, match=r"line 2: YAML tags are refused"):
        load_source(str(path))
