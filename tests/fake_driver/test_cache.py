"""The cache of the fake driver on a shared machine: a library that another user could have put there never runs."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fake_driver.conftest import Run
from tests.needs import needs

WHERE = "import os; print(os.environ['LD_LIBRARY_PATH'].split(':')[0])"
STRANGER = 12345


def library_in(cache: Path) -> Path:
    [library] = cache.rglob("libnvidia-ml.so.1")
    return library


@pytest.fixture(scope="module")
def first_made(run: Run, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which the library was built."""
    folder = tmp_path_factory.mktemp("first") / "home" / "cache"
    assert run("t4-cloud-4", "true", env={"XDG_CACHE_HOME": str(folder)}).returncode == 0
    return folder


@pytest.fixture
def made(first_made: Path, tmp_path: Path) -> Path:
    """A cache that has the library, for this test alone."""
    return Path(shutil.copytree(first_made.parent, tmp_path / "home")) / "cache"


def test_every_level_that_is_made_is_the_users_alone(first_made: Path) -> None:
    made = first_made
    levels = [path for path in (made.parent, *made.parent.rglob("*")) if path.is_dir()]
    assert len(levels) == 5
    assert {stat.S_IMODE(level.stat().st_mode) for level in levels} == {0o700}
    assert library_in(made).stat().st_mode & 0o022 == 0


def own_link(library: Path) -> None:
    elsewhere = library.parent.parent / "elsewhere"
    library.rename(elsewhere)
    library.symlink_to(elsewhere)


OPENED: dict[str, Callable[[Path], None]] = {
    "the library, by everyone": lambda library: library.chmod(0o666),
    "its folder, by everyone": lambda library: library.parent.chmod(0o777),
    "its folder, by a group": lambda library: library.parent.chmod(0o775),
    "its folder, as /tmp is": lambda library: library.parent.chmod(0o1777),
    "a folder above": lambda library: library.parents[3].chmod(0o777),
    "a link in its place": own_link,
}
if os.geteuid() == 0:
    OPENED |= {
        "the library, of a stranger": lambda library: os.chown(library, STRANGER, -1),
        "its folder, of a stranger": lambda library: os.chown(library.parent, STRANGER, -1),
        "a folder above, of a stranger": lambda library: os.chown(library.parents[3], STRANGER, -1),
    }


@pytest.mark.wide(every=9)
@pytest.mark.parametrize("how", OPENED)
def test_a_library_that_others_could_have_put_there_is_built_anew_and_said(how: str, made: Path, run: Run) -> None:
    OPENED[how](library_in(made))
    done = run("t4-cloud-4", sys.executable, "-c", WHERE, env={"XDG_CACHE_HOME": str(made)})
    assert done.returncode == 0
    assert not done.stdout.startswith(str(made))
    assert f"built anew, not taken from {made}" in done.stderr


@needs("root")
def test_a_link_that_a_stranger_laid_on_the_way_is_not_followed(made: Path, run: Run, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(made)
    assert run("t4-cloud-4", sys.executable, "-c", WHERE, env={"XDG_CACHE_HOME": str(link)}).stdout.startswith(
        str(link)
    ), "one's own is"
    os.chown(link, STRANGER, -1, follow_symlinks=False)
    done = run("t4-cloud-4", sys.executable, "-c", WHERE, env={"XDG_CACHE_HOME": str(link)})
    assert not done.stdout.startswith(str(link))
    assert f"{link} is a link that another user made (uid {STRANGER})" in done.stderr


@pytest.mark.wide
def test_a_cache_below_a_folder_as_tmp_is_used(run: Run, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    done = run("t4-cloud-4", sys.executable, "-c", WHERE, env={"XDG_CACHE_HOME": str(shared / "mine")})
    assert done.stdout.startswith(str(shared))
