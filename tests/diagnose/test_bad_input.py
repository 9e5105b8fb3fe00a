"""What is no log, or not as it should be: one clear line, and the rest is used."""

from __future__ import annotations

import gzip
import itertools
import json
import lzma
import os
import random
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpudoctor.cli.main import main
from gpudoctor.diagnose.build import diagnose
from gpudoctor.diagnose.decoding import BLOCK_BYTES, text_blocks
from gpudoctor.diagnose.gather import gather, hits_of_part
from gpudoctor.diagnose.patterns.catalogue import ROWS
from gpudoctor.diagnose.patterns.launchers import LAUNCHER_ROWS, LauncherPattern
from gpudoctor.diagnose.patterns.rows import LinePattern
from gpudoctor.diagnose.scan import all_lines, interesting_lines
from gpudoctor.diagnose.sources import LogSource, find_sources
from gpudoctor.errors import UserError
from tests.diagnose.asking import answer_of, answer_to, said
from tests.narrowed import present
from tests.needs import module

FAILURE = (
    "[rank0]: step 10 loss 3.0\n[rank3]: Traceback (most recent call last):\n"
    "[rank3]:   File \"/w/train.py\", line 9, in main\n[rank3]:     f(x)\n[rank3]: KeyError: 'x'\n"
)


@pytest.mark.parametrize(
    "data",
    [
        FAILURE.encode(),
        gzip.compress(FAILURE.encode()),
        gzip.compress(FAILURE.encode()[:40]) + gzip.compress(FAILURE.encode()[40:]),
        lzma.compress(FAILURE.encode()),
        lzma.compress(FAILURE.encode()[:18]) + bytes(4) + lzma.compress(FAILURE.encode()[18:]),
        FAILURE.encode("utf-16"),
        FAILURE.encode("utf-16-le"),
        b"\xef\xbb\xbf" + FAILURE.encode(),
        FAILURE.replace("\n", "\r\n").encode(),
        FAILURE.replace(" ", "\u00a0").encode(),  # copied from a web page
        FAILURE.replace("KeyError", "\0KeyError").encode(),
        FAILURE.encode() + b"\xff\xfe\x80 rubbish \xc3\x28\n",
        FAILURE.encode()[:-1],
        b'{"log":"a\\n","x":' + b"[" * 9999 + b"]" * 9999 + b"}\n" + FAILURE.encode(),
    ],
)
def test_all_that_holds_text_is_read(data: bytes, tmp_path: Path) -> None:
    assert said(answer_to(data, tmp_path)) == ("user_exception", 3)


