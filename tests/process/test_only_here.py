"""Only gpudoctor/process starts, talks to and ends processes: a second copy of that would be a second set of faults."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "gpudoctor"
OF_OS = {
    *("fork", "forkpty", "kill", "killpg", "wait", "waitpid", "waitid", "wait3", "wait4", "setsid", "setpgid"),
    *("posix_spawn", "posix_spawnp", "system", "popen", "pidfd_open", "_exit", "write", "memfd_create"),
    *("execl", "execle", "execlp", "execv", "execve", "execvp", "execvpe", "waitstatus_to_exitcode"),
}
OF_ANY = {"Popen", "prctl", "create_subprocess_exec", "create_subprocess_shell", "subprocess_exec", "subprocess_shell"}


def found_in(path: Path) -> set[str]:
    """What starts, talks to or ends a process in this file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            found |= {f"os.{node.attr}"} if node.attr in OF_OS else set()
        if isinstance(node, ast.Attribute) and node.attr in OF_ANY:
            found.add(node.attr)
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "subprocess", "asyncio", "asyncio.subprocess"):
            found |= {alias.name for alias in node.names if alias.name in OF_OS | OF_ANY}
    return found


@pytest.mark.wide
def test_nothing_outside_the_room_starts_talks_to_or_ends_a_process() -> None:
    elsewhere = {
        (str(path.relative_to(PACKAGE)), what)
        for path in PACKAGE.rglob("*.py")
        if path.parent != PACKAGE / "process"
        for what in found_in(path)
    }
    assert elsewhere == set()


def test_what_is_looked_for_is_found_where_it_is() -> None:
    inside = {what for path in (PACKAGE / "process").glob("*.py") for what in found_in(path)}
    assert inside >= {"Popen", "prctl", "os.fork", "os.kill", "os.killpg", "os.waitpid", "os.write", "os._exit"}
