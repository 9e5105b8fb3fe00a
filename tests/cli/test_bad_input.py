"""Bad input is one clear line on stderr, the documented exit code, and never a traceback."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Gpudoctor, assert_error, assert_refused

QUICK = ("check", "--level", "quick", "--node")
ENTITIES = b"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>
<nvidia_smi_log><driver_version>&b;</driver_version></nvidia_smi_log>"""
FILES = {
    "empty": b"",
    "blank": b"\n \n",
    "binary": bytes(range(256)) * 64,
    "latin": "schema: gpudoctor.facts/1\nsource: {name: Z\xfcrich}\n".encode("latin-1"),
    "entities.xml": ENTITIES,
    "python.yaml": b"schema: gpudoctor.facts/1\nsource: !!python/object/apply:os.system ['id']\n",
    "bomb.yaml": b"schema: gpudoctor.facts/1\na: &a [x,x,x,x]\nb: &b [*a,*a,*a,*a]\nc: [*b,*b,*b,*b]\n",
    "deep.json": b'{"schema":"gpudoctor.facts/1","source":' + b"[" * 100_000,
    "type.json": b'{"schema":"gpudoctor.facts/1","gpus":[{"index":"three","bus_id":"0000:01:00.0"}]}',
    "half.json": b'{"schema":"gpudoctor.facts/1","gpus":[{"index":0,',
    "half.xml": b'<?xml version="1.0" ?>\n<nvidia_smi_log><driver_version>550</driver_version><gpu id="0">',
    "prose.txt": b"Dear support, the node is slow.\n",
    "report-without-facts.json": b'{"schema":"gpudoctor.report/1","checks":[]}',
}


