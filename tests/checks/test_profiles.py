"""Profiles: which one a node gets, and its numbers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.node import Node
from gpudoctor.profiles import load
from gpudoctor.profiles.load import (
    DOCUMENT,
    FOLDER,
    IndexEntry,
    gpu_models,
    model_key,
    packaged,
    profile_for,
    profile_names,
)
from tests.checks.wired import ABSENT, on_gpus, on_pairs, simulated
from tests.golden_files import assert_golden
from tests.narrowed import present


def of(name: str, count: int = 1) -> Node:
    return Node(gpus=tuple(Gpu(i, f"0000:{i + 1:02x}:00.0", name=name) for i in range(count)))


@pytest.mark.parametrize(
    ("product", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("nvidia l40s", "l40s"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", "l40"),
        ("Tesla T4", "t4"),
        ("NVIDIA H800", "h800-sxm"),
        ("NVIDIA H800 PCIe", "h800-pcie"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GH200 480GB", "gh200-96"),
        ("GeForce RTX 2080 Ti", "rtx2080ti"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090 D", "rtx4090d"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L20X", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("GRID A100-40C", None),
        ("GeForce GTX 680", None),
        ("", None),
    ],
)
def test_a_model_is_known_by_its_whole_name_in_any_case(product: str, key: str | None) -> None:
    assert model_key(product) == key


def test_memory_decides_between_models_of_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    twins = {key: IndexEntry(("Twin",)) for key in ("h100-sxm", "h200-sxm")}
    monkeypatch.setattr(load, "packaged", lambda: replace(packaged(), index=twins))
    uncached = model_key.__wrapped__
    assert uncached("NVIDIA Twin", 143771) == "h200-sxm"
    assert uncached("NVIDIA Twin", 81559) == "h100-sxm"
    assert uncached("NVIDIA Twin", 40000) == "h100-sxm"


NAMED_AS_THEIR_KIND = (
    *("hgx-h100-8", "hgx-h200-8", "hgx-b200-8", "dgx-a100-8", "dgx1-v100-8", "gb200-tray-4", "gh200-1", "h100-nvl-2"),
    *("rtx3090-nvlink-2", "rtx4090-4", "l40s-8"),
)


@pytest.mark.parametrize(
    ("node", "name", "has_kind"),
    [
        *((name, name, True) for name in NAMED_AS_THEIR_KIND),
        ("t4-cloud-4", "t4-4", True),
        ("hgx-h100-vm-8", "hgx-h100-8", True),
        ("display-plus-a100", "a100-pcie-2", True),
        ("container-2-of-8", "h100-sxm", False),
        ("a100-mig-8", "a100-sxm4-80gb", False),
        ("h100-pcie-2-unbridged", "h100-pcie", False),
        ("workstation-mixed", "rtx4090", False),
        ("cpu-only", "none", False),
        ("vgpu-guest-1", "none", False),
    ],
)
def test_each_simulated_node_gets_the_profile_of_its_kind(node: str, name: str, has_kind: bool) -> None:
    profile = profile_for(simulated(node))
    assert profile.name == name
    assert (profile.node is not None) is has_kind


def test_cards_without_their_bridge_are_not_the_bridged_kind() -> None:
    bridged = simulated("rtx3090-nvlink-2")
    bare = on_pairs(on_gpus(bridged, nvlinks=()), lambda pair: replace(pair, nvlinks=0, path="SYS"))
    profile = profile_for(bare)
    assert (profile.name, profile.node) == ("rtx3090", None)


def test_a_virtual_machine_whose_links_are_all_down_is_not_the_switched_kind() -> None:
    def down(gpu: Gpu) -> object:
        return tuple(replace(link, state="inactive") for link in present(gpu.nvlinks))

    node = on_gpus(simulated("hgx-h100-vm-8"), nvlinks=down)
    node = on_pairs(node, lambda pair: replace(pair, nvlinks=0, path="PHB"))
    assert profile_for(node).node is None


def test_a_capture_that_says_nothing_of_nvlink_does_not_speak_against_the_kind() -> None:
    node = on_gpus(simulated("hgx-h100-vm-8"), nvlinks=ABSENT)
    assert profile_for(replace(node, pairs=ABSENT)).name == "hgx-h100-8"


def test_two_models_have_no_majority_and_a_lost_gpu_without_a_name_does_not_change_the_kind() -> None:
    mixed = Node(gpus=(*of("NVIDIA L4").gpus, replace(of("NVIDIA L40S").gpus[0], index=1)))
    assert profile_for(mixed).name == "none"
    assert profile_for(on_gpus(simulated("hgx-h100-8"), 3, name=ABSENT)).name == "hgx-h100-8"


def test_a_profile_can_be_asked_for_by_kind_or_by_model() -> None:
    asked = profile_for(Node(), "hgx-h100-8")
    assert (present(asked.node).gpus, asked.matched_by) == (8, "asked for by name")
    assert present(asked.gpu).name == "H100 SXM5 80GB"
    assert profile_for(Node(), "l40s").node is None
    assert profile_for(of("NVIDIA L4"), "auto").name == "l4"


def test_an_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(UserError, match="no profile is called 'hgx-h100'; did you mean hgx-h100-8"):
        profile_for(Node(), "hgx-h100")
    with pytest.raises(UserError, match="there are: a100-pcie-2"):
        profile_for(Node(), "zzzzzz")


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return str(path)


def test_a_file_may_describe_a_node_of_a_packaged_model(tmp_path: Path) -> None:
    text = """
