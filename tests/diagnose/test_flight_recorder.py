"""Flight recorder dumps: who waits for whom; and pickles that want to do something else."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.diagnose.flight_recorder import DumpError, read_dump
from tests.diagnose.asking import answer_of, said
from tests.narrowed import present


def dump(
    enqueued: int, *, world: int = 3, name: str = "gloo:all_reduce", size: int = 4, version: str = "2.10"
) -> dict[str, Any]:
    """A dump of a rank whose last collective is not finished."""
    entries = [
        {
            "record_id": seq,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": seq,
            "p2p_seq_id": 0,
            "op_id": seq,
            "profiling_name": name,
            "time_created_ns": 1_795_346_235_000_000_000 + seq,
            "input_sizes": [[size]],
            "output_sizes": [[size]],
            "state": "scheduled",
            "retired": seq < enqueued,
            "is_p2p": False,
        }
        for seq in range(1, enqueued + 1)
    ]
    ranks = str(list(range(world)))
    return {
        "version": version,
        "pg_config": {"": {"name": "", "desc": "", "ranks": ranks}},
        "pg_status": {"0": {"last_enqueued_collective": enqueued, "last_completed_collective": enqueued - 1}},
        "entries": entries,
    }


def written(folder: Path, dumps: dict[int, dict[str, Any]], *, as_json: bool = False) -> Path:
    for rank, content in dumps.items():
        data = json.dumps(content).encode() if as_json else pickle.dumps(content)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return folder


@pytest.mark.parametrize("as_json", [False, True])
def test_the_rank_that_did_not_enqueue_is_named(tmp_path: Path, as_json: bool) -> None:
    folder = written(tmp_path, {0: dump(9), 1: dump(8), 2: dump(9)}, as_json=as_json)
    answer = answer_of(folder)
    assert said(answer) == ("rank_behind", 1)
    assert present(answer.cause).evidence[0].file.endswith("rank_1")


def test_last_words_that_no_rule_knows_do_not_outweigh_the_dumps(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("world size 3\nfatal: the flux capacitor is empty\n")
    assert said(answer_of(written(tmp_path, {0: dump(9), 1: dump(8), 2: dump(9)}))) == ("rank_behind", 1)


def test_a_rank_without_a_dump_is_a_suspect(tmp_path: Path) -> None:
    answer = answer_of(written(tmp_path, {0: dump(9), 2: dump(9)}))
    assert said(answer) == ("rank_behind", 1)
    assert "left no dump" in present(answer.cause).text


def test_another_collective_at_the_same_number_is_a_mismatch(tmp_path: Path) -> None:
    folder = written(tmp_path, {0: dump(9), 1: dump(9), 2: dump(9, name="gloo:broadcast")})
    assert said(answer_of(folder)) == ("collective_mismatch", 2)


def test_of_two_nobody_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path, {0: dump(9, world=2), 1: dump(9, world=2, size=7)})
    assert said(answer_of(folder)) == ("collective_mismatch", None)


def test_a_newer_version_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    folder = written(tmp_path, {0: dump(9, version="3.1"), 1: dump(8, version="3.1"), 2: dump(9, version="3.1")})
    assert said(answer_of(folder)) == ("rank_behind", 1)


class Exploit:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.proof}",)


def hostile(proof: Path) -> list[bytes]:
    """The known ways to make a pickle do something."""
    command = f"touch {proof}".encode()
    return [
        *(pickle.dumps({"version": "2.9", "entries": [Exploit(proof)]}, protocol) for protocol in (2, 3, 4, 5)),
        b"\x80\x02cos\nsystem\n(S'" + command + b"'\ntR.",
        b"\x80\x02(S'" + command + b"'\nios\nsystem\n.",
        b"\x80\x02(cos\nsystem\nS'" + command + b"'\no.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(command)]) + command + b"\x85R.",
        b'\x80\x02cbuiltins\neval\n(S\'__import__("os").system("' + command + b"\")'\ntR.",
        b"\x80\x02cpickle\nloads\n(C\x01.tR.",
        b"\x80\x02Pmodule\n.",
        b"\x80\x02P\x1b[2J\x07module" + b"x" * 999 + b"\n.",
        b"\x80\x02K\x01Q.",
        b"\x80\x02\x82\x01.",
    ]


def test_no_pickle_runs_anything(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    for data in hostile(proof):
        with pytest.raises(DumpError) as refused:
            read_dump(data, "trace_0")
        assert str(refused.value).isprintable()
        assert len(str(refused.value)) < 200
    assert not proof.exists()


def test_a_hostile_dump_is_one_line_and_the_rest_is_used(tmp_path: Path) -> None:
    folder = written(tmp_path, {0: dump(9), 1: dump(8), 2: dump(9)})
    (folder / "nccl_trace_rank_3").write_bytes(hostile(tmp_path / "proof")[0])
    answer = answer_of(folder)
    assert said(answer) == ("rank_behind", 1)
    assert len(answer.unread) == 1
    assert "not read" in answer.unread[0].reason
    assert "\n" not in answer.unread[0].reason


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02",
        b"\x80\x04\x95" + b"\xff" * 8,
        b"\x80\x02" + b"(" * 100_000,
        b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",
        b"\x80\x02]q\x00h\x00a" + b"2" * 10_000 + b".",
        b"\x80\x02\x8b\x00\x00\x00\x10",
        b"\x80\x02}.",
        b'{"entries": [' + b"[" * 100_000,
        b'{"entries": [{"process_group": 7}]}',
        b'{"entries": 5}',
        b'{"entries": [' + b"[]," * 2_000_000 + b"[]]}",
        pickle.dumps({"entries": [], "pg_config": {"0": {"ranks": "[0, 1"}}, "pg_status": {"x": {}}}),
        pickle.dumps(10**5000),
    ],
)
def test_a_damaged_dump_or_a_bomb_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(DumpError) as refused:
        read_dump(data, "trace_0")
    assert "\n" not in str(refused.value)


def test_every_cut_of_a_dump_is_refused_or_read(tmp_path: Path) -> None:
    data = pickle.dumps(dump(3))
    for end in range(len(data)):
        with pytest.raises(DumpError):
            read_dump(data[:end], "trace_0")
    assert read_dump(data, "trace_0").entries
