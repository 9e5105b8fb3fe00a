"""`gpudoctor diagnose` as people call it: exit codes, formats, options."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from gpudoctor.checks.core.registry import all_checks, select
from gpudoctor.cli.main import main
from gpudoctor.diagnose import follow as following
from gpudoctor.diagnose.build import diagnose
from gpudoctor.diagnose.causes import CAUSES, page_names, page_of
from gpudoctor.diagnose.sources import LogSource, find_sources
from tests.diagnose.asking import said
from tests.diagnose.test_bad_input import FAILURE

LOST = "[rank2]:[W810 00:09:55.465993962 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=1, addr=[n2]:5, remote=[n1]:4): reset\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "gpu07.log"
    path.write_text(FAILURE)
    return path


def test_exit_codes_tell_the_verdict(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(log)]) == 1
    healthy = tmp_path / "healthy.log"
    healthy.write_text("step 1 loss 2\nstep 2 loss 1\n")
    assert main(["diagnose", str(healthy)]) == 0
    victims = tmp_path / "victims.log"
    victims.write_text(LOST)
    assert main(["diagnose", str(victims)]) == 3
    assert main(["diagnose", str(tmp_path / "nowhere.log")]) == 2
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear operator,\nplease have a look at it.\n")
    capsys.readouterr()
    assert main(["diagnose", str(letter), "--color", "never"]) == 2
    assert capsys.readouterr().out.startswith("NOT RECOGNISED\n  read         1 file: none of 2 lines is known as")
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)) * 40)
    assert main(["diagnose", str(binary)]) == 2
    assert "binary, no log" in capsys.readouterr().err


def test_text_names_what_where_and_the_line(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["diagnose", str(log), "--color", "never"])
    text = capsys.readouterr().out
    assert text.startswith("CAUSE  user_exception")
    assert "rank 3" in text
    assert f"{log}:5" in text.replace("\n               ", "")
    assert "gpudoctor explain diagnose.user-exception" in text


def test_the_line_of_a_timeout_is_shown_with_its_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.log"
    path.write_text(
        "[rank2]:[E816 02:52:53.1 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=44, OpType=ALLREDUCE, NumelIn=5, NumelOut=5, Timeout(ms)=600000) ran for 600026 milliseconds.\n"
    )
    main(["diagnose", str(path), "--json"])
    evidence = json.loads(capsys.readouterr().out)["cause"]["evidence"]
    assert [line["text"][:9] for line in evidence] == ["[rank2]:["]


@pytest.mark.parametrize("form", ["text", "json", "html"])
def test_last_words_that_are_not_understood_are_shown(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("job.log")  # the text of a long path is wrapped
    steps = "".join(f"step {n} loss 2\n" for n in range(5))
    path.write_text(f"{steps}Epoch 1 done\nfatal: the flux capacitor is empty\n")
    assert main(["diagnose", str(path), "--format", form]) == 1
    assert "the flux capacitor is empty" in capsys.readouterr().out
    path.write_text(f"{steps}Training finished\nfatal: the flux capacitor is empty\n")
    assert main(["diagnose", str(path), "--format", form]) == 0
    assert "the flux capacitor is empty" in capsys.readouterr().out
    path.write_text(f"{steps}fatal: the flux capacitor is empty\nstep 6 loss 2\n")
    assert main(["diagnose", str(path), "--format", form]) == 0
    assert "the flux capacitor is empty" not in capsys.readouterr().out


def test_json_has_the_shape_that_was_promised(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["diagnose", str(log), "--json"])
    answer = json.loads(capsys.readouterr().out)
    main(["schema", "diagnosis"])
    schema = json.loads(capsys.readouterr().out)
    jsonschema.validate(answer, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**answer, "verdict": "healthy"}, schema)
    assert answer["schema"] == "gpudoctor.diagnosis/1"
    assert answer["verdict"] == "cause"
    assert {"what", "rank", "host", "gpu", "confidence", "text", "evidence"} <= set(answer["cause"])
    assert answer["cause"]["evidence"][0] == {"file": str(log), "line": 5, "text": "[rank3]: KeyError: 'x'"}
    assert {"others", "victims", "collect", "next"} <= set(answer)
    assert answer["timeline"] == []


def test_an_error_is_a_document_without_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["diagnose", str(tmp_path / "nothing-such.log")]
    assert main([*argv, "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], answer["cause"]) == ("unknown", None)
    assert "nothing-such.log: No such file" in answer["error"]
    main([*argv, "--json", "--redact"])
    assert str(tmp_path) not in capsys.readouterr().out
    main([*argv, "--format", "html"])
    page = capsys.readouterr().out
    assert "no answer" in page
    assert "No such file" in page
    main(argv)
    assert capsys.readouterr().out == ""


def test_verbose_has_the_timeline_within_the_width(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    main(["diagnose", str(log), "-v"])
    timeline = capsys.readouterr().out.partition("Timeline")[2].splitlines()[1:]
    places = [line.strip() for line in timeline if line.strip().startswith(f"{log}:")]
    assert len(places) * 2 == len(timeline) > 0
    assert max(len(line) for line in timeline if str(log) not in line) <= 80


def test_html_and_output_file(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "answer.html"
    log.write_text(FAILURE.replace("KeyError: 'x'", "KeyError: '<script>alert(1)</script>'"))
    assert main(["diagnose", str(log), "--format", "html", "-o", str(out)]) == 1
    page = out.read_text()
    assert "user_exception" in page
    assert "<script>" not in page


@pytest.mark.parametrize(
    ("line", "named", "words"),
    [
        ("train.py: error: unrecognized arguments: --local_rank=2", {"local_ranks": [2]}, "local rank 2"),
        (
            "slurmstepd: error: *** JOB 7 ON dgx-06 CANCELLED AT 2025-08-21T02:53:05 ***",
            {"hosts": ["dgx-06"]},
            "host dgx-06",
        ),
        ("RuntimeError: DataLoader worker (pid(s) 325, 7) exited unexpectedly", {"pids": [7, 325]}, "pids 7, 325"),
        ("slurmstepd: error: *** JOB 7 ON dgx-[01-04] CANCELLED AT 2025-08-21T02:53:05 ***", {}, ""),
        ("RuntimeError: optimizer state must be on host pinned-memory, got GPU 8 and pid=3", {}, ""),
        ("ValueError: lora rank 16 is above 8 and pid is not set", {}, ""),
    ],
)
def test_whom_the_lines_of_a_cause_name_is_told_without_blame(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, named: dict[str, list[object]], words: str
) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"step 1 loss 2.0\nstep 2 loss 1.9\n{line}\n")
    main(["diagnose", str(log), "--json"])
    cause = json.loads(capsys.readouterr().out)["cause"]
    assert (cause["rank"], cause["host"], cause["gpu"]) == (None, None, None)
    assert {key: value for key, value in (cause["mentioned"] or {}).items() if value} == named
    main(["diagnose", str(log)])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"not known; its lines name {words or 'no rank or host'}" in shown
    main(["diagnose", str(log), "--json", "--redact"])
    assert "dgx-06" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "nodes",
    [
        "$ torchrun --nnodes=4 t.py",
        "$ torchrun --nnodes=$SLURM_NNODES t.py",
        "$ torchrun --node_rank 1 t.py",
        "$ srun -N 2 torchrun t.py",
        "#SBATCH --nodes=2",
        "NNODES=2",
        "I0101   max_nodes                : 2",
    ],
)
def test_of_several_nodes_a_local_rank_is_no_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nodes: str
) -> None:
    log = tmp_path / "job.log"
    end = "step 1 loss 2.0\nfailed (exitcode: -9) local_rank: 2 (pid: 4323) of binary: python\n"
    log.write_text(f"{nodes}\n{end}")
    main(["diagnose", str(log), "--json"])
    cause = json.loads(capsys.readouterr().out)["cause"]
    assert (cause["rank"], cause["mentioned"]["ranks"], cause["mentioned"]["local_ranks"]) == (None, [], [2])
    for one in ("", "$ torchrun --nnodes=1 --node_rank=0 t.py\n"):
        log.write_text(f"{one}{end}")
        main(["diagnose", str(log), "--json"])
        assert json.loads(capsys.readouterr().out)["cause"]["rank"] == 2


def test_redacted_names_no_host_path_or_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        path = tmp_path / f"secretnode{number}.log"
        words = f"secretnode{number}:5:6 [0] NCCL INFO Bootstrap : Using eth0:10.9.8.{number}<0>\n"
        path.write_text(words + (FAILURE.replace("/w/", "/home/jane/") if number == 1 else LOST))
    for form in ("text", "json", "html"):
        main(["diagnose", str(tmp_path), "--redact", "--format", form, "-v"])
        text = capsys.readouterr().out
        assert "user_exception" in text
        for secret in ("secretnode", "jane", "10.9.8", str(tmp_path)):
            assert secret not in text, (form, secret)


def test_stdin(log: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpudoctor", "diagnose", "-", "--json"],
        input=FAILURE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["cause"]["rank"] == 3


def test_follow_says_when_nothing_moves() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"[rank0]: step 1\n[rank1]: step 1\n[rank0]: step 2\n")
    done = subprocess.run(
        [sys.executable, "-m", "gpudoctor", "diagnose", "-", "--follow", "--stall", "0.5", "--json"],
        stdin=reader, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 3, done.stderr
    answer = json.loads(done.stdout)
    assert answer["cause"]["what"] == "stalled"
    assert "rank 0: step 2" in answer["cause"]["text"]
    assert "nothing moved" in done.stderr


@pytest.mark.parametrize("form", ["text", "json", "html"])
def test_a_file_name_that_is_not_utf_8_is_shown(form: str, tmp_path: Path) -> None:
    log = Path(os.fsdecode(bytes(tmp_path) + b"/gpu\xff.log"))
    log.write_text(FAILURE)
    answer = tmp_path / "answer"
    assert main(["diagnose", str(log), "--format", form, "-o", str(answer)]) == 1
    if form == "json":
        assert json.loads(answer.read_text())["cause"]["evidence"][0]["file"] == str(log)


def followed(data: bytes, *more: str) -> subprocess.CompletedProcess[bytes]:
    """`diagnose --follow` on a stdin that ends."""
    command = [sys.executable, "-m", "gpudoctor", "diagnose", "-", "--follow", *more]
    return subprocess.run(command, input=data, capture_output=True, check=False, timeout=60)


@pytest.mark.parametrize("end", ["\n", ""], ids=["a whole last line", "a last line without an end"])
def test_follow_ends_with_its_input(end: str) -> None:
    done = followed((FAILURE.rstrip("\n") + end).encode())
    assert done.returncode == 1, done.stderr


@pytest.mark.parametrize("packed", [gzip.compress, lzma.compress])
def test_follow_refuses_compressed_input(packed: Callable[[bytes], bytes]) -> None:
    done = followed(packed(FAILURE.encode()))
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"zcat FILE | gpudoctor diagnose --follow -" in done.stderr


def test_follow_lists_what_it_cannot_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_POLL_S", 0.01)
    (tmp_path / "job.log").write_text(FAILURE)
    (tmp_path / "older.log.gz").write_bytes(gzip.compress(FAILURE.encode()))
    (tmp_path / "weights").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "gone.log").touch()
    sources, _ = find_sources([str(tmp_path)])
    (tmp_path / "gone.log").unlink()
    gathered, stall = following.follow(sources, 0.05, lambda _: None)
    assert stall is not None
    assert said(diagnose(gathered)) == ("user_exception", 3)
    assert {Path(each.file).name: each.reason.partition(",")[0] for each in gathered.unread} == {
        "gone.log": "No such file or directory",
        "older.log.gz": "compressed",
        "weights": "binary",
    }


@pytest.mark.parametrize("label", ["{}: ", "node{}: "], ids=["srun -l", "pdsh"])
def test_follow_knows_the_labels_of_lines(label: str, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two writers whose tracebacks are interleaved: only their labels tell them apart."""
    begun = [f"{label.format(n)}step {step} loss 2.5" for step in range(4) for n in (0, 3)]
    trace = ["Traceback (most recent call last):", '  File "/w/train.py", line 9, in main', "    f(x)", "KeyError: 'x'"]
    lost = [*trace[:3], "ConnectionResetError: [Errno 104] Connection reset by peer"]
    torn = [
        label.format(n) + line for pair in zip(trace, lost, strict=True) for n, line in zip((3, 0), pair, strict=True)
    ]
    text = "\n".join([*begun, *torn]) + "\n"
    log.write_text(text)
    main(["diagnose", str(log), "--json"])
    alone = json.loads(capsys.readouterr().out)["cause"]
    cause = json.loads(followed(text.encode(), "--json").stdout)["cause"]
    assert (cause["what"], cause["rank"], cause["host"]) == (alone["what"], alone["rank"], alone["host"])
    assert cause["text"] == alone["text"]
    assert "KeyError" in cause["text"]


