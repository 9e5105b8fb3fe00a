"""Ids are a promise: they only ever grow."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gpudoctor.checks.core import registry as registry_module
from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Finding, Status, fail, ok
from gpudoctor.checks.core.registry import DOMAINS, Check, DuplicateCheckError, check, registry, select
from gpudoctor.checks.core.runner import run_checks
from gpudoctor.checks.core.subject import NODE
from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.load import load_node
from tests.golden_files import ACCEPT

GOLDEN = Path(__file__).parent.parent / "golden" / "check_ids.txt"


def test_every_id_that_was_ever_promised_exists_with_its_level() -> None:
    there = [f"{c.id} {c.level}" for c in registry()]
    if ACCEPT:
        GOLDEN.write_text("\n".join(dict.fromkeys([*there, *GOLDEN.read_text().splitlines()])) + "\n")
    promised = GOLDEN.read_text().splitlines()
    assert len(promised) >= 61
    assert [line for line in there if line in promised] == promised


def test_domains_come_in_the_order_a_reader_wants_them() -> None:
    domains = list(dict.fromkeys(c.domain for c in registry()))
    assert domains == [d for d in DOMAINS if d in domains]


def test_files_that_editors_and_archives_lay_beside_a_check_are_no_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real.py").touch()
    (tmp_path / "page.md").touch()
    (tmp_path / ".#real.py").symlink_to("user@host.1")  # an editor's lock
    (tmp_path / "._real.py").touch()  # extra files that tar of macOS packs
    imported: list[str] = []

    def note(name: str) -> ModuleType:
        imported.append(name)
        folder = ModuleType(name)
        folder.__path__ = [str(tmp_path)]
        return folder

    monkeypatch.setattr(registry_module, "import_module", note)
    monkeypatch.setattr(registry_module, "DOMAINS", ("gpu",))
    registry_module._import_builtin_checks.__wrapped__("full")
    assert imported == ["gpudoctor.checks.gpu", "gpudoctor.checks.gpu.real"]


def test_a_quick_run_lists_every_check_and_imports_none_above_its_level() -> None:
    told = "import sys; from gpudoctor.checks.core.registry import *; found = registry('quick'); "
    told += "print(*sys.modules); [print(c.id, c.level, c.title, sep='|') for c in found]"
    first, *listed = subprocess.run(
        [sys.executable, "-c", told], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert listed == [f"{each.id}|{each.level}|{each.title}" for each in registry()]
    modules = set(first.split())
    assert {f"gpudoctor.checks.{name}" for name in ("gpu.count", "env.nccl", "storage.mount", "train")} <= modules
    above = ("train.sync", "strategy.agreement", "env.torch", "storage.read", "measured.probe_outcome")
    assert not {f"gpudoctor.checks.{name}" for name in above} & modules


@pytest.mark.parametrize("taken", ["driver.loaded", "train.sync"])
def test_a_second_check_under_one_id_is_refused(taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registry()
    if taken == "train.sync":  # a quick run does not import it: a plugin's check would have its verdict
        monkeypatch.delitem(registry_module._checks, taken)
    with pytest.raises(DuplicateCheckError, match=taken):

        @check(taken, title="mine")
        def mine(case: Case) -> Iterator[Finding]:
            yield ok(NODE, "fine")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["gpu.ecc"], {"gpu.ecc"}),
        (["train"], {f"train.{name}" for name in ("sync", "balance", "memory", "scaling", "bucket", "utilization")}),
        (["*.link-*"], {"pcie.link-width", "pcie.link-speed"}),
    ],
)
def test_an_id_a_domain_and_a_glob_name_checks(words: list[str], expected: set[str]) -> None:
    assert {c.id for c in select(registry(), words)} == expected
    assert expected.isdisjoint(c.id for c in select(registry(), skipped=words))


@pytest.mark.parametrize(
    ("word", "nearest"), [("link-width", "pcie.link-width"), ("gpu.ec", "gpu.ecc"), ("hots", "host")]
)
def test_an_unknown_name_is_an_error_with_the_nearest_names(word: str, nearest: str) -> None:
    with pytest.raises(UserError, match=f"(?s){word}.*{nearest}"):
        select(registry(), [word])


@pytest.mark.parametrize("gpus", [0, 2])
def test_where_nothing_was_read_no_check_has_a_verdict(gpus: int) -> None:
    node = Node(gpus=tuple(Gpu(index, f"0000:1{index}:00.0") for index in range(gpus)))
    results = run_checks(Case(node=node), registry(), level="burn", clock=lambda: 0.0)
    # a GPU that said nothing may be lost
    expected = {check.id: "unknown" if check.id == "gpu.lost" and gpus else "skip" for check in registry()}
    assert {result.id: result.status.value for result in results} == expected


def test_a_check_that_crashes_is_unknown_and_costs_no_other() -> None:
    def broken(case: Case) -> Iterator[Finding]:
        yield ok(NODE, "so far so good")
        raise ZeroDivisionError("by zero")

    def fine(case: Case) -> Iterator[Finding]:
        yield ok(NODE, "fine")

    checks = [Check("x.broken", "", "quick", broken), Check("x.fine", "", "quick", fine)]
    first, second = run_checks(Case(node=load_node("hgx-h100-8")), checks, level="quick", clock=lambda: 0.0)
    assert first.status is Status.UNKNOWN
    assert first.findings[0].reason == "the check itself failed: ZeroDivisionError: by zero"
    assert second.status is Status.PASS


def test_a_failure_found_before_a_check_crashed_is_not_lost() -> None:
    def broken(case: Case) -> Iterator[Finding]:
        yield ok(NODE, "so far so good")
        yield fail(NODE, "a fault", "none")
        raise ZeroDivisionError("by zero")

    checks = [Check("x.broken", "", "quick", broken)]
    [result] = run_checks(Case(node=load_node("hgx-h100-8")), checks, level="quick", clock=lambda: 0.0)
    assert result.status is Status.FAIL
    assert [finding.status for finding in result.findings] == [Status.FAIL, Status.UNKNOWN]


def test_a_check_that_finds_nothing_to_say_and_one_above_the_level_are_skipped() -> None:
    def silent(case: Case) -> Iterator[Finding]:
        return iter(())

    checks = [Check("x.silent", "", "quick", silent), Check("x.deep", "", "full", silent)]
    first, second = run_checks(Case(node=load_node("hgx-h100-8")), checks, level="standard", clock=lambda: 0.0)
    assert first.status is second.status is Status.SKIP
    assert second.findings[0].reason == "runs at level full; asked for standard"


def test_a_check_that_asks_for_a_limit_of_another_is_unknown() -> None:
    """Its configured value would be looked for under the wrong check."""
    mine, others = Limit(1, "s", "ours", name="mine_s"), Limit(2, "s", "ours", name="others_s")

    def asks(case: Case) -> Iterator[Finding]:
        yield ok(NODE, f"{case.limit(mine)}")
        yield ok(NODE, f"{case.limit(others)}")

    checks = [Check("x.mine", "", "quick", asks, limits={"mine_s": mine})]
    [result] = run_checks(Case(node=load_node("hgx-h100-8")), checks, level="quick", clock=lambda: 0.0)
    assert [f.reason for f in result.findings] == ["the check itself failed: KeyError: 'others_s'"]


def test_every_check_is_timed() -> None:
    ticks = iter(range(1000))
    results = run_checks(Case(node=Node()), registry()[:3], level="quick", clock=lambda: float(next(ticks)))
    assert [r.duration_ms for r in results] == [1000.0, 1000.0, 1000.0]
