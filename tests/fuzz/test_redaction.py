"""Secrets planted at random, in texts of any kind around them: none of them is in what --redact leaves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import KernelEvent, Node, to_json
from gpudoctor.facts.redaction.redact import redacted
from gpudoctor.facts.simulated.load import load_node, put
from tests.fuzz.profile import fuzzed
from tests.planted_secrets import SECRETS

AROUND = ("{}", "({})", "'{}'", '"{}"', "[{}]", "<{}>", "x = {}", "{},", "{};", "it said: {}", "{} and so on", "\t{}\t")
BETWEEN = (" ", "; ", ", ", " | ", "\n")
PROSE = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)


@st.composite
def planted(draw: st.DrawFn) -> tuple[list[str], str]:
    secrets = draw(st.lists(st.sampled_from(sorted(SECRETS)), min_size=1, max_size=4))
    texts = [draw(st.sampled_from(AROUND)).format(SECRETS[secret].format(secret)) for secret in secrets]
    prose = draw(PROSE)
    return secrets, draw(st.sampled_from(BETWEEN)).join([prose, *texts] if prose else texts)


def node_with(text: str) -> Node:
    node = load_node("rtx4090-4", {})
    gpu = put(node.gpus[0], "thermal.memory_c", Missing(text, "failed"))
    node = put(node, "gpus", (gpu,))
    node = put(node, "kernel_log.events", (KernelEvent("xid", text, 63, gpu.bus_id),))
    node = put(node, "driver.init_error", text)
    return put(node, "source", replace(node.source, kind="live", name="live", notes=(text,)))


@fuzzed("redaction")
@given(planted())
def test_what_was_planted_is_not_found(what: tuple[list[str], str]) -> None:
    secrets, text = what
    left = to_json(redacted(node_with(text))).decode()
    assert [secret for secret in secrets if secret in left] == [], text
