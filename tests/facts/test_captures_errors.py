"""The words for an error in dumps: what each costs, as the same code would cost on a live driver."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpudoctor.facts.model.node import Node
from gpudoctor.report.judge import judge
from tests.facts.loaded_nodes import pasted

RTX4090_CORE = ("Product Name", "Graphics", "SM", "Memory", "GPU Current Temp", "Gpu", "Total", "Used", "Free")


def says(text: str, word: str, *labels: str) -> str:
    """The text with that word at these labels of every GPU."""
    for label in labels:
        text = re.sub(rf"^( +{re.escape(label)} +:).*$", rf"\1 {word}", text, flags=re.MULTILINE)
    return text


def lost(node: Node) -> set[str]:
    return {f.status.value for check in judge(node).checks if check.id == "gpu.lost" for f in check.findings}


@pytest.mark.parametrize("label", ["Addressing Mode", "Host Max", "Persistence Mode", "Gpu"])
def test_unknown_error_in_one_field_of_working_gpus_condemns_none(captures: Path, label: str) -> None:
    """Drivers 535 on RTX 4090 and cloud V100s print it for a field or two of healthy GPUs."""
    text = (captures / "smi-q-8x-rtx4090.txt").read_text()
    assert re.search(rf"^ +{label} +:", text, re.MULTILINE)
    node = pasted(says(text, "Unknown Error", label))
    assert lost(node) == {"pass"}
    assert not judge(node).faults


def test_unknown_error_in_all_core_fields_condemns_the_gpus(captures: Path) -> None:
    text = (captures / "smi-q-8x-rtx4090.txt").read_text()
    assert lost(pasted(says(text, "[Unknown Error]", *RTX4090_CORE))) == {"fail"}
    but_name = says(text, "Unknown Error", *RTX4090_CORE[1:], "Average Power Draw", "Power Draw")
    assert lost(pasted(but_name)) == {"unknown"}


@pytest.mark.parametrize("word", ["GPU is lost", "[GPU requires reset]"])
def test_one_field_that_says_lost_or_reset_condemns_the_gpu(captures: Path, word: str) -> None:
    text = (captures / "smi-q-8x-rtx4090.txt").read_text()
    assert lost(pasted(says(text, word, "Fan Speed"))) == {"fail"}


def test_the_fabrics_verdict_on_a_gpu_is_a_value_and_not_the_gpus_own_error(captures: Path) -> None:
    text = (captures / "qx-h100.xml").read_text()
    assert "<status>Success</status>" in text
    node = pasted(text.replace("<status>Success<", "<status>Unknown Error<"))
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
def test_a_gpu_that_nvidia_smi_cannot_open_is_judged_by_the_words(said: str, status: str) -> None:
    node = pasted(f"Unable to determine the device handle for GPU0000:05:00.0: {said}\n")
    assert lost(node) == {status}
