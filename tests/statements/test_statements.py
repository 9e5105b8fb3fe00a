"""Lines of tools that no table knows -> who says it, how bad, its class, and what it is about."""

from __future__ import annotations

import pytest

from gpudoctor.statements.catalogue import known_error
from gpudoctor.statements.model import About, Statement
from gpudoctor.statements.prefixes import Origin, stripped, unmarked, with_short_numbers
from gpudoctor.statements.reader import statement_of


def parts_of(line: str) -> tuple[Origin, str]:
    return stripped(unmarked(with_short_numbers(line)))


def said(line: str) -> Statement | None:
    return statement_of(1, *parts_of(line))


def only(line: str) -> Statement:
    found = said(line)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("line", "form", "kind"),
    [
        ("srun: unrecognized option '--gpus-per-nod'", "program", "cause"),
        ("train.py: error: unrecognized arguments: --flash-attention", "program", "cause"),
        ("bash: torchrun: command not found", "program", "cause"),
        ("docker: Error response from daemon: could not select device driver", "program", "cause"),
        ('time="2024-01-01T10:10:10Z" level=error msg="failed to allocate GPU 3"', "level", "cause"),
        ("[TensorRT-LLM][ERROR] MPI error 6", "level", "cause"),
        ("2024-01-01 10:00:00,123 - ERROR - train - could not open shard 3", "level", "cause"),
        ("  Warning  FailedScheduling  3m  default-scheduler  0/5 nodes are available", "event", "cause"),
        ("  what():  no such shard", "death", "cause"),
        ("a.cu:106: f(T *) [with T = float]: block: [0,0,0] Assertion `t >= 0` failed.", "death", "cause"),
        ("KeyError: 'label'", "exception", "cause"),
        ("Exception: no token at line 4", "exception", "cause"),
        ("socket.error: [Errno 111] Connection refused", "exception", "network"),
        ("error: creating server: no model could be read", "level", "cause"),
        ("net.cpp:397] Check failed: code >= 0 ERROR at the first read", "death", "cause"),
        ("socket.gaierror: [Errno -2] Name or service not known", "exception", "network"),
        ("UnavailableError: recvmsg:Connection timed out", "exception", "network"),
        ("RuntimeError: engine initialization failed. See root cause above.", "exception", "wrapper"),
        ("[E816 01:45:40.18 Group.cpp:607] the barrier of all ranks timed out", "level", "wait"),
        ("worker: error: Connection reset by peer", "program", "peer"),
        ("app: fatal: No space left on device", "program", "resource"),
        ("GPU 2: FAULTY", "verdict", "cause"),
        ("| GPU Memory                | Fail - All    |", "verdict", "cause"),
        ("GPU 3 has fallen off the bus", "sentence", "cause"),
        ("GPU 0 failed its test", "sentence", "cause"),
        # of several sentences one tells of a failure
        ("A GPU of n7 is not working as it should. Could someone please look at it?", "sentence", "cause"),
        ("Only 3/4 GPUs came up", "sentence", "cause"),
        ("nvidia-smi says that the infoROM is corrupted", "sentence", "cause"),
        (
            "hook: exit status 1, stdout: , stderr: nvidia-container-cli: initialization error: no driver",
            "exit",
            "cause",
        ),
        ("GPU 1 failed on node 0", "sentence", "cause"),
        ("GPU 1 uncorrectable error count 5, correctable error count 0", "sentence", "cause"),
        ("srun: error: task 0 launch failed: Unspecified error", "program", "cause"),
    ],
)
def test_a_line_is_read_by_its_form_and_class(line: str, form: str, kind: str) -> None:
    found = only(line)
    assert (found.form, found.kind, found.severity != "warning") == (form, kind, True)


@pytest.mark.parametrize(
    "line",
    [
        "validation error 0.31, failed samples: 0",
        "INFO 11-20 06:37:12 [core.py:58] Failed to import the tuner, going on",
        "0 errors, 0 warnings",
        "3 passed, 0 failed",
        "GPU 0 failure count 0",
        "GPU 0 failed 0 passed 12",
        "GPU 0 errors not found",
        *("GPU 0 error free", "GPU 0 error free since Monday", "GPU 0 is error free, as it was"),
        "GPU 0 error log is empty",
        "GPU 0 error counters reset",
        "GPU 0 error containment enabled",
        "Device 0 correctable error count 0, uncorrectable error count 0",
        "We saw no Xid 79 since the repair",
        "HTTPError: 503, retrying in 5 s",
        "I get this error when I run it: RuntimeError",
        "Message: 'Failed to export batch'",
        "Only a test?",
        "If GPU 3 has failed, tell us. Please drain the node then.",
    ],
)
def test_what_only_looks_like_bad_news_is_none(line: str) -> None:
    assert said(line) is None


@pytest.mark.parametrize("line", ["GPU 0 error free memory exhausted", "GPU 0 error free list corrupted"])
def test_a_phrase_of_good_news_that_goes_on_to_name_something_else_is_none(line: str) -> None:
    assert only(line).severity == "error"


@pytest.mark.parametrize(
    ("line", "expected", "label"),
    [
        ("## `GPU 3` has **fallen off** the bus", About(gpu_index=3), "gpu_lost"),
        ("> NVRM: Xid (PCI:0000:4B:00): 79, GPU has fallen off the bus.", About(bus_id="0000:4b:00.0"), "gpu_lost"),
        (
            "Unable to detect the device handle for GPU0000:B1:00.0: Unknown Error",
            About(bus_id="0000:b1:00.0"),
            "gpu_lost",
        ),
        ("mlx5_1 port 1 is down", About(adapter="mlx5_1", port=1), None),
        ("cuda error 804", About(), "cuda_driver_mismatch"),
        ("No devices were found", About(), "gpu_isolated"),
        ("failed to open /dev/nvidia3", About(device_file="/dev/nvidia3"), None),
    ],
)
def test_what_a_message_names_and_what_is_known_of_it(line: str, expected: About, label: str | None) -> None:
    found = only(line)
    assert (found.about, found.label) == (expected, label)


def test_the_prefix_says_who_speaks() -> None:
    line = "Jul 12 10:00:00 node7 nvidia-persistenced[1234]: Failed to query NVIDIA devices"
    origin, text = parts_of(line)
    assert (origin.host, origin.program_pid, text) == ("node7", 1234, "Failed to query NVIDIA devices")
    assert (only(line).program, only(line).message) == ("nvidia-persistenced", text)
    assert parts_of("[rank3]: ValueError: bad shape")[0].rank == 3


def test_lines_of_any_length_and_form_are_read() -> None:
    lines = [
        "\0" * 5_000_000,
        "ERROR " * 1_000_000,
        "\x1b[31mERROR: red\x1b[0m",
        "\udc80 failed",
        "",
        "fatal: x" + "(" * 90_000,
    ]
    assert [n for n, line in enumerate(lines, 1) if said(line)] == [2, 3, 4, 6]


def test_the_catalogue_tells_hardware_from_a_full_memory() -> None:
    texts = (
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA out of memory. Tried to allocate 2 GiB",
        "no such text",
    )
    assert [row and row.effect for row in map(known_error, texts)] == ["hardware", "memory", None]
