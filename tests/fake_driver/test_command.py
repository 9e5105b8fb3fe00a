"""The command: exit codes, signals, the cache, the compiler, and leftovers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.fake_driver.conftest import COMMAND, ROOT, Run
from tests.subprocesses import completed, shell_program

SHOW = "import os; print(os.environ['GPUDOCTOR_FAKE_DRIVER'], os.environ['LD_LIBRARY_PATH'].split(':')[0])"


@pytest.mark.wide(every=3)
@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)])
def test_the_exit_code_is_the_programs_own(run: Run, script: str, code: int) -> None:
    assert run("t4-cloud-4", "sh", "-c", script).returncode == code


def test_what_is_played_is_said_once_on_stderr_and_nothing_on_stdout(run: Run) -> None:
    done = run("t4-cloud-4", "true", faults=("gpu-lost@1",))
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "SIMULATED" in done.stderr
    assert "t4-cloud-4 with gpu-lost@1" in done.stderr


def test_arguments_behind_the_dashes_are_the_programs_own(run: Run) -> None:
    done = run("t4-cloud-4", "printf", "%s|", "--node", "-1", "--", "--help")
    assert done.stdout == "--node|-1|--|--help|"


def test_a_program_that_is_not_there_is_127_with_one_line_and_one_that_cannot_run_126(run: Run, tmp_path: Path) -> None:
    done = run("t4-cloud-4", "no-such-program-here")
    assert done.returncode == 127
    assert done.stderr.splitlines() == ["gpudoctor: error: no-such-program-here: No such file or directory"]
    own = run("t4-cloud-4", "/nowhere/nvidia-smi")
    assert (own.returncode, own.stderr.count("it comes with NVIDIA's driver")) == (127, 1)
    plain = tmp_path / "plain"
    plain.write_text("no program", encoding="utf-8")
    assert run("t4-cloud-4", str(plain)).returncode == 126


@pytest.mark.wide(every=4)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--node", "t4-cloud-4"], "needs a program after --"),
        (["--node", "t4-cloud-4", "--"], "needs a program after --"),
        (["--node", "t4-cloud-4", "--", ""], "needs a program after --"),
        (["--node", "t4-cloud-4", "nvitop", "-1"], "needs -- before the program, as in: -- nvitop -1"),
        (["--", "true"], "needs --node"),
        (["--node", "no-such-node", "--", "true"], "no-such-node"),
        (["--node", "t4-cloud-4", "--fault", "no-such-fault", "--", "true"], "no-such-fault"),
        *(
            (["--node", "t4-cloud-4", f"--call-latency={value}", "--", "true"], f"--call-latency {value}: a number of")
            for value in ("", "-1", "nan", "inf", "60001", "2ms", "1e999")
        ),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_2(environ: dict[str, str], arguments: list[str], words: str) -> None:
    done = completed([*COMMAND, *arguments], env=environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_one_fake_driver_inside_another_is_refused(run: Run) -> None:
    done = run("t4-cloud-4", *COMMAND, "--node", "hgx-h100-8", "--", "true")
    assert done.returncode == 2
    assert "one driver at a time" in done.stderr


def test_without_a_compiler_it_says_what_to_install(run: Run, tmp_path: Path) -> None:
    done = run("t4-cloud-4", "true", env={"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "apt install gcc" in done.stderr


@pytest.mark.parametrize("compiler", ["no-such-cc", "'open"])
def test_a_compiler_that_does_not_exist_is_named(run: Run, compiler: str) -> None:
    done = run("t4-cloud-4", "true", env={"CC": compiler})
    assert done.returncode == 2
    assert f"CC={compiler}" in done.stderr


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    broken = shell_program(tmp_path / "brokencc", "echo 'fatal error: stdio.h: No such file' >&2; exit 1")
    done = run("t4-cloud-4", "true", env={"CC": str(broken), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert done.returncode == 2
    assert "stdio.h" in done.stderr
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_the_library_is_built_once_and_then_comes_from_the_cache(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    counting = shell_program(tmp_path / "cc", f'echo built >> {log}; exec {shutil.which("cc")} "$@"')
    env = {"CC": str(counting), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for _ in range(2):
        done = run("t4-cloud-4", sys.executable, "-c", SHOW, env=env)
        assert done.stdout.split()[1].startswith(str(tmp_path / "cache" / "gpudoctor"))
    assert log.read_text(encoding="utf-8") == "built\n"
    counting.write_text(counting.read_text(encoding="utf-8") + "# another compiler\n", encoding="utf-8")
    run("t4-cloud-4", "true", env=env)
    assert log.read_text(encoding="utf-8") == "built\nbuilt\n"


@pytest.mark.wide
def test_two_at_once_on_an_empty_cache_both_work(environ: dict[str, str], tmp_path: Path) -> None:
    env = {**environ, "XDG_CACHE_HOME": str(tmp_path)}
    program = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    both = [
        subprocess.Popen(
            [*COMMAND, "--node", "t4-cloud-4", "--", sys.executable, "-c", program], env=env, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[0] for process in both] == [b"4\n", b"4\n"]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["libnvidia-ml.so.1"]


@pytest.mark.wide
def test_a_cache_that_cannot_be_written_is_done_without_and_nothing_is_left(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = run("t4-cloud-4", sys.executable, "-c", SHOW, env={"XDG_CACHE_HOME": str(tmp_path / "file")})
    private, library = done.stdout.split()
    assert library.startswith(private)
    assert not Path(private).exists()


def test_a_call_that_hangs_is_ended_by_a_signal_to_the_command_and_nothing_is_left(environ: dict[str, str]) -> None:
    program = (
        "import os, pynvml as N; N.nvmlInit(); h = N.nvmlDeviceGetHandleByIndex(3); "
        "print(os.getpid(), os.environ['GPUDOCTOR_FAKE_DRIVER'], flush=True); N.nvmlDeviceGetFieldValues(h, [1]); "
        "print('came back')"
    )
    words = [*COMMAND, "--node", "hgx-h100-8", "--fault", "driver-hang@3", "--", sys.executable, "-c", program]
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        pid, private = process.stdout.readline().split()
        assert Path(private).is_dir()
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == ""
        assert process.wait(30) == 128 + signal.SIGTERM
    assert not psutil.pid_exists(int(pid))
    assert not Path(private).exists()


def test_a_command_that_is_killed_leaves_no_folder_and_no_process(environ: dict[str, str]) -> None:
    words = [*COMMAND, "--node", "t4-cloud-4", "--", "sh", "-c", "echo $GPUDOCTOR_FAKE_DRIVER; exec sleep 60"]
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        private = Path(process.stdout.readline().strip())
        children = psutil.Process(process.pid).children(recursive=True)
        assert private.is_dir()
        process.kill()
        assert len(children) == 3  # the program, who removes the folder, and the witness of its signals
        assert psutil.wait_procs(children, timeout=30)[1] == []
    assert not private.exists()


def test_a_program_can_answer_the_signal_itself(environ: dict[str, str]) -> None:
    script = "trap 'echo told; exit 5' USR1; echo up; while :; do read line || exit 9; done"
    words = [*COMMAND, "--node", "t4-cloud-4", "--", "bash", "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, env=environ, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "up\n"
        os.kill(process.pid, signal.SIGUSR1)
        assert process.stdout.readline() == "told\n"
        assert process.wait(30) == 5


def test_a_parent_that_ignores_the_end_of_children_hides_no_exit_code(environ: dict[str, str]) -> None:
    """It is inherited; the kernel then keeps no exit status and sends no SIGCHLD: the command used to wait forever."""
    words = [*COMMAND, "--node", "t4-cloud-4", "--", "sh", "-c", "exit 5"]
    ignoring = ["bash", "-c", 'trap "" CHLD; exec "$@"', "bash", *words]
    assert subprocess.run(ignoring, env=environ, timeout=60, check=False).returncode == 5


def test_the_sources_of_the_library_are_beside_the_package(environ: dict[str, str]) -> None:
    from gpudoctor.testing.run_program import SOURCES

    assert all(source.is_file() and source.is_relative_to(ROOT / "gpudoctor") for source in SOURCES)