@pytest.mark.parametrize("by", ["rename", "truncate"])
def test_follow_goes_on_in_the_file_that_rotation_puts_there(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_POLL_S", 0.01)
    log = tmp_path / "job.log"
    log.write_text("[rank0]: step 1\n[rank0]: step 2\n[rank0]: step 3")  # without an end
    waited = []

    def rotate(wait_s: float) -> None:
        waited.append(wait_s)
        if len(waited) == 1:  # what was there has been read
            if by == "rename":
                log.rename(tmp_path / "job.log.1")
            log.write_text("[rank0]: step 4\n")

    monkeypatch.setattr("gpudoctor.diagnose.follow.time.sleep", rotate)
    gathered, stall = following.follow([LogSource(str(log), log, 1)], 0.2, lambda _: None)
    steps = [event.number("step") for event in gathered.log if event.role == "progress"]
    assert steps == [1, 2, 3, 4]
    assert stall is not None
    assert stall.last == ("rank 0: step 4",)


def save_report(path: Path, host: str, failed: str) -> None:
    """The report of a simulated node in a file, as if it were of this host and the check had failed."""
    main(["check", "--node", "hgx-h100-8", "--level", "quick", "--json", "-o", str(path)])
    report = json.loads(path.read_text())
    report["host"]["name"] = host
    [check] = (check for check in report["checks"] if check["id"] == failed)
    check["status"] = "fail"
    path.write_text(json.dumps(report))


def test_reports_of_nodes_raise_a_hypothesis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "n3:88:190 [3] NCCL WARN NET/IB : Got completion from peer 10.1.2.3<5> with status=12 opcode=0 len=0\n"
    )
    reports = tmp_path / "reports"
    reports.mkdir()
    save_report(reports / "n3.json", "n3.cluster", "network.infiniband")
    (reports / "notes.json").write_text("[]")
    capsys.readouterr()
    main(["diagnose", str(log), "--json"])
    alone = json.loads(capsys.readouterr().out)["cause"]["confidence"]
    main(["diagnose", str(log), "--json", "--reports", str(reports)])
    answer = json.loads(capsys.readouterr().out)
    assert (alone, answer["cause"]["confidence"]) == ("likely", "certain")
    assert "n3.cluster agrees" in answer["reason"]
    [notes] = answer["unread"]
    assert Path(notes["file"]).name == "notes.json"
    assert notes["reason"].startswith("not a report of gpudoctor check --json (")


