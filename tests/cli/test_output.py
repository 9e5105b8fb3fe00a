"""`-o FILE`: written completely or not at all, nothing lost, and only at the requested path."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import pty
import select
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.conftest import Gpudoctor, assert_error, assert_refused
from tests.needs import needs

QUICK = ("check", "--level", "quick", "--json", "--node", "t4-cloud-4", "-o")
FACTS = ("facts", "--node", "t4-cloud-4", "-o")
BUNDLE = ("bundle", "--node", "t4-cloud-4", "-o")
COMMANDS = pytest.mark.parametrize("command", [QUICK, FACTS], ids=["check", "facts"])
AS_ROOT = needs("root")


@pytest.mark.parametrize(
    ("name", "options", "begins"),
    [
        ("r.html", "", "<!DOCTYPE html>"),
        ("r.JSON", "", '{"schema":"gpudoctor.report/1"'),
        ("r.prom", "", "# HELP gpudoctor_"),
        ("r.xml", "", "<?xml"),
        ("r.txt", "", "SIMULATED"),
        ("r.html", "--format text", "SIMULATED"),
        ("r.html", "--format nagios", "GPUDOCTOR WARNING - "),
        ("r.html", "--json", '{"schema":"gpudoctor.report/1"'),
    ],
)
def test_the_name_of_the_file_tells_its_format_if_nothing_else_does(
    name: str, options: str, begins: str, tmp_path: Path, gpudoctor: Gpudoctor
) -> None:
    file = tmp_path / name
    done = gpudoctor("check", "--level", "quick", "--node", "t4-cloud-4", *options.split(), "-o", str(file))
    assert (done.code, done.out) == (1 if "nagios" in options else 0, "")
    assert file.read_text().startswith(begins)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "precious").write_text("precious")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def is_output(path: Path) -> bool:
    return json.loads(path.read_text())["schema"] in ("gpudoctor.report/1", "gpudoctor.facts/1")


@COMMANDS
def test_a_link_into_another_directory_is_refused_and_nothing_is_lost(
    command: tuple[str, ...], gpudoctor: Gpudoctor, mine: Path, elsewhere: Path
) -> None:
    (mine / "direct").symlink_to(elsewhere / "precious")
    (mine / "dangling").symlink_to("../elsewhere/new")
    (mine / "hop").symlink_to("direct")
    for name in ("direct", "dangling", "hop"):
        done = gpudoctor(*command, str(mine / name))
        assert_error(done, f"{mine / name}: cannot write: it is a link into another directory, to {elsewhere}/")
        if command is QUICK:
            assert done.json["exit_code"] == 2, "the report is not lost"
    assert (elsewhere / "precious").read_text() == "precious"
    assert names(elsewhere) == ["precious"]
    assert names(mine) == ["dangling", "direct", "hop"]
    assert all((mine / name).is_symlink() for name in names(mine))


@COMMANDS
def test_a_link_within_its_directory_is_followed_and_stays(
    command: tuple[str, ...], gpudoctor: Gpudoctor, mine: Path
) -> None:
    (mine / "dated.json").write_text("old")
    (mine / "latest.json").symlink_to("dated.json")
    (mine / "hop").symlink_to(mine / "latest.json")
    (mine / "to-come").symlink_to("new.json")
    assert gpudoctor(*command, str(mine / "hop")).code == 0
    assert gpudoctor(*command, str(mine / "to-come")).code == 0
    assert is_output(mine / "dated.json")
    assert is_output(mine / "new.json")
    assert names(mine) == ["dated.json", "hop", "latest.json", "new.json", "to-come"]
    assert all((mine / name).is_symlink() for name in ("hop", "latest.json", "to-come"))


def test_a_directory_given_by_a_link_is_the_one_that_was_given(
    gpudoctor: Gpudoctor, mine: Path, elsewhere: Path
) -> None:
    (mine / "scratch").symlink_to(elsewhere)
    assert gpudoctor(*FACTS, str(mine / "scratch" / "facts.json")).code == 0
    assert is_output(elsewhere / "facts.json")
    assert_refused(gpudoctor(*FACTS, str(mine / "scratch")), "is a directory")
    assert_refused(gpudoctor(*BUNDLE, str(mine)), "is a directory")


def test_a_replaced_file_keeps_its_mode(gpudoctor: Gpudoctor, mine: Path) -> None:
    path = mine / "r.json"
    path.write_text("old")
    path.chmod(0o640)
    assert gpudoctor(*FACTS, str(path)).code == 0
    assert is_output(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert names(mine) == ["r.json"]


@AS_ROOT
def test_a_replaced_file_keeps_its_owner(gpudoctor: Gpudoctor, mine: Path) -> None:
    path = mine / "r.json"
    path.write_text("old")
    os.chown(path, 4321, 4322)
    path.chmod(0o4600)
    assert gpudoctor(*FACTS, str(path)).code == 0
    seen = path.stat()
    assert (seen.st_uid, seen.st_gid, stat.S_IMODE(seen.st_mode)) == (4321, 4322, 0o600)


@needs("a user other than root")
def test_a_file_that_must_not_be_written_to_is_not_replaced(gpudoctor: Gpudoctor, mine: Path) -> None:
    path = mine / "r.json"
    path.write_text("old")
    path.chmod(0o400)
    assert gpudoctor(*FACTS, str(path)).code == 2
    assert path.read_text() == "old"


@AS_ROOT
@pytest.mark.parametrize("laid_out", ["file", "link", "link to the file of another", "pipe"])
def test_what_another_user_laid_out_in_tmp_is_refused(laid_out: str, gpudoctor: Gpudoctor, mine: Path) -> None:
    trap, precious = mine / "report.json", mine / "precious"
    precious.write_text("precious")
    if laid_out == "file":
        trap.write_text("trap")
    elif laid_out == "pipe":
        os.mkfifo(trap)
    else:
        trap.symlink_to("precious")
    os.chown(precious if laid_out.endswith("another") else trap, 4321, 4321, follow_symlinks=False)
    os.chown(mine, 1234, 1234)
    mine.chmod(0o1777)
    done = gpudoctor(*QUICK, str(trap))
    assert_error(done, "belongs to another user (uid 4321), in a directory where everyone may write")
    assert done.json["exit_code"] == 2, "the report is not lost"
    assert precious.read_text() == "precious"
    assert names(mine) == ["precious", "report.json"]
    # where not everyone may write, a colleague's file is replaced as before
    mine.chmod(0o1775)
    if laid_out == "file":
        assert gpudoctor(*QUICK, str(trap)).code == 0


@COMMANDS
def test_a_device_is_written_to_as_it_is(command: tuple[str, ...], gpudoctor: Gpudoctor, mine: Path) -> None:
    (mine / "nothing").symlink_to("/dev/null")
    for name in ("/dev/null", str(mine / "nothing")):
        done = gpudoctor(*command, name)
        assert (done.code, done.out, done.err) == (0, "", "")
    assert (mine / "nothing").is_symlink()
    assert_error(gpudoctor(*command, "/dev/full"), "/dev/full: cannot write: No space left on device")


@AS_ROOT
def test_a_disk_is_not_written_to(gpudoctor: Gpudoctor, mine: Path) -> None:
    try:
        os.mknod(mine / "disk", stat.S_IFBLK | 0o600, os.makedev(0, 0))
    except PermissionError:
        pytest.skip("device nodes may not be made here")
    assert_refused(gpudoctor(*FACTS, str(mine / "disk")), "is a disk")


@pytest.mark.parametrize("target", ["/dev/stdout", "/proc/self/fd/1", "link"])
def test_stdout_by_name_is_added_to_and_nothing_before_it_is_lost(target: str, mine: Path) -> None:
    (mine / "link").symlink_to("/dev/stdout")
    log = mine / "log"
    log.write_text("before\n")
    with log.open("ab") as stdout:
        words = [sys.executable, "-m", "gpudoctor", *FACTS, target]
        done = subprocess.run(words, cwd=mine, stdout=stdout, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    first, _, rest = log.read_text().partition("\n")
    assert first == "before"
    assert json.loads(rest)["schema"] == "gpudoctor.facts/1"
    assert names(mine) == ["link", "log"]


def test_an_open_file_by_its_number_gets_the_report(gpudoctor: Gpudoctor, mine: Path) -> None:
    with (mine / "substituted").open("wb") as file:
        assert gpudoctor(*QUICK, f"/dev/fd/{file.fileno()}").code == 0
    assert is_output(mine / "substituted")
    assert_error(gpudoctor(*QUICK, "/dev/fd/987654"), "/dev/fd/987654: cannot write: Bad file descriptor")


def test_a_pipe_gives_the_report_to_its_reader(gpudoctor: Gpudoctor, mine: Path) -> None:
    pipe = mine / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []

    ours = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, 4096)  # smaller than the facts: they arrive in pieces

    def slowly() -> None:
        select.select([ours], [], [])
        os.set_blocking(ours, True)
        with os.fdopen(ours) as file:
            read.append(file.read())

    reader = threading.Thread(target=slowly, daemon=True)
    reader.start()
    assert gpudoctor("facts", "--node", "hgx-h100-8", "-o", str(pipe)).code == 0
    reader.join(30)
    assert json.loads(read[0])["schema"] == "gpudoctor.facts/1"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_pipe_that_nobody_reads_does_not_hang_it(
    gpudoctor: Gpudoctor, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudoctor.report.output_files.READER_DEADLINE_S", 0.0)
    os.mkfifo(mine / "pipe")
    done = gpudoctor(*QUICK, str(mine / "pipe"))
    assert_error(done, "pipe: cannot write: nobody reads this pipe")
    assert done.json["exit_code"] == 2, "the report is not lost"


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(unnamed: bool, mine: Path) -> None:
    path = mine / "r.json"
    path.write_text("old")
    words = [*FACTS, str(path)]
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))"
    # nor may what is imported later be compiled, and cut off
    before = "import os, resource, sys; sys.dont_write_bytecode = True"
    code = f"{before}; from gpudoctor.cli.main import main; {'' if unnamed else 'del os.O_TMPFILE; '}{limit}"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; raise SystemExit(main({words!r}))"], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.decode() == f"gpudoctor: error: {path}: cannot write: File too large\n"
    assert path.read_text() == "old"
    assert names(mine) == ["r.json"]


@pytest.mark.wide
def test_killed_while_it_writes_it_leaves_the_old_file_and_nothing_else(mine: Path) -> None:
    try:
        os.close(os.open(mine, os.O_TMPFILE | os.O_WRONLY))
    except OSError:
        pytest.skip("this file system makes no files without a name")
    (mine / "r.json").write_text("old")
    killed = "import os; os.fsync = lambda number: os.kill(os.getpid(), 9)"
    for words in ((*FACTS, str(mine / "r.json")), (*FACTS, str(mine / "new")), (*BUNDLE, str(mine / "b.tar.gz"))):
        code = f"{killed}; from gpudoctor.cli.main import main; main({list(words)!r})"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert (mine / "r.json").read_text() == "old"
    assert names(mine) == ["r.json"]


def test_a_file_system_without_nameless_files_is_written_to_all_the_same(
    gpudoctor: Gpudoctor, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    for _ in range(2):
        assert gpudoctor(*FACTS, str(mine / "r.json")).code == 0
    assert gpudoctor(*BUNDLE, str(mine / "b.tar.gz")).code == 0
    assert is_output(mine / "r.json")
    assert names(mine) == ["b.tar.gz", "r.json"]


def test_the_longest_name_that_a_file_can_have_is_written(gpudoctor: Gpudoctor, mine: Path) -> None:
    assert gpudoctor(*FACTS, str(mine / ("n" * 255))).code == 0
    assert names(mine) == ["n" * 255]
    assert "File name too long" in gpudoctor(*FACTS, str(mine / ("n" * 256))).err


@pytest.mark.parametrize("command", [QUICK, FACTS, BUNDLE], ids=["check", "facts", "bundle"])
def test_given_twice_it_is_refused_since_one_would_be_missing(
    command: tuple[str, ...], gpudoctor: Gpudoctor, mine: Path
) -> None:
    done = gpudoctor(*command, str(mine / "one"), "-o", str(mine / "two"))
    assert_refused(done, f"given twice ({mine / 'one'}, {mine / 'two'})")
    assert names(mine) == []


def test_a_dash_is_stdout_for_every_command(gpudoctor: Gpudoctor, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mine)
    assert gpudoctor(*QUICK, "-").json["schema"] == "gpudoctor.report/1"
    assert gpudoctor(*FACTS, "-").json["schema"] == "gpudoctor.facts/1"
    done = subprocess.run([sys.executable, "-m", "gpudoctor", *BUNDLE, "-"], capture_output=True, check=True)
    assert b"gpudoctor-bundle/facts.json" in gzip.decompress(done.stdout)
    assert done.stderr == b""
    assert names(mine) == []


def test_documents_are_utf_8_and_text_is_in_the_encoding_of_the_locale(gpudoctor: Gpudoctor, mine: Path) -> None:
    assert gpudoctor(*FACTS, str(mine / "facts.json")).code == 0
    facts = json.loads((mine / "facts.json").read_text())
    facts["host"]["hostname"] = "k\xf6ln"
    (mine / "facts.json").write_text(json.dumps(facts))

    def printed(*words: str) -> bytes:
        words = (sys.executable, "-m", "gpudoctor", *words, "--node", "facts.json")
        environ = {**os.environ, "PYTHONIOENCODING": "latin-1"}
        return subprocess.run(words, cwd=mine, env=environ, capture_output=True, check=False).stdout

    assert json.loads(printed("check", "--level", "quick", "--json"))["host"]["name"] == "k\xf6ln"
    assert json.loads(printed("facts"))["host"]["hostname"] == "k\xf6ln"
    assert "| k\xf6ln |".encode("latin-1") in printed("check", "--level", "quick")


def test_an_archive_does_not_go_to_a_terminal() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb"), os.fdopen(theirs, "wb") as terminal:
        words = [sys.executable, "-m", "gpudoctor", *BUNDLE, "-"]
        done = subprocess.run(words, stdout=terminal, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert done.stderr.decode().count("\n") == 1
    assert b"nothing for a terminal" in done.stderr
