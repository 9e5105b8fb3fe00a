"""`gpudoctor completion`, loaded by its shell, with TAB pressed in it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudoctor.cli.main import main
from tests.needs import fixture_needs, needs

# how a shell is started and loads the script: from its startup file, or from where a package puts it
LOADING = {
    "bash": (["bash", "--norc", "-i"], 'eval "$(cat _gpudoctor)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -U compinit; compinit -u -D; eval "$(cat _gpudoctor)"'),
    "zsh fpath": (["zsh", "-f", "-i"], "fpath=($PWD $fpath); autoload -U compinit; compinit -u -D"),
    "fish": (["fish", "--no-config", "-i"], "cat _gpudoctor | source"),
}
# the command itself only prints the words that it gets
SHOW = {"fish": "function gpudoctor; printf '<%s>' $argv; echo; end"}
SHOW_WORDS = "gpudoctor() { printf '<%s>' \"$@\"; echo; }"


class Terminal:
    """An interactive shell on its own terminal."""

    def __init__(self, loading: str, folder: Path) -> None:
        argv, load = LOADING[loading]
        self._own, its = pty.openpty()
        environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb", "LC_ALL": "C.UTF-8"}
        self._shell = subprocess.Popen(
            ["setsid", "--ctty", *argv], stdin=its, stdout=its, stderr=its, cwd=folder, env=environ
        )
        os.close(its)
        self._load = f"{SHOW.get(argv[0], SHOW_WORDS)}\n{load}; echo loa''ded\n"

    def load(self) -> None:
        self.type(self._load)
        self.read_until("loaded\r\n")

    def type(self, text: str) -> None:
        os.write(self._own, text.encode())

    def read_until(self, text: str, limit_s: float = 30) -> str:
        shown, end = b"", time.monotonic() + limit_s
        while text.encode() not in shown:
            ready, _, _ = select.select([self._own], [], [], end - time.monotonic())
            assert ready, f"no {text!r} in what the shell showed: {shown.decode(errors='replace')!r}"
            shown += os.read(self._own, 65536)
        return shown.decode(errors="replace")

    def close(self) -> None:
        os.close(self._own)
        self._shell.kill()
        self._shell.wait()


@pytest.fixture(params=[pytest.param(name, marks=needs(name.split()[0])) for name in LOADING])
@fixture_needs("setsid")
def terminal(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    shell = request.param.partition(" ")[0]
    assert main(["completion", shell]) == 0
    (tmp_path / "_gpudoctor").write_text(capsys.readouterr().out)
    (tmp_path / "saved-facts.json").touch()
    opened = Terminal(request.param, tmp_path)
    try:
        opened.load()
        yield opened
    finally:
        opened.close()


TYPED = {
    "gpudoctor expl\tpcie.link-w\t": "<explain><pcie.link-width>",
    "gpudoctor check --node hgx-h200\t--level qu\t": "<check><--node><hgx-h200-8><--level><quick>",
    "gpudoctor check --fault fabric-not-s\t": "<check><--fault><fabric-not-started>",
    "gpudoctor check --node saved-f\t": "<check><--node><saved-facts.json>",
    "gpudoctor cluster rep\t--exclude-e\t": "<cluster><report><--exclude-expr>",
    "gpudoctor check --profile hgx-h800\t": "<check><--profile><hgx-h800-8>",
}


@pytest.mark.wide(but=["bash"])
def test_tab_completes_commands_options_names_and_files(terminal: Terminal) -> None:
    for typed, words in TYPED.items():
        terminal.type(typed + "\n")
        terminal.read_until(words)


def test_no_command_but_this_one_imports_the_library_for_it() -> None:
    code = "import sys; from gpudoctor.cli.main import main; main(['list']); assert 'shtab' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