name: my-box
node: {title: Our box, gpu: h100-sxm, gpus: 4, nvlink_topology: switch,
       all_reduce: [{ranks: 4, busbw_gb_s: 350, source: measured in May}]}
"""
    profile = profile_for(Node(), written(tmp_path, text))
    kind = present(profile.node)
    assert (profile.name, kind.name, present(profile.gpu).name) == ("my-box", "my-box", "H100 SXM5 80GB")
    assert kind.all_reduce[0].busbw_gb_s == 350


def test_a_file_may_describe_a_model_of_its_own(tmp_path: Path) -> None:
    profile = profile_for(Node(), written(tmp_path, "gpu: {name: X100, patterns: [X100], pcie_width: 8}"))
    assert (profile.name, present(profile.gpu).pcie_width, profile.node) == ("mine", 8, None)
    assert profile_for(Node(), written(tmp_path, "gpu: l40s")).gpu == gpu_models()["l40s"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu: {name: X100, patterns: [X], watts: 3}", ["gpu", "watts"]),
        ("node: {name: a, title: b, gpu: l4, gpus: many}", ["node.gpus", "int"]),
        ("nodes: {}", ["line 1: nodes: unknown key"]),
        ("[1, 2", ["line", "not valid YAML"]),
        ("a: !!python/object/apply:os.system [id]", ["line 1", "tags are not allowed", "python"]),
        ("a: &x 1\nb: *x", ["line 2", "aliases"]),
        ("[" * 200_000, ["line 1", "nested deeper"]),
        ("\nnode: " + "{a: " * 20_000, ["line 2", "nested deeper"]),
        ("name: 2027-13-45", ["line 1: name: 2027-13-45 is no number or date"]),
        ("gpu:\n  power_limit_w: " + "9" * 4001, ["line 2: gpu.power_limit_w: 999"]),
        ("gpu: !!float abc", ["line 1", "tags are not allowed"]),
        ("gpu:\n  power_limit_w: .nan", ["line 2: gpu.power_limit_w: .nan: a number from 0"]),
        ("node:\n  gpus: -8", ["line 2: node.gpus: -8: a number from 0"]),
        ("name: a\ngpu: l4\ngpu: t4", ["line 3: gpu: this key is there twice, first in line 2"]),
        (
            "node: {name: a, title: b, gpu: l4, gpus: 1,\n  size_factor: {'1': 1, '2': x}}",
            ["line 2: node.size_factor.2"],
        ),
        ("gpu: {name: X, patterns: [a, '(']}", ["line 1: gpu.patterns[1]: '(' is no regular expression"]),
        ("just words", ["the top level"]),
        ("", ["the top level"]),
        ("name: x", ["needs a key `gpu` or `node`"]),
        ("gpu: h100", ["no model is called 'h100'"]),
    ],
)
def test_a_broken_file_is_one_line_that_names_file_and_key(tmp_path: Path, text: str, words: list[str]) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        profile_for(Node(), path)
    message = str(caught.value)
    assert message.startswith(f"profile {path}")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_file_that_is_absent_or_no_text_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        profile_for(Node(), str(tmp_path / "absent.yaml"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8"):
        profile_for(Node(), str(tmp_path / "binary.yaml"))


def test_a_pipe_a_device_and_a_huge_file_are_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(1 << 40)
    for name, words in {
        str(tmp_path / "pipe.yaml"): "not a regular file",
        "/dev/zero": "not a regular file",
        str(tmp_path / "huge.yaml"): "larger than 1 MiB",
        "a\0.yaml": "not the name of a file",
    }.items():
        with pytest.raises(UserError, match=f"profile {name}: {words}"):
            profile_for(Node(), name)


def test_a_name_too_long_for_a_file_is_no_profile() -> None:
    with pytest.raises(UserError, match=r"no profile is called 'x{100}'"):
        profile_for(Node(), "x" * 5000)


def packaged_from_yaml() -> str:
    """Generate the text of DOCUMENT from the YAML files; what people edit is what a run reads."""
    whole: dict[str, dict[str, object]] = {"index": {}, "models": {}, "nodes": {}}
    for family, entries in yaml.safe_load(Path(FOLDER, "names.yaml").read_text(encoding="utf-8")).items():
        file = yaml.safe_load(Path(FOLDER, f"{family}.yaml").read_text(encoding="utf-8"))
        for key, entry in entries.items():
            whole["index"][key] = entry
            whole["models"][key] = {**file["gpus"][key], "patterns": entry["names"]}
        for name, node in file.get("nodes", {}).items():
            whole["nodes"][name] = {**node, "name": name}
    sections = []
    for section, entries in whole.items():
        lines = (f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in entries.items())
        sections.append(f"{json.dumps(section)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{" + ",\n".join(sections) + "}\n"


def test_what_a_run_reads_is_what_the_yaml_files_say() -> None:
    assert_golden(packaged_from_yaml(), Path(DOCUMENT))


def test_every_packaged_entry_is_valid_and_the_index_names_every_kind_of_node() -> None:
    kinds = {name: (key, count) for key, e in packaged().index.items() for count, name in e.nodes.items()}
    assert set(kinds) == set(packaged().nodes)
    assert sorted((*kinds, *packaged().index)) == sorted(profile_names())
    for name, (key, count) in kinds.items():
        kind = present(profile_for(Node(), name).node)
        assert (kind.name, kind.gpu, kind.gpus) == (name, key, count)
    assert list(packaged().index) == list(gpu_models())
    assert len(gpu_models()) == 62


def test_every_number_judged_has_a_source_that_is_explained() -> None:
    page = Path(FOLDER, "names.yaml").read_text()
    for key, model in gpu_models().items():
        for field, ids in (entry.split("=") for entry in ", ".join(model.sources).split(", ") if entry):
            assert hasattr(model, field) or field in ("pcie", "nvlink"), (key, field)
            for source in ids.split("+"):
                assert f"#   {source} " in page, (key, source)
    for name in profile_names():
        node = profile_for(Node(), name).node
        for row in node.all_reduce if node else ():
            assert row.source
            assert row.ranks <= (node.gpus if node else 0)
            assert row.busbw_gb_s > 0


def test_the_numbers_of_the_common_nodes_are_those_of_their_sources() -> None:
    h100, h200 = present(profile_for(Node(), "hgx-h100-8").gpu), present(profile_for(Node(), "hgx-h200-8").node)
    nvlink = present(h100.nvlink)
    assert (nvlink.links, nvlink.raw_gb_s, h100.power_limit_w) == (18, 26.5625, 700)
    assert {row.ranks: row.busbw_gb_s for row in h200.all_reduce} == {8: 473, 7: 460, 6: 436, 5: 414, 4: 363}
    assert h200.size_factor["256"] == 0.82
    assert gpu_models()["gb10"].uncertain[-1] == "ecc"


def test_real_dumps_are_matched(captures: Path) -> None:
    from gpudoctor.facts.captures.source import load_source

    wanted = {"hgx-h100-dump": "hgx-h100-8", "smi-q-8x-rtx4090.txt": "rtx4090-8", "qx-h100.xml": "hgx-h100-8"}
    assert {name: profile_for(load_source(str(captures / name)).node).name for name in wanted} == wanted
