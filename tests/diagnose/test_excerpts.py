"""One line or excerpt of each kind -> its word, and the rank and the host where the text names them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.diagnose.asking import answer_to, cause_of, said
from tests.narrowed import present

# "@@ word rank on host: name" above the lines of each; no rank if none is named, a host ("-" for none) if it matters
_HEAD = re.compile(r"(?P<what>\w+)(?: (?P<rank>\d+))?(?: on (?P<host>\S+))?(?:: (?P<name>.+))?")


def excerpts() -> Iterator[tuple[re.Match[str], str]]:
    """The head and the lines of each excerpt in each file."""
    for file in sorted((Path(__file__).parent / "excerpts").iterdir()):
        title, *parts = file.read_text("utf-8").removesuffix("\n").split("\n@@ ")
        assert not title.startswith("@@"), f"{file.name}: its first line is a title"
        assert "\n" not in title, f"{file.name}: its first line is a title"
        for excerpt in parts:
            head, _, text = excerpt.partition("\n")
            found = _HEAD.fullmatch(head)
            assert found, head
            yield found, f"{text}\n"


def test_there_are_excerpts() -> None:
    assert len([*excerpts()]) > 300


@pytest.mark.parametrize(
    ("head", "text"), [pytest.param(head, text, id=head["name"] or head["what"]) for head, text in excerpts()]
)
def test_an_excerpt_gets_its_word_its_rank_and_its_host(head: re.Match[str], text: str, tmp_path: Path) -> None:
    answer = answer_to(text, tmp_path)
    assert said(answer) == (head["what"], int(head["rank"]) if head["rank"] else None)
    if head["host"]:
        assert (present(answer.cause).host or "-") == head["host"]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("import_error", "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory"),
        ("user_exception", "AssertionError: Size mismatch at step 3\n\n"),
        (
            "user_exception",
            "step 1 loss 2.5\nstep 2 loss 2.4\nstep 3 loss 2.4\nmegatron.core.ShapeError: (4, 8) is not (8, 4)\n",
        ),
        (
            "service_failed",
            "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://hub/x\n",
        ),
    ],
)
def test_an_exception_without_its_traceback_is_possible_if_it_is_the_last_line(
    what: str, text: str, tmp_path: Path
) -> None:
    answer = answer_to(text, tmp_path)
    assert (answer.verdict, said(answer)) == ("cause", (what, None))
    assert answer.cause is not None
    assert answer.cause.confidence == "possible"
    assert [line.text for line in answer.cause.evidence] == [text.rstrip().rpartition("\n")[2]]


def test_a_victim_is_never_certain(tmp_path: Path) -> None:
    text = next(text for head, text in excerpts() if head["what"] == "victims_only")
    answer = answer_to(text, tmp_path)
    assert answer.verdict == "unknown"
    assert present(answer.cause).confidence == "possible"
    assert answer.collect


def test_a_flushed_request_makes_its_own_host_no_victim(tmp_path: Path) -> None:
    got = "n3:88:190 [3] transport/net_ib.cc:2001 NCCL WARN NET/IB : Got completion from peer 10.1.2.3<5> with status={} opcode=1\n"
    answer = answer_to(got.format(12) + got.format(5), tmp_path)
    assert said(answer) == ("ib_completion_error", None)
    assert not answer.victims


@pytest.mark.parametrize(
    "end", ["", "srun: error: n02: tasks 0-7: Killed\n"], ids=["the job is cancelled", "and killed"]
)
def test_who_waited_before_slurm_noticed_that_a_node_is_gone_waited_for_it(end: str, tmp_path: Path) -> None:
    waited = (
        "[rank{0}]:[E1129 01:10:00.1 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds "
        "before timing out.\n"
    )
    lost = "srun: error: Node failure on n04\nslurmstepd: error: *** STEP 7.0 ON n01 CANCELLED AT 2026-11-29T01:12:00 DUE TO NODE FAILURE ***\n"
    cause = cause_of("".join(map(waited.format, range(4))) + lost + end, tmp_path)
    assert (cause.what, cause.rank) == ("node_lost", None)
    assert (cause.host, cause.confidence) == ("n04", "certain")


@pytest.mark.parametrize(
    ("op", "others", "same"), [("ALLREDUCE", 7, False), ("ALLREDUCE", 1, True), ("GATHER", 7, True)]
)
def test_ranks_that_wait_in_collectives_of_other_sizes_are_not_in_one(
    op: str, others: int, same: bool, tmp_path: Path
) -> None:
    wait = (
        "[rank{0}]:[E ProcessGroupNCCL.cpp:523] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=12, OpType={1}, NumelIn={2}, NumelOut={2}, Timeout(ms)=600000) ran for 600012 milliseconds.\n"
    )
    text = "step 1 loss 2.0\n" + wait.format(0, op, 1) + wait.format(1, op, others)
    cause = cause_of(text, tmp_path)
    assert (cause.what == "timeout_all_same_seq", "ALLREDUCE of 7" in cause.text) == (same, not same)


_RULE = "-" * 60


@pytest.mark.parametrize(
    ("text", "what", "host"),
    [
        ("CUDA error: uncorrectable ECC error encountered\nray: actor max_restarts=0 reached\n", "gpu_ecc", None),
        ("supervisor: worker failed again\nsupervisor: max_restarts=3 reached\n", "unknown_error", None),
        (f"{_RULE}\nevaluating the model\nmunmap_chunk(): invalid pointer\n", "process_died_unknown", None),
        (f"{_RULE}\nresuming from checkpoint\nkilled\n", "killed_sigkill", None),
        (
            'Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: it was on node n12 last week\n',
            "user_exception",
            None,
        ),
        ("OSError: [Errno 28] No space left on device: '/x' on host nfs-2\n", "disk_full", None),
        ("skipping a batch: NaN detected\nstep 2 loss 1.5\n", None, None),
        ("[W] tokenizer: std::bad_alloc, trying a smaller buffer\nstep 2 loss 1.5\n", None, None),
        ("WARNING: [x] Signal: Aborted by the user, once more\nstep 2 loss 1.5\n", None, None),
        ("terminate called after throwing 'X'\n  what():  std::bad_alloc\n", "host_alloc_failed", None),
        ("srun: error: n4: task 3: Segmentation fault\n", "segfault", "n4"),
        ("srun: error: Node failure on n4\n", "node_lost", "n4"),
        ("srun: error: Node failure on n[4-5]\n", "node_lost", None),
        ("  what():  CUDA error: unknown error\nsrun: error: Node failure on n4\n", "node_lost", "n4"),
        (
            "The tasks have crashed: /job:jax_worker/replica:0/task:7 (heartbeat timeout)\nsrun: error: Node failure on n4\n",
            "node_lost",
            "n4",
        ),
        (
            "  what():  CUDA error: an illegal memory access was encountered\nsrun: error: Node failure on n4\n",
            "cuda_illegal_access",
            "n4",
        ),
        ("srun: error: Node failure on n4,n6\n", "node_lost", None),
        (
            "[rank1]: RuntimeError: [x/gloo/transport/tcp/pair.cc:538] Read error [127.0.0.1]:57: Connection reset by peer\n",
            "victims_only",
            None,
        ),
    ],
)
def test_an_end_a_frame_and_a_place_are_only_what_can_be_no_other_thing(
    text: str, what: str | None, host: str | None, tmp_path: Path
) -> None:
    cause = answer_to(f"step 1 loss 2.0\n{text}", tmp_path).cause
    assert (cause and cause.what, cause and cause.host) == (what, host)


def test_a_node_that_slurm_misses_later_is_not_the_one_that_a_rank_waited_for(tmp_path: Path) -> None:
    waited = (
        "[rank3]:[E1129 01:10:00.1 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds "
        "before timing out.\n"
    )
    later = "Jan 01 12:10:00 head slurmctld: error: Nodes n99 not responding\n"
    assert said(answer_to(waited + later, tmp_path))[0] == "timeout_undecidable"


def test_a_loggers_line_inside_a_traceback_is_not_its_exception(tmp_path: Path) -> None:
    frames = 'Traceback (most recent call last):\n  File "serve.py", line 9, in load\n    model = restore(path)\n'
    rest = '    return build(\n  File "x.py", line 2, in build\n    raise TypeError(word)\nTypeError: no such layer\n'
    cause = cause_of(f"{frames}INFO:     Application startup complete.\n{rest}", tmp_path)
    assert (cause.what, cause.rank) == ("user_exception", None)
    assert cause.text.startswith("TypeError: no such layer")


def test_a_wrapper_that_quotes_the_exception_tells_it(tmp_path: Path) -> None:
    wrapped = 'AlgorithmError: ScriptError: ExitCode 1 ErrorMessage "ValueError: bad labels Traceback (most recent call last)", exit code: 1\n'
    cause = cause_of(wrapped, tmp_path)
    assert (cause.what, cause.rank) == ("user_exception", None)
    assert cause.text.startswith("ValueError: bad labels")


def test_what_was_cancelled_follows_from_who_ended_it(tmp_path: Path) -> None:
    cancelled = (
        'Traceback (most recent call last):\n  File "serve.py", line 4, in poll\nasyncio.exceptions.CancelledError\n\n'
    )
    during = "During handling of the above exception, another exception occurred:\n\n"
    ended = 'Traceback (most recent call last):\n  File "serve.py", line 9, in <module>\nKeyboardInterrupt\n'
    assert said(answer_to(cancelled + during + ended, tmp_path)) == ("terminated_signal", None)


def test_no_rank_is_silent_in_a_text_of_a_controller_alone(tmp_path: Path) -> None:
    died = "(TrainController pid=7) world size 2\n(TrainController pid=7) The actor died because its node has died. Node Id: b1\n"
    answer = answer_to(died, tmp_path)
    assert said(answer) == ("node_lost", None)
    assert answer.silent_ranks == ()
    assert answer_to(f"{died}[rank0]: RuntimeError: x\n", tmp_path).silent_ranks == (1,)
