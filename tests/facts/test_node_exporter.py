"""Which folders a running node_exporter reads, by its arguments and by what its package built in."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudoctor.facts.system import services
from gpudoctor.facts.system.services import NodeExporter, read_node_exporters, textfile_folders
from gpudoctor.report.prometheus import why_not_read
from tests.sysfs_tree import write

DEBIAN = "/var/lib/prometheus/node-exporter"
DIRECTORY = "--collector.textfile.directory"


def process(root: Path, pid: int, comm: str, *arguments: str, cgroup: str = "0::/system.slice/x.service") -> None:
    cmdline = "".join(f"{each}\0" for each in arguments).encode()
    write(root, {f"/proc/{pid}/comm": comm, f"/proc/{pid}/cgroup": cgroup, f"/proc/{pid}/cmdline": cmdline})


@pytest.mark.parametrize(
    ("arguments", "folders"),
    [
        ([], (DEBIAN,)),
        (["--web.listen-address=:9100", f"{DIRECTORY}=/a"], ("/a",)),
        ([DIRECTORY, "/a", "--collector.systemd"], ("/a",)),
        ([f"{DIRECTORY}=/a", f"{DIRECTORY}=/b/*"], ("/a", "/b/*")),
        (["--no-collector.textfile"], ()),
        (["--collector.disable-defaults", f"{DIRECTORY}=/a"], ()),
        (["--collector.disable-defaults", "--collector.textfile", f"{DIRECTORY}=/a"], ("/a",)),
    ],
)
def test_the_arguments_say_which_folders_are_read(arguments: list[str], folders: tuple[str, ...]) -> None:
    assert textfile_folders(arguments, DEBIAN) == folders


def test_the_exporters_of_the_machine_are_found_and_those_of_containers_are_not(tmp_path: Path) -> None:
    process(tmp_path, 7, "node_exporter", "/opt/node_exporter", f"{DIRECTORY}=/a")
    process(tmp_path, 8, "node_exporter", "node_exporter")
    process(tmp_path, 9, "prometheus-node", "/usr/bin/prometheus-node-exporter")
    process(tmp_path, 10, "python3", "python3", "node_exporter", f"{DIRECTORY}=/never")
    process(tmp_path, 11, "node_exporter", "x", f"{DIRECTORY}=/host", cgroup="0::/kubepods.slice/pod1")
    process(tmp_path, 12, "node_exporter", "x", f"{DIRECTORY}=relative")
    (tmp_path / "proc" / "13").mkdir()  # it has ended
    (tmp_path / "proc" / "meminfo").touch()
    found = {each.pid: each.folders for each in read_node_exporters(tmp_path)}
    assert found == {7: ("/a",), 8: (), 9: (DEBIAN,)}


def test_the_arguments_of_other_processes_are_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel blocks readers of its files while that process hangs in a driver."""
    process(tmp_path, 10, "python3", "python3")
    process(tmp_path, 11, "node_exporter", "node_exporter")
    read: list[str] = []

    def noted(path: Path, max_bytes: int = 0) -> str:
        read.append(f"{path.parent.name}/{path.name}")
        return ""

    monkeypatch.setattr(services, "read_text", noted)
    read_node_exporters(tmp_path)
    assert read == ["11/cgroup", "11/cmdline"]


@pytest.mark.parametrize(
    ("folders", "name", "words"),
    [
        (None, "g.prom", None),
        (("there",), "g.prom", None),
        (("elsewhere", "there"), "g.prom", None),
        (("th?re",), "g.prom", None),
        (("link",), "g.prom", None),
        (("elsewhere",), "g.prom", "/elsewhere: it does not see"),
        (("",), "g.prom", "it does not see"),  # its parent: no folder below is read
        ((), "g.prom", "reads no folder: start it with --collector.textfile.directory="),
        (("there",), "g.txt", "files that end in .prom"),
    ],
)
def test_a_file_that_no_exporter_sees_is_told(
    tmp_path: Path, folders: tuple[str, ...] | None, name: str, words: str | None
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    read = None if folders is None else tuple(f"{tmp_path}/{folder}" for folder in folders)
    why = why_not_read(tmp_path / "there" / name, () if read is None else (NodeExporter(7, read),))
    assert (why is None) is (words is None)
    assert words is None or (words in (why or "") and str(tmp_path / "there" / name) in (why or ""))
