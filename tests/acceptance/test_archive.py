"""The archive is a bundle: its contents are listed, and one from a stranger is judged or refused like any bundle."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from acceptance.command import packed, summary
from acceptance.run import Acceptance, AcceptanceRequest, AcceptanceRun, Item, result_of
from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.archives import ACCEPTANCE, FACTS, MEASURED, members, pack
from gpudoctor.facts.captures.opened import read_file
from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.model.node import to_json
from gpudoctor.facts.simulated.load import load_node
from tests.needs import needs
from tests.subprocesses import completed

NODE = load_node("t4-cloud-4")
ROOT = Path(__file__).parents[2]


def written(folder: Path, files: dict[str, bytes]) -> str:
    path = folder / "acceptance.tar.gz"
    path.write_bytes(pack({FACTS: to_json(NODE), **files}, 0))
    return str(path)


def test_what_was_measured_comes_back_with_the_facts(tmp_path: Path) -> None:
    loaded = load_source(written(tmp_path, {MEASURED: b'{"injected": ["slow-rank=1"]}', ACCEPTANCE: b"{}"}))
    assert loaded.node.gpus == NODE.gpus
    assert loaded.measurements is not None
    assert loaded.measurements.injected == ("slow-rank=1",)


@pytest.mark.parametrize("broken", [b"", b"[1]", b'{"collectives": 7}', b'{"launch": {', b"\xff\xfe", b"[" * 100_000])
def test_broken_measurements_are_one_line_that_names_the_file(tmp_path: Path, broken: bytes) -> None:
    with pytest.raises(SourceError, match=r"acceptance\.tar\.gz: measurements: ") as refused:
        load_source(written(tmp_path, {MEASURED: broken}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["report-.json", "report-../x.json", "nvidia-smi.sh", "nvml-cold.json.exe", "x.xml"])
def test_a_file_of_another_name_does_not_belong_in_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, match="not a bundle of gpudoctor"):
        load_source(written(tmp_path, {name: b"{}"}))


def test_the_dump_of_nvidia_smi_names_no_part_and_no_program_of_anybody(tmp_path: Path) -> None:
    run = AcceptanceRun(AcceptanceRequest(), tmp_path, "mark", lambda _: None)
    run.node = NODE
    run.raw["nvidia-smi.xml"] = (
        b"<serial>1320123456789</serial><board_part_number>900-21010-0000</board_part_number><serial>N/A</serial>"
        b"<process_name>/home/amelie/secret_plan.py</process_name><process_name>/usr/lib/xorg/Xorg</process_name>"
        b"<uuid>GPU-11112222-3333-4444-5555-666677778888</uuid>"
    )
    (tmp_path / "a").write_bytes(packed(run, told("agreed", "fine"), 0))
    dump = members(read_file(str(tmp_path / "a")))["nvidia-smi.xml"].decode()
    assert not any(word in dump for word in ("1320123456789", "900-21010", "amelie", "secret_plan", "11112222"))
    assert "<serial>N/A</serial>" in dump
    assert "Xorg" in dump


def test_the_numbers_of_raw_data_are_not_redacted_and_its_strings_are(tmp_path: Path) -> None:
    run = AcceptanceRun(AcceptanceRequest(), tmp_path, "mark", lambda _: None)
    run.node = NODE
    uuid = str(NODE.gpus[0].uuid)
    run.raw["measured-training.json"] = msgspec.json.encode({"took_s": [0.0023809999812394, 1320123456789], uuid: uuid})
    (tmp_path / "a").write_bytes(packed(run, told("agreed", "fine"), 0))
    kept = members(read_file(str(tmp_path / "a")))["measured-training.json"]
    assert msgspec.json.decode(kept)["took_s"] == [0.0023809999812394, 1320123456789]
    assert uuid.encode() not in kept


def told(outcome: str, text: str) -> Acceptance:
    item = msgspec.convert({"outcome": outcome, "text": text}, Item)
    code = int(outcome == "did not agree")
    return Acceptance("hopper17", False, "auto", "", 1.0, code, (result_of("facts", "facts", 1.0, (item,)),))


def test_the_summary_keeps_to_80_columns_and_shows_no_escapes() -> None:
    long = "GPU 3: \x1b[31m" + "a word " * 40 + "/a/path/that/does/not/end" * 8
    lines = summary(told("did not agree", long)).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "DID NOT AGREE: 0 steps agreed, 1 did not, 0 could not look."
    assert not any("\x1b" in line for line in lines)


@needs("make")
@pytest.mark.parametrize(
    ("backend", "before"), [("gloo", ["gpudoctor", "fake-driver", "--node", "hgx-h100-8", "--"]), ("auto", [])]
)
def test_make_without_a_gpu_plays_a_driver_and_with_one_does_not(backend: str, before: list[str]) -> None:
    command = ["make", "--no-print-directory", "-n", "-o", ".venv/.installed", "gpu-acceptance", f"BACKEND={backend}"]
    said = completed(command, cwd=ROOT, check=True).stdout
    words = said.strip().splitlines()[-1].replace(".venv/bin/", "").split()
    assert words == [*before, "python", "-m", "acceptance", "--backend", backend]
