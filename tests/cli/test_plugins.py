"""Checks of other packages are found, and a broken one is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.subprocesses import completed

PLUGIN = """
from gpudoctor.checks.core.finding import ok
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.registry import check


@check("site.motd", title="The operator has left no message", needs_gpu=False, page="# site.motd: ours\\n")
def motd(case):
    yield ok(NODE, "no message")
"""

LIMITED = """
from gpudoctor.checks.core.case import Limit
from gpudoctor.checks.core.finding import ok
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.registry import check

ROOM = Limit(20, "GiB", "ours", name="room_gib")


@check("site.scratch", title="Scratch has room", needs_gpu=False, limits=(ROOM,), page="# site.scratch: ours\\n")
def scratch(case):
    room, source = case.limit(ROOM), case.limit_source(ROOM)
    yield ok(NODE, f"at least {room:g} GiB: {source}")
"""

SLOW = """
from gpudoctor.checks.core.finding import warn
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.core.registry import check


@check("site.fan", title="Every fan turns", impact="slow-gpu", page="# site.fan: ours\\n")
def fan(case):
    yield warn(of_gpu(case.gpus[2]), "its fan stands still", "it turns")
"""


def install(folder: Path, code: str) -> dict[str, str]:
    """Install a distribution with one plugin on a path Python searches; return the environment for that."""
    (folder / "site_checks.py").write_text(code)
    info = folder / "site_checks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: site-checks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gpudoctor.checks]\nsite = site_checks\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


def gpudoctor(environ: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    return completed([sys.executable, "-m", "gpudoctor", *argv], env=environ)


def test_a_plugins_check_is_listed_run_and_explained(tmp_path: Path) -> None:
    environ = install(tmp_path, PLUGIN)
    assert "site.motd" in gpudoctor(environ, "list").stdout
    done = gpudoctor(environ, "check", "site", "--node", "hgx-h100-8", "--level", "quick")
    assert done.returncode == 0
    assert "site" in done.stdout
    assert gpudoctor(environ, "explain", "site.motd").stdout.startswith("site.motd: ours")


@pytest.mark.wide
def test_a_plugins_limit_is_read_and_configured(tmp_path: Path) -> None:
    environ = install(tmp_path, LIMITED)
    run = ("check", "site", "--node", "hgx-h100-8", "--level", "quick", "--verbose")
    assert "at least 20 GiB: ours" in gpudoctor(environ, *run).stdout
    (tmp_path / "mine.yaml").write_text("thresholds:\n  site.scratch:\n    room_gib: 40\n")
    done = gpudoctor(environ, *run, "--config", str(tmp_path / "mine.yaml"))
    assert "at least 40 GiB: configuration" in done.stdout
    assert "room_gib" in gpudoctor(environ, "explain", "site.scratch").stdout


@pytest.mark.wide
def test_a_plan_says_what_a_plugins_warning_means_for_a_training(tmp_path: Path) -> None:
    run = ("plan", "7b", "--node", "hgx-h100-8")
    said = " ".join(gpudoctor(install(tmp_path, SLOW), *run).stdout.split())
    assert "its fan stands still (site.fan)" in said
    assert "leave it out (--gpu 0-1,3-7), or expect every step to wait for GPU 2" in said


def test_a_plugin_that_cannot_be_loaded_ends_the_run_with_its_name(tmp_path: Path) -> None:
    environ = install(tmp_path, "import no_such_module_anywhere\n")
    done = gpudoctor(environ, "check", "--node", "hgx-h100-8", "--level", "quick", "--json")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "site_checks" in done.stderr


@pytest.mark.parametrize(("taken", "argv"), [("gpu.ecc", "list"), ("train.sync", "check train --level quick")])
def test_a_plugin_may_not_take_the_id_of_another_check(tmp_path: Path, taken: str, argv: str) -> None:
    environ = install(tmp_path, PLUGIN.replace("site.motd", taken))
    done = gpudoctor(environ, *argv.split())
    assert done.returncode == 2
    assert "plugin site (site_checks) cannot be loaded" in done.stderr
    assert taken in done.stderr


def test_what_a_plugin_does_at_the_exit_is_done_after_a_live_check_too(tmp_path: Path) -> None:
    environ = install(tmp_path, PLUGIN + "\nimport atexit\natexit.register(print, 'my figures are sent')\n")
    environ.pop("PYTHONUNBUFFERED", None)
    done = gpudoctor(environ, "check", "site", "--level", "quick")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "my figures are sent")