@pytest.mark.parametrize("name", FILES)
def test_a_source_that_cannot_be_read_is_named(name: str, gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    assert_refused(gpudoctor(*QUICK, str(tmp_path / name)), name)


def test_a_wrong_type_is_named_with_its_place(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(FILES["type.json"])
    assert_refused(gpudoctor(*QUICK, str(tmp_path / "t.json")), "gpus[0].index")


def test_1_gb_of_zeros_is_refused_by_its_head(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = tmp_path / "huge.xml"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    assert_refused(gpudoctor(*QUICK, str(path)), "huge.xml", "binary data")


def test_an_empty_directory_and_one_without_dumps_are_refused(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    assert_refused(gpudoctor(*QUICK, str(tmp_path)), str(tmp_path))
    (tmp_path / "letter.txt").write_text("hello\n")
    assert_refused(gpudoctor(*QUICK, str(tmp_path)), str(tmp_path))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((*QUICK, "hgx-h100"), ("hgx-h100", "hgx-h100-8")),
        ((*QUICK, "/no/such/file.xml"), ("/no/such/file.xml",)),
        ((*QUICK, "hgx-h100-8", "--fault", "pcie-width-x9@1"), ("pcie-width-x9", "pcie-width-x8")),
        ((*QUICK, "hgx-h100-8", "--fault", "pcie-width-x8@8"), ("8", "0")),
        ((*QUICK, "t4-cloud-4", "--fault", "nvlink-link-down@1"), ("nvlink-link-down", "t4-cloud-4")),
        ((*QUICK, "hgx-h100-8", "--gpu", "9"), ("9",)),
        ((*QUICK, "hgx-h100-8", "--gpu", "GPU-ffff"), ("GPU-ffff",)),
        ((*QUICK, "hgx-h100-8", "--skip", "hots"), ("hots", "host")),
        ((*QUICK, "hgx-h100-8", "--require", "gpu.eccc"), ("gpu.eccc", "gpu.ecc")),
        ((*QUICK, "hgx-h100-8", "pcie.link-with"), ("pcie.link-with", "pcie.link-width")),
        ((*QUICK, "hgx-h100-8", "--profile", "hgx-h100-9"), ("hgx-h100-9", "hgx-h100-8")),
        ((*QUICK, "hgx-h100-8", "--config", "/no/c.yaml"), ("/no/c.yaml",)),
        (("check", "--fault", "gpu-lost@1", "--level", "quick"), ("--node",)),
        (("check", "--node", "hgx-h100-8", "--backend", "nccl"), ("hgx-h100-8", "gloo")),
        (("check", "--node", "hgx-h100-8", "--backend", "gloo", "--inject", "nonsense"), ("nonsense",)),
        (("explain", "nonsuch"), ("nonsuch",)),
        (("facts", "--node", "nothing"), ("nothing",)),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest_ones(
    argv: tuple[str, ...], words: tuple[str, ...], gpudoctor: Gpudoctor
) -> None:
    assert_refused(gpudoctor(*argv), *words)


@pytest.mark.parametrize("form", ["json", "nagios", "prometheus", "junit"])
def test_an_error_is_one_document_in_the_format_asked_for(form: str, gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("check", "--node", "nothing-such", "--format", form)
    assert outcome.code == (3 if form == "nagios" else 2)
    assert outcome.out
    assert outcome.err.count("\n") == 1
    if form == "json":
        assert outcome.json["exit_code"] == 2
        assert "nothing-such" in outcome.json["error"]
        assert outcome.json["verdict"] == "unknown"
    if form == "nagios":
        assert outcome.out.startswith("GPUDOCTOR UNKNOWN - ")
        assert "nothing-such" in outcome.out


@pytest.mark.parametrize(
    "argv",
    [
        ("diagnose", "nothing-such"),
        ("diagnose", "nothing-such", "-o", "/no/such/folder/answer.json"),
        ("plan", "nothing-such", "-o", "/no/such/folder/plan.json"),
        ("plan", "7b", "--node", "hgx-h100-8", "-o", "/no/such/folder/nothing-such.json"),
        ("baseline", "compare", "nothing-such", "report.json"),
        ("baseline", "compare", "nothing-such"),
        ("cluster", "report", "nothing-such"),
        ("list", "nothing-such"),
        ("nodes", "nothing-such"),
        ("cluster", "check", "--launcher", "mpi", "--hostfile", "nothing-such"),
    ],
)
def test_an_error_of_every_command_is_one_json_document(argv: tuple[str, ...], gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor(*argv, "--json")
    assert outcome.json["error"]
    assert_error(outcome, outcome.json["error"])


@pytest.mark.parametrize("target", ["/proc/nothing/here.json", "/no/such/folder/r.json", "/", "loop"])
def test_an_unwritable_output_still_gives_the_report_on_stdout(
    target: str, gpudoctor: Gpudoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    outcome = gpudoctor(*QUICK, "hgx-h100-8", "--json", "-o", target)
    assert_error(outcome, target)
    assert (outcome.json["verdict"], outcome.json["exit_code"]) == ("pass", 2)


def test_output_is_replaced_whole_and_follows_the_umask(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = tmp_path / "r.prom"
    path.write_text("old")
    assert gpudoctor(*QUICK, "hgx-h100-8", "--format", "prometheus", "-o", str(path)).code == 0
    assert path.read_text().startswith("# HELP")
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("stdout", ["--json >/dev/full", ">/dev/full", "--json >&-", "a pipe without a reader"])
def test_a_stdout_that_takes_nothing_is_one_line_and_exit_2(stdout: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    redirected = stdout if stdout.endswith(("full", "-")) else f"--json >&{writing}"
    command = f"exec {sys.executable} -m gpudoctor check --level quick --node hgx-h100-8 {redirected}"
    done = subprocess.run(
        ["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True, pass_fds=(writing,), timeout=60, check=False
    )
    os.close(writing)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert ("No space left" in done.stderr) == stdout.endswith("full")


@pytest.mark.wide(every=3)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_gives_the_partial_report_and_its_exit_code(number: signal.Signals, code: int, tmp_path: Path) -> None:
    # the source is a pipe without a writer: the run blocks reading it until the signal arrives
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "gpudoctor", "check", "--level", "quick", "--json", "--node", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_until_reading_stdin(process.pid)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert b"Traceback" not in err
    assert b'"interrupted":"SIG' in out
    assert b'"verdict":"unknown"' in out


def wait_until_reading_stdin(pid: int) -> None:
    """Return once the process sleeps in a read of its stdin (as the kernel shows it)."""
    while True:
        syscall = Path(f"/proc/{pid}/syscall").read_text().split()
        if syscall[:2] in (["0", "0x0"], ["63", "0x0"]):
            return
        os.sched_yield()


def test_a_working_directory_whose_mount_is_gone_is_named(
    gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> str:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    monkeypatch.setattr("gpudoctor.cli.main.os.getcwd", lost)
    outcome = gpudoctor("list")
    monkeypatch.undo()
    assert_refused(outcome, "the working directory is lost (Transport endpoint is not connected): cd / and try again")
