"""Names of strangers reach no terminal, page or file as anything but text."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import msgspec
import pytest

from gpudoctor.facts.model.gpu import PathKind
from gpudoctor.facts.model.node import from_json, to_json
from gpudoctor.facts.simulated.load import apply_faults, load_node
from gpudoctor.text.json_text import terminal_safe
from tests.cli.conftest import Gpudoctor
from tests.planted_secrets import planted

# erases the screen in two ways, rings, turns the direction, breaks lines, and is markup of every kind
EVIL = "a\x1b[2J\x9b2J\x07\u202e[red]x[/]</script><b>&\"'\r\n|\x7f\u2028`$(x)%n{}" + "L" * 300
TYPED = "a\x1b[2J\u202e\x9b\x7f"


def raw(text: str) -> set[str]:
    """Characters that a terminal would act on, or hide."""
    return {c for c in text if not c.isprintable() and c != "\n"}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A facts file with hostile text in every free-text leaf, and in its name; two faults are on the node."""
    numbers = count()

    def evil(key: str, value: str) -> str:
        if key == "bus_id" or (key == "path" and value in get_args(PathKind)):
            return value
        return f"{EVIL}{next(numbers)}" if key == "uuid" else EVIL  # two GPUs of one UUID are refused

    node = apply_faults(load_node("hgx-h100-8", {}), ["gpu-lost@2", "pcie-width-x8@5"])
    facts = planted(json.loads(to_json(node)), evil, but="faults")
    facts["gpus"][0]["processes"] = [{"pid": 5, "name": EVIL, "user": EVIL, "kind": "C", "memory_mib": 70000}]
    event = {"kind": "xid", "text": f"NVRM: Xid {EVIL}", "code": 79, "bus_id": facts["gpus"][1]["bus_id"]}
    facts["kernel_log"] = {"events": [event], "source": EVIL}
    names = ("CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME", "NCCL_P2P_DISABLE", "NCCL_DEBUG")
    facts["environment"] = {"variables": [{"name": name, "value": EVIL} for name in names]}
    from_json(json.dumps(facts))
    file = tmp_path_factory.mktemp("hostile") / f"{TYPED}<i>[b].json"
    file.write_text(json.dumps(facts))
    return str(file)


@pytest.mark.wide(every=2)
@pytest.mark.parametrize("form", ["text", "json", "nagios", "prometheus", "junit", "html"])
def test_no_format_lets_a_strangers_text_act(form: str, hostile: str, gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("check", "--level", "quick", "--node", hostile, "--format", form, "-v", "--include-facts")
    assert outcome.code == (2 if form == "nagios" else 1)
    assert raw(outcome.out) == set()
    assert outcome.err == ""
    if form == "json":
        assert EVIL in [gpu["name"] for gpu in outcome.json["gpus"]], "the document means what was read"
    elif form == "junit":
        ElementTree.fromstring(outcome.out)
    elif form == "html":
        assert "<b>&" not in outcome.out
        assert "<i>[b]" not in outcome.out
    elif form == "nagios":
        assert (outcome.out.count("\n"), outcome.out.count("|")) == (1, 1)
    elif form == "prometheus":
        assert all(line.startswith(("#", "gpudoctor_")) for line in outcome.out.splitlines())


@pytest.mark.parametrize("command", ["facts", "bundle"])
def test_facts_and_where_a_bundle_lies_are_shown_without_escapes(
    command: str, hostile: str, gpudoctor: Gpudoctor, tmp_path: Path
) -> None:
    options = ("-o", str(tmp_path / f"{TYPED}.tar.gz")) if command == "bundle" else ()
    outcome = gpudoctor(command, "--node", hostile, *options)
    assert outcome.code == 0
    assert raw(outcome.out) == set()
    if command == "facts":
        assert outcome.json["gpus"][0]["name"] == EVIL


@pytest.mark.parametrize(
    "argv",
    [
        (TYPED,),
        ("check", "--node", TYPED),
        ("check", "--node", TYPED, "--json"),
        ("check", f"--{TYPED}"),
        ("check", TYPED),
        ("check", "--level", TYPED),
        ("check", "--deadline", TYPED),
        ("check", "--profile", TYPED, "--node", "hgx-h100-8"),
        ("check", "--config", TYPED),
        ("check", "--gpu", TYPED, "--node", "hgx-h100-8", "--level", "quick"),
        ("check", "--fault", f"gpu-lost@{TYPED}", "--node", "hgx-h100-8"),
        ("facts", "--node", "hgx-h100-8", "-o", f"/nowhere/{TYPED}"),
        ("explain", TYPED),
        ("fake-driver", "--node", TYPED, "--", "true"),
        ("tui", "--node", f"ssh:{TYPED}"),
        ("watch", "--node", TYPED),
    ],
)
def test_what_was_typed_is_repeated_without_escapes(argv: tuple[str, ...], gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor(*argv)
    assert outcome.code == 2
    assert raw(outcome.out) | raw(outcome.err) == set()
    assert outcome.err


def test_json_without_raw_control_characters_means_the_same() -> None:
    text = "a\x9b2J \x7f \u202e \u2028 \U000e0001 é 漢 \U0001f600"
    safe = terminal_safe(msgspec.json.encode({text: text}))
    assert raw(safe.decode()) == set()
    assert "é 漢 \U0001f600".encode() in safe
    assert msgspec.json.decode(safe) == {text: text}
