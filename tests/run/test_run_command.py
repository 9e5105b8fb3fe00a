"""`gpudoctor run` from the outside: a training is watched, its output is its own, and the report says what was seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from gpudoctor.run.report import RunReport
from tests.needs import needs
from tests.subprocesses import completed

RUN = [sys.executable, "-m", "gpudoctor", "run", "--precheck", "none"]
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "train_ddp.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SINGLE = """
import sys, torch
assert sys.stdout.isatty() is False and type(sys.stdout).__name__ == "TextIOWrapper"
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("loss is finite:", bool(loss.isfinite()))
print("and this is an error", file=sys.stderr)
"""


# what torchrun does, without its own import of torch
LAUNCHER = """
import os, subprocess, sys
ranks = [
    subprocess.Popen(sys.argv[1:], env=dict(os.environ, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2")) for rank in "01"
]
sys.exit(max(rank.wait() for rank in ranks))
"""
TWO_RANKS = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(os.environ["RANK"]), world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
items = torch.utils.data.TensorDataset(torch.ones(80, 8))
for step, (x,) in enumerate(torch.utils.data.DataLoader(items, 4)):
    if step == 15 and dist.get_rank() == 1:
        raise ValueError("label 17 is out of range")
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FILLS_THE_DISK = """
import os
def fill(step):
    if step == 20:
        with open(os.path.join(os.environ["TMPDIR"], "full"), "wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError as error:
                print("full:", error.strerror)
"""


def report_of(
    tmp_path: Path, *command: str, options: tuple[str, ...] = (), environ: Mapping[str, str] = {}
) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """Run it; return the JSON report, which must fit its schema, and the process."""
    file = tmp_path / "report.json"
    done = completed(
        [*RUN, *options, "--format", "json", "-o", str(file), "--", *command],
        env={**os.environ, "TMPDIR": str(tmp_path), **environ},
    )
    content = json.loads(file.read_text(encoding="utf-8"))
    jsonschema.validate(content, msgspec.json.schema(RunReport))
    return content, done


@pytest.mark.wide
def test_a_single_process_is_watched_and_its_output_is_its_own(tmp_path: Path) -> None:
    content, done = report_of(tmp_path, sys.executable, "-c", SINGLE)
    alone = completed([sys.executable, "-c", SINGLE], check=True)
    assert done.stdout == alone.stdout
    assert alone.stderr in done.stderr
    (rank,) = content["ranks"]
    assert (rank["steps"], rank["rows"], rank["ended"]) == (40, 4.0, "normal")
    assert content["schema"] == "gpudoctor.run/1"
    assert content["verdict"] == "pass"
    assert not list(tmp_path.glob("gpudoctor-run-*"))


def test_the_users_sitecustomize_is_imported_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.of_the_user = __file__\n", encoding="utf-8")
    observers = "[p for p in sys.path if 'observer' in p]"
    show = f"import sys; print(sys.of_the_user, sys.modules['sitecustomize'].__file__, {observers})"
    _, done = report_of(tmp_path, sys.executable, "-c", show, environ={"PYTHONPATH": str(tmp_path)})
    path = tmp_path / "sitecustomize.py"
    assert done.stdout == f"{path} {path} []\n"


@pytest.mark.parametrize("isolated", [[], ["-I"]])
def test_what_cannot_be_seen_is_said(tmp_path: Path, isolated: list[str]) -> None:
    content, done = report_of(tmp_path, sys.executable, *isolated, "-c", "import sys; sys.exit(3)")
    assert done.returncode == content["exit_code"] == 3
    assert content["ranks"] == []
    assert "no Python process that imports torch" in " ".join(content["notes"])


@pytest.mark.wide
def test_an_observer_that_breaks_switches_itself_off_and_says_so(tmp_path: Path) -> None:
    breaks = "import torch; torch.linalg.vector_norm = None\n" + SINGLE
    content, done = report_of(tmp_path, sys.executable, "-c", breaks)
    assert done.returncode == 0
    assert any("switched itself off" in note for note in content["notes"])


def test_without_room_for_records_the_command_runs_unchanged(tmp_path: Path) -> None:
    missing = tmp_path / "no folder"
    content, done = report_of(tmp_path, "echo", "hello", options=("--keep", str(missing)))
    assert (done.stdout, content["exit_code"]) == ("hello\n", 0)
    assert any("nothing was observed" in note for note in content["notes"])


@pytest.mark.wide
@needs("root", "mount")
def test_a_disk_that_fills_up_later_stops_nothing_and_is_said(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=72m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        program = FILLS_THE_DISK + SINGLE.replace("    optimizer.zero_grad()", "    optimizer.zero_grad(); fill(step)")
        content, done = report_of(tmp_path, sys.executable, "-c", program, environ={"TMPDIR": str(disk)})
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert done.stdout == "full: No space left on device\nloss is finite: True\n"
    assert (done.returncode, content["ranks"][0]["steps"]) == (0, 40)
    assert any("is full" in note for note in content["notes"])


def test_of_two_ranks_the_one_that_raises_is_named(tmp_path: Path) -> None:
    program = (sys.executable, "-c", LAUNCHER, sys.executable, "-c", TWO_RANKS, str(tmp_path / "store"))
    content, done = report_of(tmp_path, *program)
    assert done.returncode == content["exit_code"] == 1
    assert [(rank["rank"], rank["steps"], rank["rows"]) for rank in content["ranks"]] == [(0, 15, 4.0), (1, 15, 4.0)]
    found = next(finding for finding in content["findings"] if finding["id"] == "run.progress")
    assert found["subject"]["rank"] == 1
    assert "label 17 is out of range" in found["found"]["text"]


@pytest.mark.wide
def test_the_rank_that_hangs_is_named_with_its_line_of_code(tmp_path: Path) -> None:
    options = ("--hang-after", "4", "--on-hang", "end")
    late = ("--hang", "1", "--at", "141", "--steps", "200")  # a step that is not timed
    content, done = report_of(tmp_path, *TORCHRUN, str(EXAMPLE), *late, options=options)
    assert done.returncode != 0
    found = next(finding for finding in content["findings"] if finding["id"] == "run.progress")
    assert found["subject"]["rank"] == 1
    assert "time.sleep(10_000)" in found["found"]["text"]
    # the signal that gpudoctor sent is no cause
    causes = [content["diagnosis"]["cause"], *content["diagnosis"]["others"]]
    assert [cause["what"] for cause in causes] == ["rank_hung"]
    assert content["throughput"] is None


@pytest.mark.wide
@pytest.mark.parametrize(("options", "words"), [((), "gave up"), (("--hang-after", "3"), "time.sleep(10_000)")])
def test_a_hang_that_ends_by_the_collectives_own_timeout_names_the_rank_that_hung(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    content, _ = report_of(tmp_path, *TORCHRUN, str(EXAMPLE), "--hang", "1", "--timeout", "8", options=options)
    (found,) = (finding for finding in content["findings"] if finding["status"] == "fail")
    assert (found["id"], found["subject"]["rank"]) == ("run.progress", 1)
    assert words in found["found"]["text"]
    assert "Timed out waiting 8000ms" in found["found"]["text"]
    assert [stall["resumed"] for stall in content["stalls"]] == [False] * (len(options) // 2)
    news = msgspec.convert(content, RunReport).news_of_logs
    assert news is None or (news.cause and (news.cause.what, news.cause.rank)) == ("rank_hung", 1)


@pytest.mark.wide
def test_the_rank_that_dies_is_named_with_its_error(tmp_path: Path) -> None:
    content, done = report_of(tmp_path, *TORCHRUN, str(EXAMPLE), "--die", "1")
    assert done.returncode == content["exit_code"] == 1
    found = next(finding for finding in content["findings"] if finding["id"] == "run.progress")
    assert found["subject"]["rank"] == 1
    assert "<|im_end|>" in found["found"]["text"]
    assert content["diagnosis"]["cause"]["rank"] == 1


@pytest.mark.wide
def test_the_slow_rank_is_named(tmp_path: Path) -> None:
    content, _ = report_of(tmp_path, *TORCHRUN, str(EXAMPLE), "--steps", "80", "--slow-rank", "1")
    found = [finding for finding in content["findings"] if finding["status"] == "warn"]
    assert [(finding["id"], finding["subject"]["rank"]) for finding in found] == [("run.balance", 1)]


@pytest.mark.wide
def test_the_first_task_of_a_slurm_step_reports_for_all_of_its_node(tmp_path: Path) -> None:
    file, ended = tmp_path / "report.json", tmp_path / "ended"
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "TMPDIR": str(tmp_path)}
    waits = f"import os, time\nwhile not os.path.exists({str(ended)!r}): time.sleep(0.1)\n"
    options = [*RUN, "--format", "json", "-o", str(file), "--", sys.executable, "-c"]
    tasks = [
        subprocess.Popen(
            [*options, SINGLE + (waits if task == 0 else f"open({str(ended)!r}, 'w')\n")],
            stderr=subprocess.PIPE, env={**os.environ, **step, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)},
        )
        for task in range(2)
    ]  # fmt: skip
    errors = [task.communicate()[1].decode() for task in reversed(tasks)]
    assert [task.returncode for task in tasks] == [0, 0]
    assert errors[0] == "and this is an error\n"
    ranks = json.loads(file.read_text(encoding="utf-8"))["ranks"]
    assert [(rank["rank"], rank["steps"], rank["ended"]) for rank in ranks] == [(0, 40, "normal"), (1, 40, "normal")]
    assert not list(tmp_path.glob("gpudoctor-run-*"))


def test_a_command_is_needed_after_the_dashes() -> None:
    done = completed([sys.executable, "-m", "gpudoctor", "run"])
    assert done.returncode == 2
    assert "a command is needed after --" in done.stderr
    wrong = completed([*RUN, "train.py"])
    assert wrong.returncode == 2