@pytest.mark.wide(every=2)
@pytest.mark.parametrize("packed", [gzip.compress, lzma.compress])
def test_a_torn_log_gives_what_came_before_and_says_so(
    packed: Callable[[bytes], bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = "".join(f"step {n} {random.Random(n).random()}\n" for n in range(4000))
    log = tmp_path / "job.log.packed"
    for text, code, what in ((FAILURE + noise.replace("step", "line"), 1, "user_exception"), (noise, 3, None)):
        whole = packed(text.encode())
        log.write_bytes(whole[: len(whole) * 9 // 10])
        assert main(["diagnose", str(log), "--json"]) == code
        answer = json.loads(capsys.readouterr().out)
        assert (answer["cause"] and answer["cause"]["what"]) == what
        assert [(each["file"], each["reason"].partition(":")[0]) for each in answer["unread"]] == [
            (str(log), "the compressed data ends too early")
        ]


def _xz_with_padding(data: bytes) -> bytes:
    first = lzma.compress(b"step 1\n" * 9)
    return first + bytes(BLOCK_BYTES - len(first) + 4) + lzma.compress(data)


def _gzip_boundary_before_end_of_read(data: bytes) -> bytes:
    """Two members; the first ends one byte before the end of the first read."""
    room = BLOCK_BYTES - 1
    first = gzip.compress((b"step 1 " * 73 + b"\n") * (room // 512 - 20), 0)
    header, rest = first[:10], first[10:]
    name = b"n" * (room - len(first) - 1) + b"\0"  # a member's header may hold a file name of any length
    first = header[:3] + b"\x08" + header[4:] + name + rest
    assert len(first) == room
    return first + gzip.compress(data)


@pytest.mark.parametrize("packed", [_gzip_boundary_before_end_of_read, _xz_with_padding])
def test_a_boundary_at_the_end_of_a_read_ends_no_file(packed: Callable[[bytes], bytes], tmp_path: Path) -> None:
    assert said(answer_to(packed(b"\n" + FAILURE.encode()), tmp_path)) == ("user_exception", 3)


def test_frames_of_zstd_are_read_one_after_the_other(tmp_path: Path) -> None:
    zstandard = module("zstandard")
    data = FAILURE.encode()
    packed = zstandard.compress(data[:40]) + zstandard.compress(data[40:])
    assert said(answer_to(packed, tmp_path)) == ("user_exception", 3)


@pytest.mark.wide
def test_a_torn_or_broken_zstd_is_one_line_or_what_came_before(tmp_path: Path) -> None:
    zstandard = module("zstandard")
    whole = zstandard.compress((FAILURE + "".join(f"step {n} {n * n % 977}\n" for n in range(50_000))).encode())
    torn = answer_to(whole[: len(whole) // 2], tmp_path)
    assert torn.verdict in ("cause", "unknown")
    assert [unread.reason for unread in torn.unread] == [
        "the compressed data ends too early: only what comes before was read"
    ]
    assert answer_to(whole, tmp_path).unread == ()
    (tmp_path / "good.log").write_text(FAILURE)
    (tmp_path / "job.log").write_bytes(whole[:4] + b"\xff" * 400)
    answer = answer_of(tmp_path)
    assert said(answer) == ("user_exception", 3)
    assert [(Path(unread.file).name, unread.reason.partition(":")[0]) for unread in answer.unread] == [
        ("job.log", "no whole zstd file")
    ]


def test_zstd_without_its_library_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "compression", None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "good.log").write_text(FAILURE)
    (tmp_path / "packed.log.zst").write_bytes(b"\x28\xb5\x2f\xfd" + b"\0" * 400)
    answer = answer_of(tmp_path)
    assert said(answer) == ("user_exception", 3)
    assert [unread.reason for unread in answer.unread] == [
        "zstd needs Python 3.14 or the package zstandard (pip install zstandard); "
        "or: zstd -dc FILE | gpudoctor diagnose -"
    ]


@pytest.mark.parametrize("data", [bytes(range(256)) * 40, b"\x7fELF" + b"\0" * 5000, b"\x1f\x8b\x08rubbish" * 10])
def test_what_is_no_text_is_one_line(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "good.log").write_text(FAILURE)
    (tmp_path / "bad").write_bytes(data)
    answer = answer_of(tmp_path)
    assert said(answer) == ("user_exception", 3)
    assert [Path(unread.file).name for unread in answer.unread] == ["bad"]
    assert "\n" not in answer.unread[0].reason


def test_a_line_of_many_megabytes_does_not_hold_up_the_rest(tmp_path: Path) -> None:
    answer = answer_to("x" * 20_000_000 + "\n" + FAILURE, tmp_path)
    assert said(answer) == ("user_exception", 3)
    path = tmp_path / "job.log"
    assert max(map(len, text_blocks(LogSource("x", path)))) < 4 << 20


@pytest.mark.wide(every=5)
@pytest.mark.timeout(60)  # a search in quadratic time takes longer
@pytest.mark.parametrize("begin", ["[1]", "x"])
@pytest.mark.parametrize("filler", [" ", "/job:", "slurmstepd"])
@pytest.mark.parametrize("end", ["Error", "different incarnation", "out of memory", "execve()"])
def test_a_line_that_repeats_the_beginning_of_a_pattern_does_not_hold_up_the_rest(
    begin: str, filler: str, end: str, tmp_path: Path
) -> None:
    answer = answer_to(f"{begin}{filler * (120_000 // len(filler))}{end} y\n{FAILURE}", tmp_path)
    assert said(answer) == ("user_exception", 3)


@pytest.mark.parametrize(
    "text", ["To train on GPUs, see the manual.\nThank you!\n", "total 8\n-rw-r--r-- 1 me me 3 a.txt\n"]
)
def test_a_text_without_a_known_line_is_neither_a_failure_nor_a_pass(text: str, tmp_path: Path) -> None:
    answer = answer_to(text, tmp_path)
    assert (answer.verdict, answer.cause) == ("unknown", None)
    assert "is known as output of a training" in answer.reason


def test_an_empty_text_is_called_empty_and_is_no_pass(tmp_path: Path) -> None:
    answer = answer_to("", tmp_path)
    assert (answer.verdict, answer.cause, answer.reason) == ("unknown", None, "it is empty: nothing was written there")


@pytest.mark.wide
def test_more_files_than_a_process_may_usually_have_open_at_once(tmp_path: Path) -> None:
    for number in range(1_500):
        (tmp_path / f"rank_{number}.log").write_text(f"[rank{number}]: step 1\n" if number != 77 else FAILURE)
    answer = answer_of(tmp_path)
    assert present(answer.cause).what == "user_exception"
    assert answer.files == 1_500


def test_a_name_that_leads_nowhere_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.log"):
        find_sources([str(tmp_path / "nowhere.log")])


def test_logs_of_several_jobs_are_not_one_answer(tmp_path: Path) -> None:
    for name in ("slurm-4711.out", "slurm-4711.err", "node.log"):
        (tmp_path / name).write_text("step 1\n")
    assert len(find_sources([str(tmp_path)])[0]) == 3
    (tmp_path / "slurm-4712.out.gz").write_text("step 1\n")
    with pytest.raises(UserError, match=r"logs of 2 jobs, as .*slurm-4711\.\w+ and .*slurm-4712\.out\.gz"):
        find_sources([str(tmp_path)])
    named = [str(tmp_path / "slurm-4711.out"), str(tmp_path / "slurm-4712.out.gz")]
    assert len(find_sources(named)[0]) == 2  # whoever names them knows why


def test_links_pipes_and_loops_in_a_folder_do_no_harm(tmp_path: Path) -> None:
    import os

    (tmp_path / "good.log").write_text(FAILURE)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    answer = answer_of(tmp_path)
    assert said(answer) == ("user_exception", 3)
    assert {Path(unread.file).name for unread in answer.unread} == {"dangling", "pipe"}


@given(st.binary(max_size=3000))
def test_no_bytes_at_all_make_it_fail(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "job.log"
    path.write_bytes(data)
    sources, _ = find_sources([str(path)])
    assert diagnose(gather(sources)).verdict in ("cause", "unknown", "nothing")


@given(
    st.lists(
        st.sampled_from([*FAILURE.split("\n"), "", "Failures:", "[1]:", "  rank      : 3 (local_rank: 3)"]), max_size=30
    )
)
def test_lines_in_any_order_make_it_not_fail(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("any") / "job.log"
    path.write_text("\n".join(lines))
    sources, _ = find_sources([str(path)])
    assert diagnose(gather(sources)).verdict in ("cause", "unknown", "nothing")


def _in_each_match(regex: str) -> str:
    """The text that each match holds: without groups, classes and what may be left out."""
    text = re.sub(r"\\(?:[\w()\[\]{}|?*+.])", "\0", regex).replace("\\", "")
    text = re.sub(r"\[[^\]]*\]", "\0", text)
    while (outer := re.sub(r"\([^()]*\)", "\0", text)) != text:
        text = outer
    return "" if "|" in text else re.sub(r".(?:[?*]|\{[^}]*\})|[.+]", "\0", text)


# spelled out only if the needle is not plain to see
_WITH_NEEDLE: tuple[LinePattern | LauncherPattern, ...] = (*ROWS, *LAUNCHER_ROWS)
_SPELLED = [row for row in _WITH_NEEDLE if row.needle not in _in_each_match(row.regex.pattern).lower()]


def test_only_what_each_match_holds_needs_no_example() -> None:
    given = [r"a\.b [ab]b(c|d)e?f*g+ \(x\)", r"one|two", r"d{0,2}ef: \d\"h"]
    assert [_in_each_match(regex).split("\0") for regex in given] == [
        ["a", "b ", "b", "", "", "g", " ", "x", ""],
        [""],
        ["", "ef: ", '"h'],
    ]
    assert len(_SPELLED) < len(_WITH_NEEDLE) * 0.6


@pytest.mark.wide(every=5)
@pytest.mark.parametrize("row", _SPELLED, ids=[row.needle for row in _SPELLED])
@settings(max_examples=30, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_each_line_that_a_row_means_has_its_needle(row: LinePattern | LauncherPattern, data: st.DataObject) -> None:
    """Where one of several spellings lacks the needle, the row never reads that spelling."""
    regex = re.compile(row.regex.pattern, row.regex.flags)  # of the catalogue it is compiled when first used
    line = data.draw(st.from_regex(regex, fullmatch=True, alphabet=st.characters(max_codepoint=127)))
    assert any(needle in line.lower() for needle in row.needle.split("|"))


def test_the_sieve_keeps_line_numbers() -> None:
    chance = random.Random(5)
    words = [
        b"nothing",
        b"an error: x",
        b"Traceback (most recent call last):",
        b'  File "a", line 3',
        b"KeyError: 'x'",
        b"",
    ]
    block = b"\n".join(chance.choice(words) for _ in range(900)) + b"\n"
    lines = dict(all_lines(block))
    hits = interesting_lines(block)
    assert hits
    assert all(lines[number] == line for number, line in hits)
    assert {n for n, line in lines.items() if b"rror" in line} <= {n for n, _ in hits}


def test_the_sieve_leaves_out_what_each_step_says_and_keeps_what_one_line_says() -> None:
    lines = [b"[rank%d]: step %d loss 2.1 validation error 0.3%d failed 0" % (n % 8, n, n % 7) for n in range(20_000)]
    lines[9_000] += b" RuntimeError: CUDA error: device-side assert triggered"
    lines[15_000] = b"[rank3]: KeyError: 'label'"
    hits = dict(interesting_lines(b"\n".join(lines) + b"\n"))
    assert hits[9_000] == lines[9_000]
    assert hits[15_000] == lines[15_000]
    assert len(hits) < 2_000


def test_parts_of_a_file_are_the_file(tmp_path: Path) -> None:
    chance = random.Random(6)
    path = tmp_path / "job.log"
    path.write_bytes(b"".join(b"line %d error %s\n" % (n, b"x" * chance.randrange(300)) for n in range(6000)))
    data = path.read_bytes()
    lines = data.split(b"\n")
    for edge in (1, 777, 100_000, 400_001):
        found: list[tuple[int, bytes]] = []
        begun = 0
        edges = [*range(0, len(data), max(edge, 50_000)), len(data)]
        for begin, end in itertools.pairwise(edges):
            hits, count = hits_of_part(str(path), begin, end, len(data))
            found += [(begun + number, line) for number, line in hits]
            begun += count
        assert begun == 6000
        assert all(lines[number] == line for number, line in found)


def test_of_very_short_lines_the_first_and_last_are_read_and_all_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    lines = 200_000
    path.write_bytes(b"x\n" * lines)
    hits, count = hits_of_part(str(path), 0, 2 * lines, 2 * lines)
    numbers = [number for number, _ in hits]
    assert count == lines
    assert numbers == [*range(10_000), *range(lines - 10_000, lines)]


def test_a_pipe_loses_nothing(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, FAILURE.encode())
    os.close(writer)
    try:
        assert said(answer_of(Path(f"/dev/fd/{reader}"))) == ("user_exception", 3)
    finally:
        os.close(reader)


ABSURD = 99_999_999_999
WAIT = "[rank{}]:[E816 02:52:53.1 ProcessGroupNCCL.cpp:632] [Rank {}] Watchdog caught collective operation timeout: "


@pytest.mark.parametrize(
    "damaged",
    [
        f"h1:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks {ABSURD} cudaDev 0 nvmlDev 0 busId 1a000\n",
        "".join(
            WAIT.format(rank, rank)
            + f"WorkNCCL(SeqNum=44, OpType=ALLGATHER, NumelIn=1, NumelOut={ABSURD}, Timeout(ms)=600000) ran for 600026 ms\n"
            for rank in (0, 1)
        ),
        f"[1]:\n  host      : n1\n  rank      : 5 (local_rank: {ABSURD})\n  exitcode  : 1 (pid: 5)\n"
        + WAIT.format(1, 1),
        f"W Sending process {ABSURD} closing signal SIGTERM\nE failed (exitcode: -9) local_rank: 1 (pid: 100)\n"
        "W Sending process 99 closing signal SIGTERM\n",
    ],
)
def test_an_absurd_number_is_no_size(damaged: str, tmp_path: Path) -> None:
    """A set of so many ranks would not fit into memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, hard))
    try:
        assert answer_to(damaged + FAILURE, tmp_path).cause is not None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("E failed (exitcode: 1) local_rank: 1 (pid: {})", "job.log"),
        ("W Sending process {} closing signal SIGTERM", "job.log"),
        ("process {} terminated with exit code 1", "job.log"),
        ("MPI_ABORT was invoked on rank {} in communicator", "job.log"),
        ("Traceback (most recent call last): (RANK {})\n  File \"/w/a.py\", line 1, in f\nKeyError: 1", "job.log"),
        ("DDP expects same model across all ranks, but Rank {} has 9 params, while rank 1 has inconsistent 8 params", "job.log"),
        ("Killed process {} (python)", "job.log"),
        ("NCCL version 2.27\nCommunicators... (0.00s)\nRank {0} has launched up to operation 1 -- GPU 0 managed by process {0} on node n\n"
         "Rank 1 has launched up to operation 9 -- GPU 0 managed by process 7 on node n", "job.log"),
        ("Process 7: python train.py\nThread 1 (idle): \"MainThread\"\n    wait (threading.py:1)\nProcess {}: python\n", "job.log"),
        ('{{"message": {{"message": "CheckpointException: CheckpointException ranks:dict_keys([{}])"}}}}', "error.json"),
    ],
)  # fmt: skip
def test_a_number_too_long_for_python_is_cut(
    line: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(line.format("9" * 5000) + "\n")
    (tmp_path / "other.log").write_text(FAILURE)
    assert main(["diagnose", str(tmp_path), "--json"]) == 1, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["verdict"] == "cause"


_TOO_LONG_FOR_JSON = "9" * 20


def test_a_rank_too_long_for_json_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = (
        f'Traceback (most recent call last): (RANK {_TOO_LONG_FOR_JSON})\n  File "/w/a.py", line 1, in f\nKeyError: 1\n'
    )
    (tmp_path / "job.log").write_text(trace)
    assert main(["diagnose", str(tmp_path), "--json"]) == 1, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["cause"]["rank"] is None


def test_a_dump_with_a_rank_too_long_for_json_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"process_group": ["0", "default"], "collective_seq_id": 3, "state": "scheduled", "pg_id": 0}
    group = {"name": "0", "ranks": f"[0, 1, {_TOO_LONG_FOR_JSON}]"}
    for rank in (0, 1):
        dump = {"version": "2.5", "pg_config": {"0": group}, "entries": [entry]}
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump))
    (tmp_path / "job.log").write_text(FAILURE)
    assert main(["diagnose", str(tmp_path), "--json"]) == 1, capsys.readouterr().err
    unread = json.loads(capsys.readouterr().out)["unread"]
    assert [each["reason"] for each in unread] == [
        "a flight recorder dump of a form that is not known (ValueError)"
    ] * 2


def test_a_large_file_that_is_gone_is_one_line(tmp_path: Path) -> None:
    gathered = gather([LogSource("big.log", tmp_path / "big.log", 1 << 30)])
    assert [unread.file for unread in gathered.unread] == ["big.log"]


@pytest.mark.parametrize("entry", ['{"process_group": ["0"]}', '{"collective_seq_id": Infinity}'])
def test_a_dump_of_another_form_is_one_line(entry: str, tmp_path: Path) -> None:
    answer = answer_to(f'{{"version": "2.5", "pg_config": {{}}, "entries": [{entry}]}}', tmp_path, "nccl_trace_rank_0")
    assert "of a form that is not known" in answer.unread[0].reason
