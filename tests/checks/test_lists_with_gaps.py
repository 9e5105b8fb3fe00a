"""Verdicts on pasted lists of GPUs that are not whole: what the text leaves out passes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudoctor.checks.core.finding import Finding, Status
from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.report.judge import judge as judge_all
from tests.checks.one_check import finds, judge, text_of
from tests.facts.loaded_nodes import pasted
from tests.facts.transcripts import csv, dcgm_diag, dcgm_diag_json, gpu_list, table

NODE = load_node("hgx-h100-8")
# without the part about processes, which stands below all GPUs
TABLE = table(NODE).partition("\n\n")[0] + "\n"
MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-31\nGPU1\tNV18\t X \t0-31\n"
LISTS = {"-L": gpu_list(NODE), "CSV": csv(NODE), "table": TABLE, "topo -m": MATRIX}
LEFT_OUT = ["...", "[...]", "(remaining GPUs omitted)", "[output truncated]", "-- 12 more lines --", "^C", "Terminated"]


def verdict(text: str) -> str:
    return judge_all(pasted(text)).verdict


def reported(text: str) -> list[Finding]:
    return [f for f in judge("reported.failures", pasted(text)).findings if f.status is not Status.SKIP]


@pytest.mark.parametrize("line", LEFT_OUT)
@pytest.mark.parametrize("name", LISTS)
def test_a_list_that_says_that_something_is_left_out_is_no_pass(name: str, line: str) -> None:
    assert verdict(LISTS[name]) == "pass"
    assert verdict(f"{LISTS[name]}{line}\n") != "pass"
    assert any(line in (finding.reason or "") for finding in reported(f"{LISTS[name]}{line}\n"))


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("-L", "GPU 8:"),
        ("-L", "GPU 8: NVIDIA H1"),
        ("-L", "GPU ?: NVIDIA H100"),
        ("CSV", "8, NVIDIA H100 80GB HBM3"),
        ("table", "| 8  NVIDIA"),
        ("topo -m", "GPU2\tERR\tERR\t X \t0-31"),
    ],
)
def test_a_row_that_cannot_be_read_is_a_gpu_that_does_not_pass(name: str, row: str) -> None:
    assert verdict(f"{LISTS[name]}{row}\n") == "unknown"


def with_a_sick_row(line: str) -> str:
    """The CSV of a node with errors of memory on GPU 5, divided by this line."""
    rows = csv(NODE).splitlines()
    sick = rows[0].split(", ").index("ecc.errors.uncorrected.volatile.total")
    cells = rows[6].split(", ")
    cells[sick] = "7"
    return "\n".join([*rows[:4], line, *rows[4:6], ", ".join(cells), *rows[7:], ""])


@pytest.mark.parametrize("line", ["...", "#### snip ####", "(1 line omitted)"])
def test_rows_below_a_gap_do_not_make_the_list_whole(line: str) -> None:
    listed = gpu_list(NODE).splitlines()
    assert verdict("\n".join([*listed[:3], line, *listed[4:], ""])) == "unknown"


def test_rows_below_words_between_them_are_of_the_list_above() -> None:
    findings = judge("gpu.ecc", pasted(with_a_sick_row("(1 line omitted)"))).findings
    finds([f for f in findings if f.status is Status.FAIL], Status.FAIL, gpu=5)


@pytest.mark.parametrize(
    "line", ["---", "```", "=== rest ===", "$", "---\n---", "==> node2 <==", "...", "#### snip ####"]
)
def test_rows_below_a_ruler_may_be_of_another_table_and_pass_nothing(line: str) -> None:
    assert verdict(with_a_sick_row(line)) == "unknown"
    fault = "0000:c7:00.0, GPU has fallen off the bus\n"
    assert verdict(f"{csv(NODE)}{line}\n{fault}") == "fail"


@pytest.mark.parametrize(
    "line",
    [
        *("No other GPUs found", "0 more errors", "no output was truncated", "Killed 0 stale processes"),
        *("The rest of the GPUs are in use", "timeout: 30 s", "2 more steps until checkpoint", "8 GPUs found"),
        *("$ cat truncated.log", "==> dmesg-truncated.txt <==", "=== other GPUs ===", "Connection to n1 closed."),
        *("Removed 3 stale lock files", "Skipped GPU burn test", "Same on the other nodes.", "epoch,0,1,2,3,4,5"),
    ],
)
@pytest.mark.parametrize("name", LISTS)
def test_what_says_that_nothing_is_left_out_takes_no_pass(name: str, line: str) -> None:
    assert verdict(f"{LISTS[name]}{line}\n") == "pass"


XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=python, GPU has fallen off the bus."


@pytest.mark.parametrize(
    "text",
    [
        f"{table(NODE)}root@node7:~# [ 1234.567890] {XID}\n",
        gpu_list(NODE).replace("\n", f"[ 1234.567890] {XID}\n", 1),
        table(NODE).replace("No running processes found", f"No running processes found [ 12.3] {XID}"),
    ],
    ids=["behind a prompt", "in a list", "in a table"],
)
def test_what_the_kernel_writes_into_other_lines_is_seen(text: str) -> None:
    assert [XID in text, verdict(text)] == [True, "fail"]


def test_a_folder_with_a_tools_text_in_a_string_is_no_pass(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(table(NODE))
    (tmp_path / "b.json").write_text(f'{{"smi": "{gpu_list(NODE)!r}"}}\n')
    assert judge_all(load_source(str(tmp_path)).node).verdict == "unknown"


def test_who_ends_a_loop_leaves_nothing_out() -> None:
    rows = csv(NODE).splitlines(keepends=True)
    assert verdict("".join([*rows, *rows[1:], "^C\n"])) == "pass"
    assert verdict("".join([*rows, *rows[1:4], "^C\n"])) == "unknown"


def test_what_follows_a_whole_list_is_not_left_out_of_it() -> None:
    assert verdict(f"{table(NODE)}...\n") == "pass"
    assert verdict(f"{gpu_list(NODE)}GPU 0: PASS\nGPU 8: worker 0 started\n") == "pass"
    cut = table(NODE).replace("\n\n", "\n...\n\n")
    assert [verdict(cut), cut != table(NODE)] == ["unknown", True]
    assert verdict(f"{gpu_list(NODE)}\n...\n") == "pass"
    assert verdict(f"{gpu_list(NODE)}My jobs are slow, and I do not know why.\n") == "pass"


def test_links_that_a_text_leaves_out_are_not_down() -> None:
    rows = [f"\t Link {n}: 26.562 GB/s\n" for n in range(18)]
    links = "".join(rows)
    listed = gpu_list(NODE).splitlines(keepends=True)
    whole = "".join(f"{gpu}{links}" for gpu in listed)
    gone = "".join(f"{gpu}{links if n != 3 else '...' + chr(10)}" for n, gpu in enumerate(listed))
    assert [verdict(whole), verdict(gone)] == ["pass", "unknown"]
    short = "".join(f"{gpu}{links if n != 3 else ''.join(rows[:16])}" for n, gpu in enumerate(listed))
    assert [verdict(short), verdict(f"{short}...\n")] == ["fail", "fail"]


@pytest.mark.parametrize("end", ["Unknown", "Timeout", "Aborted", "Error"])
def test_a_result_that_dcgm_does_not_have_is_none(end: str) -> None:
    for text in (dcgm_diag(end), dcgm_diag(version=4).replace("GPU1: Pass", f"GPU1: {end}"), dcgm_diag_json(end)):
        assert verdict(text) == "unknown"
        assert any(
            f.status is Status.UNKNOWN and "no result that gpudoctor knows" in text_of(f) for f in reported(text)
        )
    assert verdict(dcgm_diag(version=4).replace("GPU1: Pass", "GPU1:     ")) == "unknown"
    assert [verdict(dcgm_diag(word)) for word in ("Disabled", "Not applicable", "NotRun")] == ["pass"] * 3
    assert verdict(dcgm_diag_json("Passed")) == "pass"


def test_a_test_of_dcgm_that_warns_is_a_warning() -> None:
    finds(reported(dcgm_diag("Warn - GPU: 1")), Status.WARN, "Warn: PCIe (GPU: 1)", gpu=1)
    finds(reported(dcgm_diag("Fail - GPU: 1")), Status.FAIL, "Fail: PCIe (GPU: 1)", gpu=1)


HEALTH = (
    "| Health Monitor Report     |                |\n+===========================+================+\n"
    "| Overall Health            | Healthy        |\n| GPU 3                     | {:<15}|\n"
)


def test_a_gpu_without_a_known_health_is_no_pass() -> None:
    assert verdict(HEALTH.format("Healthy")) == "pass"
    assert [verdict(HEALTH.format(word)) for word in ("lost", "Unable to read")] == ["unknown", "unknown"]


@pytest.mark.parametrize(
    "line",
    [
        "GPU 1 memory: Fail, GPU 1 PCIe: Pass",
        "GPU 0 FAIL | GPU 1 | PASS",
        "GPU 0: OK  GPU 1: FAULT  GPU 2: PASS",
        "GPU 1: missing, GPU 2: PASS",
        "GPU1 MEM_FAIL GPU2 : PASS",
    ],
)
def test_a_line_with_a_bad_verdict_and_a_good_one_is_no_good_line(line: str) -> None:
    assert verdict(f"GPU node check\nGPU 5 PCIe: PASS\n{line}\n") != "pass"


@pytest.mark.parametrize(
    "line",
    [
        "| GPU memory test | Fail: 0 | PASS |",
        "GPU 0 Pass/Fail: Pass",
        "GPU 0 fail-over NVLink test: PASS",
        "| GPU 0 | 0 FAILED | PASS |",
        "GPU 0: PASS, GPU 1: PASS, GPU 2: PASS",
        "P2P GPU 0 <-> GPU 1: PASS",
        "GPU 0: 45C, GPU 1: 46C: PASS",
        "| GPU LOST | no | Healthy |",
        "| GPU 0 | GPU LOST | PASS |",
        "GPU 0: active, GPU 1: idle | PASS",
        "| GPU 0 | XID_ERROR | PASS |",
        "| GPU FAILURES | 0 | PASS |",
    ],
)
def test_a_line_that_counts_no_failure_is_a_good_one(line: str) -> None:
    assert verdict(f"{line}\n") == "pass"


@pytest.mark.parametrize("word", ["[Unknown Error]", "ERR!"])
def test_a_gpu_whose_bus_id_the_driver_does_not_answer_is_no_pass(word: str) -> None:
    assert verdict(csv(NODE).replace("00000000:4B:00.0", word)) == "unknown"


def test_one_value_that_the_driver_did_not_answer_for_one_gpu_alone_is_no_pass() -> None:
    for odd in ("Unknown Error / 700W", "ERR! / 700W"):
        text = table(NODE).replace("69W / 700W", odd.rjust(10), 1)
        assert text != table(NODE)
        finds(
            [f for f in judge("gpu.lost", pasted(text)).findings if f.status is Status.UNKNOWN], Status.UNKNOWN, odd[:5]
        )
