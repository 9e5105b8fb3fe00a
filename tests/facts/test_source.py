"""What `--node SOURCE` names, and the one clear line for what it cannot be."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from gpudoctor.facts.captures.opened import read_stream
from gpudoctor.facts.captures.source import SourceError, load_source
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import Measurements, TorchView
from gpudoctor.facts.model.missing import Missing, fill, known
from gpudoctor.facts.model.node import Driver, Host, Node, Source, to_json

GPUS = (Gpu(0, "0000:18:00.0", name="X"), Gpu(1, "0000:19:00.0", serial=Missing("no", "denied")))
SPARSE = Node(source=Source(kind="live", name="here"), driver=Driver(init_code=0), host=Host(ram_mib=65536))
# every leaf has a value or its reason, as in the facts that gpudoctor writes
NODE = replace(fill(SPARSE, Missing("not asked")), gpus=tuple(fill(gpu, Missing("not asked")) for gpu in GPUS))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], str]:
    def write(content: str | bytes) -> str:
        path = tmp_path / "file"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


Write = Callable[[str | bytes], str]


def said(name: str) -> str:
    """The one line of the error that loading `name` raises."""
    with pytest.raises(SourceError) as error:
        load_source(name)
    line = str(error.value)
    assert "\n" not in line
    assert "Traceback" not in line
    return line


def as_yaml(node: Node) -> str:
    return yaml.safe_dump(json.loads(to_json(node)), explicit_end=True)


def test_facts_json_gives_the_same_node_and_a_live_one_is_facts_now(write: Write) -> None:
    loaded = load_source(write(to_json(NODE)))
    assert replace(loaded.node, source=NODE.source) == NODE
    assert (loaded.node.source.kind, loaded.node.source.name) == ("facts", "file")
    assert loaded.measurements is None


def test_what_the_file_lacks_could_not_be_read(write: Write) -> None:
    lacking = load_source(write(to_json(replace(SPARSE, gpus=GPUS)))).node
    absent = (lacking.network.rdma_ports, lacking.host.shm_mib, lacking.pairs, lacking.gpus[0].ecc.enabled)
    assert set(absent) == {Missing("not in this file", "failed")}
    assert (lacking.host.ram_mib, lacking.gpus[1].serial) == (65536, Missing("no", "denied"))


def test_facts_yaml_gives_the_same_node(write: Write) -> None:
    assert load_source(write(as_yaml(NODE))).node == load_source(write(to_json(NODE))).node


@pytest.mark.parametrize("kind", ["simulated", "capture"])
def test_a_simulated_node_and_a_capture_stay_what_they_are_when_copied(write: Write, kind: str) -> None:
    source = msgspec.convert({"kind": kind, "name": "hgx-h100-8", "faults": ["f@1"]}, Source)
    path = write(to_json(Node(source=source)))
    # an edited copy of a simulated node is no longer the node of that name
    name = Path(path).name if kind == "simulated" else "hgx-h100-8"
    assert load_source(path).node.source == msgspec.structs.replace(source, name=name)


def report(**parts: object) -> str:
    return json.dumps({"schema": "gpudoctor.report/1", "verdict": "pass", **parts})


def test_a_report_gives_its_facts_and_measurements(write: Write) -> None:
    measured = Measurements(torch_view=TorchView("2.6.0"))
    body = report(facts=json.loads(to_json(NODE)), measurements=json.loads(msgspec.json.encode(measured)))
    loaded = load_source(write(body))
    assert loaded.node.gpus == NODE.gpus
    assert loaded.measurements == measured


def test_a_report_without_facts_says_how_to_get_them(write: Write) -> None:
    assert "--include-facts" in said(write(report()))


def test_stdin_is_read_for_a_dash() -> None:
    loaded = load_source("-", stdin=io.BytesIO(to_json(NODE)))
    assert loaded.node.source.name == "standard input"
    with pytest.raises(SourceError, match="standard input: there is nothing in it"):
        load_source("-", stdin=io.BytesIO(b""))


def test_a_closed_stdin_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert said("-") == "standard input is closed"


def test_a_dump_on_stdin_is_recognised(captures: Path) -> None:
    with (captures / "qx-l40s.xml").open("rb") as stream:
        node = load_source("-", stdin=stream).node
    assert (node.source.kind, node.source.name, len(node.gpus)) == ("capture", "standard input", 1)


def test_a_packed_dump_or_facts_file_is_unpacked(captures: Path, write: Write) -> None:
    plain = (captures / "qx-t4.xml").read_bytes()
    assert load_source(write(gzip.compress(plain))).node.gpus[0].name == "Tesla T4"
    assert load_source(write(gzip.compress(to_json(NODE)))).node.gpus == NODE.gpus


def test_a_name_that_is_no_file_is_a_simulated_node() -> None:
    node = load_source("hgx-h100-8", environ={"CUDA_VISIBLE_DEVICES": "1"}).node
    assert (node.source.kind, node.source.name, len(node.gpus)) == ("simulated", "hgx-h100-8", 8)
    assert node.environment.get("CUDA_VISIBLE_DEVICES") == "1"


def test_an_existing_file_wins_over_a_node_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hgx-h100-8").write_bytes(to_json(NODE))
    monkeypatch.chdir(tmp_path)
    assert load_source("hgx-h100-8").node.source.kind == "facts"


def test_a_name_that_is_nothing_is_answered_with_the_nearest_nodes() -> None:
    assert "did you mean hgx-h100-8" in said("hgx-h100")
    assert "gpudoctor nodes" in said("qqqqqqqq")
    assert said("./nowhere/file.xml") == "./nowhere/file.xml: no such file or directory"
    assert "no such file" in said("a" * 5000)
    assert "no such file" in said("nul\0byte")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "the file is empty"),
        (" \n\n", "there is nothing in it"),
        (b"\x7fELF\0\0\x01\xff", "binary data"),
        (b"caf\xe9 is not a dump", "nor UTF-8 text (byte 3)"),
        ("just some words\n", "not recognised"),
        ("<html></html>", "XML, but not of nvidia-smi"),
        (b"\x1f\x8bnope, this is no archive", "broken .gz"),
        (gzip.compress(b"x" * 99999, mtime=0)[:60], "the .gz ends before its end mark"),
        ("{", "cut off: Input data was truncated"),
        ('{"schema": "gpudoctor.facts/1", "x": "\\ud800"}', "broken JSON"),
        ("schema: gpudoctor.facts/1\ngpus: []", "line 2: cut off? the last line has no end"),
        ("schema: gpudoctor.facts/1\ngpus: []\n", "line 3: cut off? nothing shows that it is whole"),
        ('{"schema": "gpudoctor.facts/1", "gpus": [{]}', "broken JSON"),
        ('{"a": 1}', "the key 'schema' must be"),
        ('{"schema": "gpudoctor.facts/2"}', "'gpudoctor.facts/2'; this version reads"),
        ('{"schema": "gpudoctor.facts/1", "gpus": 3}', "Expected `array`, got `int` - at `$.gpus`"),
        (b'{"schema": "gpudoctor.facts/1", "x": "\xff"}', "not UTF-8 at byte 38"),
        ('{"schema": "gpudoctor.facts/1", "x": ' + "[" * 100_000, "nested too deeply"),
        ("schema: gpudoctor.facts/1\ngpus: 3\n", "Expected `array`, got `int` - at `$.gpus`"),
        ("schema: gpudoctor.facts/1\ngpus: [{index: 0, bus_id: 0000:18:00.0}]\n", "quote what looks like a number"),
        ("schema: gpudoctor.facts/1\ngpus: [\n", "broken YAML at line 3, column 1"),
        ("schema: gpudoctor.facts/1\nx: !!python/object/apply:os.system [ls]\n", "line 2: YAML tags are refused"),
        ("schema: gpudoctor.facts/1\na: &a [x]\nb: [*a, *a]\n", "line 3: YAML aliases are refused"),
        ("schema: gpudoctor.facts/1\nx: " + "[" * 50, "line 2: nested deeper than 32"),
        ("schema: gpudoctor.facts/1\nx: " + "[" * 50_000, "line 2: nested deeper than 32"),
        ("schema: gpudoctor.report/1\n", "a report is read as JSON"),
        ("schema: gpudoctor.other/1\n", "this version reads"),
        ("schema: gpudoctor.facts/1\nx: 2026-99-99\n", "month"),
        (b"schema: gpudoctor.facts/1\nx: \xff\n", "not UTF-8 at byte 29"),
        ("schema: gpudoctor.facts/1\nx: \x07\n", "broken YAML"),
    ],
)
def test_bad_content_is_one_line_with_the_file_and_the_place(write: Write, content: str | bytes, expected: str) -> None:
    path = write(content)
    line = said(path)
    assert line.startswith(f"{path}: ")
    assert expected in line


def test_depth_is_counted_per_document_so_that_cut_lines_of_a_log_are_read(write: Write) -> None:
    cut = "".join(f'{{"ts":{number},"msg":"step","x":{{"y":"1\n' for number in range(1000))
    xid = "[ 14.1] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    assert known(load_source(write(f"{cut}{xid}")).node.kernel_log.events)
    for deep in ('{"a":\n' * 100_000, f"{cut}{xid}{'{' * 1000}"):
        assert "nested too deeply" in said(write(deep))


def test_a_wrong_type_deep_inside_is_named_by_its_path(write: Write) -> None:
    raw = json.loads(to_json(NODE))
    raw["gpus"][1]["index"] = "one"
    assert "`$.gpus[1].index`" in said(write(json.dumps(raw)))
    assert "`$.gpus[1].index`" in said(write(yaml.safe_dump(raw)))
    assert "`$.facts.gpus[1].index`" in said(write(report(facts=raw)))


def one_gpu(gpu: str, kind: str = "simulated", count: int = 1) -> str:
    """A node that somebody wrote, with one GPU of these leaves."""
    head = f"schema: gpudoctor.facts/1\nsource: {{kind: {kind}}}\ndriver: {{device_count: {count}}}\n"
    return f"{head}gpus: [{{index: 0, bus_id: '0000:18:00.0', {gpu}}}]\n...\n"


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (
            "memory_total_mib: 23034, memory_free_mib: 30000",
            "memory_free_mib is 30000, more than memory_total_mib, which is 23034 - at `$.gpus[0].memory_free_mib`",
        ),
        (
            "memory_total_mib: 23034, memory_used_mib: 20000, memory_free_mib: 10000",
            "memory_used_mib 20000 and memory_free_mib 10000 are more than memory_total_mib 23034 - at `$.gpus[0]`",
        ),
        ("pcie: {width: 16, width_max: 8}", "width is 16, more than width_max, which is 8 - at `$.gpus[0].pcie.width`"),
        (
            "pcie: {path: [{bus_id: '0000:18:00.0', speed_gt_s: 32.0, max_speed_gt_s: 16.0}]}",
            "speed_gt_s is 32.0, more than max_speed_gt_s, which is 16.0 - at `$.gpus[0].pcie.path[0].speed_gt_s`",
        ),
        ("thermal: {gpu_c: -3}", "gpu_c is -3, below 0, which no driver can say - at `$.gpus[0].thermal`"),
        ("thermal: {gpu_c: 255}", "gpu_c is 255: out of range - at `$.gpus[0].thermal.gpu_c`"),
    ],
)
def test_what_no_machine_can_show_is_refused_in_a_node_that_somebody_wrote(
    write: Write, gpu: str, expected: str
) -> None:
    path = write(one_gpu(gpu))
    assert said(path) == f"{path}: {expected}"
    # what a machine read of itself is kept: an unknown value at worst
    assert load_source(write(one_gpu(gpu, kind="live"))).node.gpus


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ("gpu_c", "gpu_temp", "'gpu_temp'; did you mean gpu_c? - at `$.gpus[0].thermal.gpu_temp`"),
        ("thermal", "termal", "'termal'; did you mean thermal? - at `$.gpus[0].termal`"),
        ("gpus", "gpu", "'gpu'; did you mean gpus? - at `$.gpu`"),
        (
            "thermal: {gpu_c: 41}",
            "gpu_temp: 8",
            "'gpu_temp'; did you mean utilization.gpu_pct or thermal.gpu_c? - at `$.gpus[0].gpu_temp`",
        ),
        ("thermal", "xyz", "'xyz'; every key: gpudoctor schema facts - at `$.gpus[0].xyz`"),
    ],
)
def test_a_misspelt_key_of_a_node_that_somebody_wrote_is_refused_with_the_nearest(
    write: Write, right: str, wrong: str, expected: str
) -> None:
    text = one_gpu("thermal: {gpu_c: 41}").replace(right, wrong, 1)
    for content in (text, json.dumps(yaml.safe_load(text))):
        path = write(content)
        assert said(path) == f"{path}: no fact is called {expected}"


@pytest.mark.parametrize("as_text", [json.dumps, lambda raw: yaml.safe_dump(raw, explicit_end=True)])
def test_keys_that_a_newer_gpudoctor_added_are_left_out_with_a_note(
    write: Write, as_text: Callable[[object], str]
) -> None:
    node = replace(NODE, source=Source(kind="simulated", name="mine"))
    raw = json.loads(to_json(node))
    raw["gpus"][1]["thermal"]["liquid_c"] = 30
    read = load_source(write(as_text(raw))).node
    assert read.gpus == node.gpus
    assert read.source.notes == ("left out what this version of gpudoctor has no fact for: $.gpus[1].thermal.liquid_c",)


@pytest.mark.parametrize("bus_id", ["0000:3b:00", "3b:00.0", "0000:3B:00.0"])
def test_a_bus_id_in_another_form_is_refused_with_the_form_that_is_wanted(write: Write, bus_id: str) -> None:
    line = said(write(one_gpu("").replace("0000:18:00.0", bus_id)))
    assert f"bus_id is '{bus_id}': it must be in the form 0000:3b:00.0" in line
    assert line.endswith("- at `$.gpus[0].bus_id`")


def test_more_gpus_than_the_driver_counts_are_refused(write: Write) -> None:
    assert "device_count is 0, but there are 1 GPUs - at `$.driver.device_count`" in said(write(one_gpu("", count=0)))


def test_of_three_memory_figures_the_third_follows_from_two(write: Write) -> None:
    gpu = load_source(write(one_gpu("memory_total_mib: 1000, memory_used_mib: 300"))).node.gpus[0]
    assert gpu.memory_free_mib == 700
    gpu = load_source(write(one_gpu("memory_total_mib: 1000, memory_free_mib: 300"))).node.gpus[0]
    assert gpu.memory_used_mib == 700
    # the total alone does not say how much is used
    gpu = load_source(write(one_gpu("memory_total_mib: 1000"))).node.gpus[0]
    assert (gpu.memory_used_mib, gpu.memory_free_mib) == (Missing("not in this file", "failed"),) * 2


@pytest.mark.parametrize(("key", "value"), [("index", 0), ("bus_id", "0000:18:00.0"), ("uuid", "GPU-1")])
def test_two_gpus_that_are_one_are_refused(write: Write, key: str, value: object) -> None:
    raw = json.loads(to_json(NODE))
    raw["gpus"][0]["uuid"] = "GPU-1"
    raw["gpus"][1][key] = value
    line = said(write(json.dumps(raw)))
    assert "is there twice" in line
    assert f"$.gpus[1].{key}" in line


LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [{}]>'
    "<nvidia_smi_log><attached_gpus>{}</attached_gpus></nvidia_smi_log>"
)


@pytest.mark.parametrize(
    ("declared", "used"),
    [
        ('<!ENTITY a "ha">', "&a;"),
        ('<!ENTITY a "ha"><!ENTITY b "&a;&a;">', "1"),
        ('<!ENTITY a SYSTEM "file:///etc/passwd">', "&a;"),
        ('<!ENTITY % a SYSTEM "http://localhost/x.dtd"> %a;', "1"),
    ],
)
def test_xml_entities_are_refused(write: Write, declared: str, used: str) -> None:
    assert "XML with entities or external parts is refused" in said(write(LAUGHS.format(declared, used)))


def test_nvidia_smis_own_doctype_is_allowed_and_never_fetched(write: Write, captures: Path) -> None:
    text = (captures / "qx-l40s.xml").read_text()
    assert 'SYSTEM "nvsmi_device' in text
    assert load_source(write(text.replace("nvsmi_device", "file:///etc/passwd"))).node.gpus[0].name == "NVIDIA L40S"


def test_xml_cut_in_the_middle_says_where(write: Write, captures: Path) -> None:
    lines = (captures / "qx-h100.xml").read_text().splitlines()
    end = next(number for number, line in enumerate(lines) if "<ecc_errors>" in line) + 1
    notes = load_source(write("\n".join(lines[:end]))).node.source.notes
    assert f"cut off at line {end + 1}: the XML ends inside <ecc_errors>" in notes
    assert "the dump is cut off inside GPU 0000:53:00.0" in notes
    start = next(number for number, line in enumerate(lines) if "<gpu id" in line)
    assert "cut off at line" in said(write("\n".join(lines[:start])))
    broken = "\n".join(lines).replace("</ecc_errors>", "</oops>", 1)
    assert "broken XML at line" in said(write(broken))


def test_odd_bytes_inside_a_known_dump_are_replaced(write: Write, captures: Path) -> None:
    data = (captures / "qx-l40s.xml").read_bytes().replace(b"NVIDIA L40S", b"NVIDIA L40\xff")
    assert load_source(write(data)).node.gpus[0].name == "NVIDIA L40\ufffd"
    bom = b"\xef\xbb\xbf" + to_json(NODE)
    assert load_source(write(bom)).node.gpus == NODE.gpus


@pytest.mark.wide
@pytest.mark.parametrize("sort_keys", [True, False])
def test_facts_of_a_whole_node_as_yaml_are_read_and_no_part_of_them_is(write: Write, sort_keys: bool) -> None:
    node = load_source("rtx3090-nvlink-2", environ={}).node
    text = yaml.safe_dump(json.loads(to_json(node)), sort_keys=sort_keys)
    # a simulated node in a file may be edited: it has the file's name
    named = msgspec.structs.replace(node.source, name="file")
    assert load_source(write(text)).node == msgspec.structs.replace(node, source=named)
    lines = text.splitlines(keepends=True)
    last_key = max(number for number, line in enumerate(lines) if not line.startswith((" ", "-")))
    for end in range(0, last_key + 1, 7):
        assert said(write("".join(lines[:end])))
    assert said(write("".join(lines[:last_key])))
    assert "the last line has no end" in said(write(text[:-1]))


class Endless(io.RawIOBase):
    """A stream that never ends, and knows how much was taken from it."""

    taken = 0

    def read(self, size: int = -1, /) -> bytes:
        assert size >= 0, "an endless stream must be read in bounds"
        self.taken += size
        return (b"some other text" * 60 + b"\n") * (size // 901) + b"x" * (size % 901)


def test_an_endless_stdin_is_read_no_further_than_the_limit() -> None:
    stream = Endless()
    with pytest.raises(SourceError, match=r"standard input: nothing recognised in its first \d+ lines"):
        load_source("-", stdin=stream)  # type: ignore[arg-type]
    assert stream.taken < 20 * 1024 * 1024


def test_millions_of_lines_of_which_none_is_recognised_are_refused_before_all_are_read() -> None:
    stream = io.BytesIO(b"- x\n" * 2_000_000)
    with pytest.raises(SourceError, match=r"nothing recognised in its first \d{6} lines"):
        load_source("-", stdin=stream)
    assert stream.tell() < 4_000_000


def test_a_size_that_is_known_is_refused_after_the_head() -> None:
    stream = Endless()
    with pytest.raises(SourceError, match="larger than 64 MiB"):
        read_stream(stream, size=64 * 1024 * 1024 + 1)  # type: ignore[arg-type]
    assert stream.taken == 64 * 1024


def test_a_gzip_bomb_is_stopped_when_it_grows_past_the_limit(write: Write) -> None:
    packer = zlib.compressobj(9, wbits=31)
    packed = b"".join(packer.compress(b"[    0.000000] x\n" * 61681) for _ in range(70)) + packer.flush()
    assert len(packed) < 1_000_000
    assert "unpacked larger than 64 MiB" in said(write(packed))


def test_pipes_devices_and_unreadable_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file (a pipe or device): use - to read from stdin" in said(str(tmp_path / "pipe"))
    assert "not a regular file" in said("/dev/zero")

    def forbidden(self: Path, *args: object, **kwargs: object) -> object:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "secret").write_text("{}")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", forbidden)
        assert said(str(tmp_path / "secret")).endswith("secret: cannot be read: Permission denied")
    with monkeypatch.context() as patch:
        stat = Path.stat
        patch.setattr(Path, "stat", lambda path: stat(path) if path.is_absolute() else forbidden(path))
        assert said("secret") == "secret: permission denied"
        assert load_source("hgx-h100-8").node.source.kind == "simulated", "no file is looked at for it"
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", forbidden)
        assert said(str(tmp_path)).endswith("cannot be read: Permission denied")