def test_reports_that_cannot_be_read_are_listed_and_a_pipe_in_a_folder_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "job.log"
    log.write_text("Traceback (most recent call last):\nValueError: bad batch\n")
    folder = tmp_path / "reports"
    folder.mkdir()
    os.mkfifo(folder / "pipe.json")
    (folder / "dangling.json").symlink_to(tmp_path / "none.json")
    (folder / "closed").mkdir()
    scandir = os.scandir

    def refuse(path: str) -> object:  # a mode keeps root out of nothing
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    (tmp_path / "long.json").symlink_to("x" * 300)
    reports = [str(folder), str(tmp_path / "long.json"), str(tmp_path / ("x" * 300))]
    main(["diagnose", str(log), "--json", *(word for report in reports for word in ("--reports", report))])
    unread = json.loads(capsys.readouterr().out)["unread"]
    assert [(Path(file["file"]).name, file["reason"]) for file in unread] == [
        ("closed", "Permission denied"),
        ("dangling.json", "cannot be read: No such file or directory"),
        ("pipe.json", "not a regular file"),
        ("long.json", "cannot be read: File name too long"),
        ("x" * 300, "cannot be read: File name too long"),
    ]


def test_each_word_has_a_page_and_checks_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    checks = all_checks()
    for word, row in CAUSES.items():
        page = page_of(f"diagnose.{word}")
        assert page is not None, word
        assert word in page, (word, row.page)
        assert row.page in page_names()
        if row.checks:
            select(checks, list(row.checks))
    assert main(["explain", "diagnose.nccl-timeout"]) == 0
    assert "timed out" in capsys.readouterr().out
    assert main(["explain", "diagnose.nothing-like-it"]) == 2
