"""docs/add-a-check.md and docs/add-a-fact.md, followed word for word in a copy of the project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpudoctor.facts.model.node import Host
from tests.docs.followed_page import ROOT, FollowedPage, page, run

CHECK, FACT = page("add-a-check.md"), page("add-a-fact.md")
COMMANDS = [(each, argv) for each in (CHECK, FACT) for argv in each.commands()]
TRIED = {
    "host.example-uptime": ("found     up for 730 days", "    warn_days  365 days  warn\n"),
    "host.example-pid-max": ("found     1024 process ids", "    warn_ids  32768 process ids  warn\n"),
}


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The project with what each page adds, by the text of the page."""
    return {each.text: each.copy_to(tmp_path_factory.mktemp("clone")) for each in (CHECK, FACT)}


def test_a_check_takes_five_files_and_a_fact_with_its_check_and_fault_eight() -> None:
    assert (len(CHECK.names), len(FACT.names)) == (5, 8)
    assert len(CHECK.text.splitlines()) <= 120
    for name, anchor, _ in FACT.insertions:
        assert (ROOT / name).read_text(encoding="utf-8").count(f"{anchor}\n") == 1, anchor
    assert "example_pid_max" not in Host.__struct_fields__


@pytest.mark.wide
@pytest.mark.parametrize(
    ("followed", "argv"), [row for row in COMMANDS if row[1][:2] == ["gpudoctor", "check"]], ids=["check", "fact"]
)
def test_the_new_check_judges_as_the_page_says(
    copies: dict[str, Path], followed: FollowedPage, argv: list[str]
) -> None:
    copy, check = copies[followed.text], argv[2]
    found, limits = TRIED[check]
    checked, explained = run(copy, *argv), run(copy, "gpudoctor", "explain", check)
    assert checked.returncode == 0, checked.stderr
    assert f"WARN     {check}" in checked.stdout
    assert found in checked.stdout
    assert explained.stdout.startswith(f"{check}: ")
    assert limits in explained.stdout
    healthy = run(copy, "gpudoctor", "check", check, "--level", "quick", "--node", "hgx-h100-8", "--json")
    [result] = json.loads(healthy.stdout)["checks"]
    assert (result["id"], result["status"]) == (check, "pass")


@pytest.mark.wide
@pytest.mark.parametrize(
    ("followed", "argv"), [row for row in COMMANDS if row[1][0] == "pytest"], ids=lambda value: str(value[1])[-30:]
)
def test_no_test_asks_for_more_than_these_files(
    copies: dict[str, Path], followed: FollowedPage, argv: list[str]
) -> None:
    done = run(copies[followed.text], *argv, "-q", "-x", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout or "[100%]" in done.stdout


@pytest.mark.wide
@pytest.mark.parametrize("followed", [CHECK, FACT], ids=["check", "fact"])
def test_the_code_of_the_page_has_the_projects_style(copies: dict[str, Path], followed: FollowedPage) -> None:
    files = sorted(name for name in followed.names if name.endswith(".py"))
    for check in (("check",), ("format", "--check")):
        done = run(copies[followed.text], "ruff", *check, *files)
        assert done.returncode == 0, done.stdout + done.stderr
