"""check, load_source, judge: what they return, and that a wrong argument raises one clear line."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import gpudoctor
from gpudoctor.cli import options
from gpudoctor.cli.commands import check as check_command
from gpudoctor.facts import collect
from tests.cli.conftest import Gpudoctor
from tests.cli.conftest import gpudoctor as command
from tests.subprocesses import completed

__all__ = ["command"]  # the fixture

untyped: Any = gpudoctor  # for arguments that a type checker would refuse
NODE, FAULT = "hgx-h100-8", "pcie-width-x8@5"


def test_a_fault_of_a_simulated_node_is_found() -> None:
    report = gpudoctor.check(node=NODE, faults=[FAULT], level="quick")
    assert (report.verdict, report.exit_code, report.simulated) == ("fail", 1, True)
    assert [fault.headline for fault in report.faults] == ["GPU 5 (0000:ab:00.0): PCIe Gen5 x8"]


def test_the_command_line_and_the_library_give_the_same_document(command: Gpudoctor) -> None:
    words = ("--node", NODE, "--fault", FAULT, "--level", "quick", "--gpu", "5,6", "--skip", "host")
    told = command("check", *words, "--require", "pcie.*", "--json", "--include-facts", "--redact").json
    asked: Any = {"faults": FAULT, "gpu": [5, 6], "skip": "host", "require": ["pcie.*"]}
    report = gpudoctor.check(node=NODE, level="quick", **asked, include_facts=True, redact=True)
    assert "\n" not in report.to_json()
    assert _untimed(json.loads(report.to_json())) == _untimed(told)


def _untimed(document: Any) -> Any:
    del document["run"]["id"], document["run"]["started_at"], document["run"]["duration_s"], document["run"]["argv"]
    for check in document["checks"]:
        del check["duration_ms"]
    return document


def test_every_option_of_the_command_line_has_its_keyword() -> None:
    """Those that say how a report is written have none."""
    from argparse import ArgumentParser
    from inspect import signature

    parser = ArgumentParser()
    check_command.add_options(parser)
    output = {"format", "output", "verbose", "color", "argv", "help"}
    names = {"duration": "duration_s"}
    options = {action.dest for action in parser._actions} - output
    assert {names.get(name, name) for name in options} == set(signature(gpudoctor.check).parameters)


@pytest.mark.wide
def test_a_saved_report_is_judged_again_with_its_measurements(tmp_path: Path) -> None:
    saved = tmp_path / "report.json"
    only = "collective.correct"
    first = gpudoctor.check(node=NODE, level="standard", backend="gloo", ranks=2, only=only, include_facts=True)
    saved.write_text(first.to_json())
    source = gpudoctor.load_source(saved)
    again = gpudoctor.judge(source.node, source.measurements, only=[only], level="standard")
    assert [(c.id, c.status) for c in again.checks] == [(c.id, c.status) for c in first.checks]
    assert again.verdict == "pass"


def test_what_was_not_measured_is_no_pass() -> None:
    report = gpudoctor.judge(gpudoctor.load_node(NODE), only=["collective", "train"], level="standard")
    assert report.verdict == "unknown"
    assert {check.status.value for check in report.checks} == {"skip"}
    assert "judged without measurements" in report.to_json()


def test_a_node_can_be_changed_and_judged() -> None:
    node = gpudoctor.load_node(NODE)
    hot = msgspec.structs.replace(node, driver=msgspec.structs.replace(node.driver, module_loaded=False, init_code=9))
    assert gpudoctor.judge(node, level="quick").verdict == "pass"
    assert gpudoctor.judge(hot, level="quick").verdict == "fail"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: untyped.check(node="hgx-h100-9"), "hgx-h100-9: no such file, and no simulated node of that name"),
        (
            lambda: untyped.check(node=NODE, level="quik"),
            "level 'quik': one of quick, standard, full, burn is wanted",
        ),
        (lambda: untyped.check(node=NODE, backend="mpi"), "backend 'mpi': one of auto, nccl, gloo is wanted"),
        (lambda: untyped.check(node=NODE, fail_on="all"), "fail_on 'all': one of fail, warn, never is wanted"),
        (lambda: untyped.check(node=NODE, faults="pcie-x8"), "no fault is called 'pcie-x8'"),
        (lambda: untyped.check(faults=[FAULT]), "--fault is for simulated nodes"),
        (lambda: untyped.check(node=NODE, only=["pcei"]), "no check is called 'pcei'; did you mean pcie"),
        (lambda: untyped.check(node=NODE, only=["pcie,gpu"]), "'pcie,gpu'; blanks part the names of checks"),
        (lambda: untyped.check(node="ssh:gpu17"), "here: ssh gpu17 gpudoctor facts | gpudoctor check --node -"),
        (lambda: untyped.check(only=["smi-q.txt"]), "no check is called 'smi-q.txt'; to judge a text"),
        (lambda: untyped.check(only=[NODE]), f"simulated node: --node {NODE}"),
        (lambda: untyped.check(node=NODE, skip=[3]), "skip 3: text is wanted"),
        (lambda: untyped.check(node=NODE, gpu=9), "9"),
        (lambda: untyped.check(node=NODE, ranks=0), "ranks 0: a number from 1 to 64 is wanted"),
        (lambda: untyped.check(node=NODE, deadline_s=-1), "deadline_s -1: seconds above 0"),
        (lambda: untyped.check(node=NODE, level="burn", duration_s=float("nan")), "--duration 'nan'"),
        (lambda: untyped.check(node=NODE, config="/no/such.yaml"), "/no/such.yaml"),
        (lambda: untyped.judge(gpudoctor.load_node(NODE), profile="no-such"), "no-such"),
        (lambda: untyped.load_node("/no/such/file"), "/no/such/file: no such file or directory"),
        (lambda: untyped.preflight("fast"), "level 'fast': one of quick"),
    ],
)
def test_a_wrong_argument_is_one_line_that_names_it(call: Callable[[], object], says: str) -> None:
    with pytest.raises(gpudoctor.UserError) as error:
        call()
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_nothing_is_printed_and_no_signal_handler_is_set(capfd: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    gpudoctor.check(level="quick")
    gpudoctor.check(node=NODE, faults=[FAULT], level="quick")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_passes_to_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(collect, "_read_host", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpudoctor.check(level="quick")


def test_to_import_it_imports_nothing_else() -> None:
    program = "import sys; had = set(sys.modules); import gpudoctor; print(*sorted(set(sys.modules) - had))"
    check = f"import gpudoctor, sys; gpudoctor.check(node={NODE!r}, level='quick'); print(*sys.modules)"
    assert _printed(program) == ["gpudoctor"]
    assert not {"argparse", "torch", "textual", "rich", "pynvml"} & set(_printed(check))


def test_every_public_name_is_there_and_none_is_a_module() -> None:
    assert set(gpudoctor.__all__) <= set(dir(gpudoctor))
    assert "module" not in {type(getattr(gpudoctor, name)).__name__ for name in gpudoctor.__all__}
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        _ = untyped.chekc
    assert (Path(gpudoctor.__file__).parent / "py.typed").is_file()


def test_the_levels_are_the_command_lines() -> None:
    from gpudoctor.checks.core.registry import Level

    assert get_args(Level) == options.LEVELS


def _printed(program: str) -> list[str]:
    run = completed([sys.executable, "-c", program], check=True)
    return run.stdout.split()


def test_a_report_is_readable_where_it_is_printed() -> None:
    report = gpudoctor.check(node="hgx-h100-8", faults="pcie-width-x8@5", level="quick")
    lines = str(report).splitlines()
    assert lines[0].startswith("SIMULATED node hgx-h100-8 with pcie-width-x8@5")
    assert "  pcie.link-width: GPU 5 (0000:ab:00.0): PCIe Gen5 x8" in lines
    assert lines[-1] == report.reason
    assert report._repr_html_().startswith("<pre>SIMULATED node")
