"""A verdict that the health check left for prologs: when it is trusted, and what takes that away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpudoctor.slurm import kept_verdict
from gpudoctor.slurm.quick_check import HookVerdict
from gpudoctor.slurm.settings import HookSettings
from tests.slurm.conftest import Node

_GPUS = ("0000:1b:00.0", "0000:2b:00.0")


class Machine:
    """A root with a boot, a driver, GPUs and a kernel log, and a verdict of it that was kept."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_s = 5000.0
        self.write("proc/sys/kernel/random/boot_id", "boot-1\n")
        self.write("proc/driver/nvidia/version", "NVRM version: 550.54\n")
        self.log(*_LOG)
        for bus in _GPUS:
            (root / "proc/driver/nvidia/gpus" / bus).mkdir(parents=True)
        self.settings: HookSettings = HookSettings(state=root / "state")
        self.settings.state.mkdir()

    def write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def log(self, *texts: str, first: int = 100) -> None:
        self.write("dev/kmsg", "".join(f"6,{first + i},1000,-;{text}\n" for i, text in enumerate(texts)))

    def remove(self, name: str) -> None:
        (self.root / name).unlink()

    def set(self, **changes: Any) -> None:
        self.settings = msgspec.structs.replace(self.settings, **changes)

    def damage(self, data: Callable[[bytes], bytes]) -> None:
        file = self.settings.state / "verdict.json"
        file.write_bytes(data(file.read_bytes()))

    def keep(self) -> None:
        before = kept_verdict.node_before(self.settings, self.root)
        kept_verdict.keep(self.settings, before, HookVerdict("pass", "PASS 33 of 51 checks"))

    def fresh(self) -> HookVerdict | None:
        return kept_verdict.fresh(self.settings, self.root)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    monkeypatch.setattr(kept_verdict, "since_boot_s", lambda: machine.now_s)
    # pytest's folders belong to us, in /tmp: a separate test covers folders that others could write in
    monkeypatch.setattr(kept_verdict, "why_replaceable", lambda path: None)
    machine.keep()
    return machine


def test_a_young_verdict_is_trusted_and_says_its_age(machine: Machine) -> None:
    machine.now_s += 330
    assert machine.fresh() == HookVerdict("pass", "PASS 33 of 51 checks (health check of 330 s ago)")


_LOG = ("usb 1-1: new device", "eth0: up")
_DOUBTS: dict[str, Callable[[Machine], object]] = {
    "older": lambda it: setattr(it, "now_s", it.now_s + 330.1),
    "from the future": lambda it: setattr(it, "now_s", it.now_s - 1),
    "another boot": lambda it: it.write("proc/sys/kernel/random/boot_id", "boot-2\n"),
    "another driver": lambda it: it.write("proc/driver/nvidia/version", "NVRM version: 560.35\n"),
    "driver gone": lambda it: it.remove("proc/driver/nvidia/version"),
    "GPU gone": lambda it: (it.root / "proc/driver/nvidia/gpus" / _GPUS[1]).rmdir(),
    "other thresholds": lambda it: it.write("etc/gpudoctor/config.yaml", "skip: [env]\n"),
    "other settings": lambda it: it.set(skip=("env",)),
    "no age allowed": lambda it: it.set(max_age_s=0),
    "Xid": lambda it: it.log(*_LOG, "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."),
    "AER": lambda it: it.log(*_LOG, "pcieport 0000:00:01.0: AER: Corrected error received"),
    "log overwritten": lambda it: it.log("eth0: up", "eth0: down", first=5000),
    "log of another kernel": lambda it: it.log("eth0: up", first=1),
    "log unreadable": lambda it: it.remove("dev/kmsg"),
    "file cut off": lambda it: it.damage(lambda data: data[:40]),
    "file not UTF-8": lambda it: it.damage(lambda data: data.replace(b"PASS", b"\xffASS")),
    "file nested too deep": lambda it: it.damage(lambda data: b'{"x": ' + b"[" * 9999),
    "file gone": lambda it: kept_verdict.forget(it.settings),
}


@pytest.mark.parametrize("doubt", _DOUBTS)
def test_any_doubt_is_a_look_at_the_node(machine: Machine, doubt: str) -> None:
    assert machine.fresh() is not None
    _DOUBTS[doubt](machine)
    assert machine.fresh() is None


def test_kernel_lines_of_others_are_no_doubt(machine: Machine) -> None:
    machine.log(*_LOG, "EXT4-fs (sda1): mounted filesystem")
    assert machine.fresh() is not None


def test_an_xid_before_the_check_began_was_judged_by_it(machine: Machine) -> None:
    machine.log("NVRM: Xid (PCI:0000:1b:00): 13", "eth0: up")
    machine.keep()
    assert machine.fresh() is not None


def test_what_another_user_could_have_written_is_not_trusted(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(kept_verdict, "since_boot_s", lambda: machine.now_s)
    assert machine.fresh() is not None
    machine.settings.state.chmod(0o777)
    assert machine.fresh() is None


@pytest.mark.parametrize("lacking", ["proc/driver/nvidia/version", "dev/kmsg"])
def test_where_driver_or_kernel_log_cannot_be_read_nothing_is_kept(machine: Machine, lacking: str) -> None:
    machine.remove(lacking)
    machine.keep()
    assert not (machine.settings.state / "verdict.json").exists()


def test_the_prolog_trusts_a_healthy_health_check_and_the_epilog_looks_itself(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    _read_no_kernel_log(node, monkeypatch)
    node.trial()
    node.run("health")
    assert "(health check of " in node.run("prolog").why
    assert "health check of" not in node.run("epilog").why
    node.trial("persistence-off")
    node.run("health")
    assert "(health check of " in node.run("prolog").why
    assert 'verdict="warn"' in node.state("gpudoctor_slurm_prolog.prom")


def test_a_failure_anywhere_takes_the_kept_verdict_away(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    _read_no_kernel_log(node, monkeypatch)
    node.settings["GPUDOCTOR_ACTION"] = "log"
    for hook in ("epilog", "health"):
        node.trial()
        node.run("health")
        assert node.state("verdict.json")
        node.trial("xid-79@3")
        node.run(hook)
        assert not node.state("verdict.json")


def _read_no_kernel_log(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's log need not be readable, and may grow."""
    monkeypatch.setattr(kept_verdict, "_kernel_records", lambda root: [(7, "eth0: up")])
