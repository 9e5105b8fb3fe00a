"""The words for an error in dumps: what each costs, as the same code would cost on a live driver."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.model.node import Node
from gpudoctor.report.judge import judge
from tests.facts.test_captures_smi import written

RTX4090_CORE = ("Product Name", "Graphics", "SM", "Memory", "GPU Current Temp", "Gpu", "Total", "Used", "Free")


def says(text: str, word: str, *labels: str) -> str:
    """The text with that word at these labels of every GPU."""
    for label in labels:
        text = re.sub(rf"^( +{re.escape(label)} +:).*$", rf"\1 {word}", text, flags=re.MULTILINE)
    return text


def lost(node: Node) -> set[str]:
    return {f.status.value for check in judge(node).checks if check.id == "gpu.lost" for f in check.findings}


@pytest.mark.parametrize("label", ["Addressing Mode", "Host Max", "Persistence Mode", "Gpu"])
def test_unknown_error_in_one_field_of_working_gpus_condemns_none(captures: Path, tmp_path: Path, label: str) -> None:
    """Drivers 535 on RTX 4090 and cloud V100s print it for a field or two of healthy GPUs."""
    text = (captures / "smi-q-8x-rtx4090.txt").read_text()
    assert re.search(rf"^ +{label} +:", text, re.MULTILINE)
    node = load_source(written(tmp_path, says(text, "Unknown Error", label))).node
    assert lost(node) == {"pass"}
    assert not judge(node).faults


def test_unknown_error_in_all_core_fields_condemns_the_gpus(captures: Path, tmp_path: Path) -> None:
    text = (captures / "smi-q-8x-rtx4090.txt").read_text()
    assert lost(load_source(written(tmp_path, says(text, "[Unknown Error]", *RTX4090_CORE))).node) == {"fail"}
    but_name = says(text, "Unknown Error", *RTX4090_CORE[1:], "Average Power Draw", "Power Draw")
    assert lost(load_source(written(tmp_path, but_name)).node) == {"unknown"}


@pytest.mark.parametrize("word", ["GPU is lost", "[GPU requires reset]"])
def test_one_field_that_says_lost_or_reset_condemns_the_gpu(captures: Path, tmp_path: Path, word: str) -> None:
    text = (captures / "smi-q-8x-rtx4090.txt").read_text()
    assert lost(load_source(written(tmp_path, says(text, word, "Fan Speed"))).node) == {"fail"}


def test_the_fabrics_verdict_on_a_gpu_is_a_value_and_not_the_gpus_own_error(captures: Path, tmp_path: Path) -> None:
    text = (captures / "qx-h100.xml").read_text()
    assert "<status>Success</status>" in text
    node = load_source(written(tmp_path, text.replace("<status>Success<", "<status>Unknown Error<"))).node
    assert {(gpu.fabric.status, gpu.errors) for gpu in node.gpus} == {("unknown error", ())}
    assert lost(node) == {"pass"}
    assert {fault.check for fault in judge(node).faults} == {"nvlink.fabric"}


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("Unknown Error", "fail"),
        ("Unable to communicate with GPU because it is insufficiently powered.", "fail"),
        ("Insufficient Permissions", "skip"),
    ],
)
def test_a_gpu_that_nvidia_smi_cannot_open_is_judged_by_the_words(tmp_path: Path, said: str, status: str) -> None:
    node = load_source(written(tmp_path, f"Unable to determine the device handle for GPU0000:05:00.0: {said}\n")).node
    assert lost(node) == {status}
