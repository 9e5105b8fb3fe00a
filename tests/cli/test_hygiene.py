"""What a quick check may import: a short start-up is part of the promise."""

from __future__ import annotations

import ast
import builtins
import sys
import threading
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import gpudoctor
from gpudoctor.lazy import lazy_imports
from tests.subprocesses import completed

HEAVY = ("torch", "textual", "rich", "numpy", "psutil", "pynvml", "defusedxml", "asyncio", "multiprocessing")
# 2 to 3 ms each: argparse imports the first for the width of help texts, a burn needs the second
SLOW = ("shutil", "gpudoctor.facts.kernel_log.records")


def modules_after(*argv: str) -> set[str]:
    """The modules loaded in a fresh interpreter once the command has run."""
    run = f"from gpudoctor.cli.main import main; main({list(argv)!r})"
    code = f"import sys; {run}; print('\\n'.join(sys.modules), file=sys.stderr)"
    done = completed([sys.executable, "-c", code], check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "argv",
    [
        ("check", "--level", "quick", "--json", "--node", "hgx-h100-8"),
        ("check", "--level", "quick", "--format", "nagios", "--node", "hgx-h100-8"),
        ("list", "--json"),
    ],
)
def test_no_heavy_module_is_loaded(argv: tuple[str, ...]) -> None:
    loaded = modules_after(*argv)
    assert "gpudoctor.checks.pcie.link_width" in loaded
    assert [name for name in (*HEAVY, *SLOW) if name in loaded] == []


def test_a_live_quick_check_does_without_pathlib_and_what_that_needs_for_urls() -> None:
    loaded = modules_after("check", "--level", "quick", "--json")
    assert "gpudoctor.facts.system.host" in loaded
    assert not {"pathlib", "urllib.parse", "ipaddress"} & loaded


def test_the_text_report_loads_rich_but_neither_textual_nor_torch() -> None:
    loaded = modules_after("check", "--level", "quick", "--node", "hgx-h100-8")
    assert "rich" in loaded
    assert not {"textual", "torch", "pynvml"} & loaded


OPTIONS = """
import argparse, sys
from gpudoctor.cli.command_table import COMMANDS, module_of
for name in COMMANDS:
    module_of(name).add_options(argparse.ArgumentParser())
print(*sys.modules)
"""
ROOMS = (
    "plan.",
    "cluster.fleet",
    "cluster.baseline",
    "cluster.check.",
    "agent.",
    "tui",
    "testing",
    "checks",
    "report",
    "api",
)


def test_the_options_of_all_commands_are_known_without_importing_what_does_the_work() -> None:
    done = completed([sys.executable, "-c", OPTIONS], check=True)
    loaded = set(done.stdout.split())
    assert "gpudoctor.cli.commands.plan" in loaded
    rooms = tuple(f"gpudoctor.{room}" for room in ROOMS)
    assert sorted(name for name in loaded if name.startswith(rooms)) == []


def test_a_check_imports_the_file_of_no_other_command() -> None:
    loaded = modules_after("check", "--node", "hgx-h100-8", "--level", "quick")
    names = ("main", "command_table", "guarded", "parsing", "options", "commands", "commands.check")
    assert {name for name in loaded if name.startswith("gpudoctor.cli.")} == {f"gpudoctor.cli.{name}" for name in names}


def test_a_live_check_leaves_the_driver_binding_to_its_child() -> None:
    loaded = modules_after("check", "--level", "quick", "--json")
    assert not {"pynvml", "torch"} & loaded


def test_a_lazy_module_is_imported_when_a_name_of_it_is_read() -> None:
    code = (
        "import sys\nfrom gpudoctor.lazy import lazy_imports\n"
        "with lazy_imports():\n    import wave\n    from email import charset as sets\n"
        "assert not {'wave', 'email.charset'} & set(sys.modules)\nimport cmd\nassert 'cmd' in sys.modules\n"
        "print(wave.open.__module__, sets.Charset.__module__, wave is sys.modules['wave'])"
    )
    done = completed([sys.executable, "-c", code], check=True)
    assert done.stdout.split() == ["wave", "email.charset", "False"]


def test_a_lazy_module_that_another_thread_is_importing_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slowly_imported.py").write_text("import gate\ngate.begun.set()\ngate.goes_on.wait(60)\nname = 1\n")
    gate = ModuleType("gate")
    begun, goes_on = threading.Event(), threading.Event()
    gate.begun, gate.goes_on = begun, goes_on  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gate", gate)
    monkeypatch.syspath_prepend(tmp_path)
    with lazy_imports():
        import slowly_imported  # type: ignore[import-not-found]
    first = threading.Thread(target=lambda: slowly_imported.name, daemon=True)
    opens = threading.Timer(0.1, goes_on.set)
    first.start()
    assert begun.wait(60)
    opens.start()
    try:
        assert slowly_imported.name == 1
    finally:
        goes_on.set()
        first.join()
        opens.join()
        sys.modules.pop("slowly_imported", None)


@pytest.mark.parametrize("line", ["import email.charset", "import email.charset as sets", "from . import checks"])
def test_what_would_name_another_module_is_no_lazy_import(line: str) -> None:
    code = f"from gpudoctor.lazy import lazy_imports\nwith lazy_imports():\n    {line}\n"
    eager = builtins.__import__
    with pytest.raises(ImportError, match="from package import module"):
        exec(code, {"__name__": "gpudoctor.any", "__package__": "gpudoctor"})
    assert builtins.__import__ is eager


@cache
def parsed() -> dict[Path, ast.Module]:
    """Every module of the package."""
    return {path: ast.parse(path.read_text()) for path in Path(gpudoctor.__file__).parent.rglob("*.py")}


@pytest.mark.wide
def test_each_lazy_import_names_a_module() -> None:
    """An import inside a function or a class would only fail when it is called."""
    named = []
    for path, module in parsed().items():
        if "lazy_imports" not in path.read_text():
            continue
        for block in ast.walk(module):
            if isinstance(block, ast.With) and ast.unparse(block.items[0]) == "lazy_imports()":
                for each in block.body:
                    assert isinstance(each, ast.Import | ast.ImportFrom), f"{path}:{each.lineno}"
                    package = f"{each.module}." if isinstance(each, ast.ImportFrom) else ""
                    named += [f"{package}{alias.name}" for alias in each.names]
    assert "gpudoctor.facts.collect" in named
    assert [name for name in named if find_spec(name) is None] == []


@pytest.mark.wide
def test_no_import_follows_those_that_are_lazy_or_for_types_only() -> None:
    """ruff sorts the imports after such a block separately, and does not see a second import of one module there."""
    found = []
    for path, module in parsed().items():
        body = module.body
        blocks = [each.lineno for each in body if isinstance(each, ast.With | ast.If) and _only_imports(each.body)]
        imports = [each.lineno for each in body if isinstance(each, ast.Import | ast.ImportFrom)]
        found += [f"{path}:{line}" for line in imports if blocks and line > min(blocks)]
    assert found == []


def _only_imports(body: list[ast.stmt]) -> bool:
    return all(isinstance(each, ast.Import | ast.ImportFrom) for each in body)


@pytest.mark.wide
def test_imports_stand_at_the_top() -> None:
    """torch in rank processes, and what is there on some machines only, are the exceptions: some 85 of them."""
    inside = 0
    for module in parsed().values():
        functions = [each for each in ast.walk(module) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        found = {
            each
            for function in functions
            for each in ast.walk(function)
            if isinstance(each, ast.Import | ast.ImportFrom)
        }
        inside += len(found)
    assert inside <= 150
