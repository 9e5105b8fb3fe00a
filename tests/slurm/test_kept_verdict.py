"""A verdict that the health check left for prologs: when it is trusted, and what takes that away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpudoctor.slurm import kept_verdict
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
        self.log("usb 1-1: new device", "eth0: up")
        for bus in _GPUS:
            (root / "proc/driver/nvidia/gpus" / bus).mkdir(parents=True)
        self.settings = HookSettings(state=root / "state")
        self.settings.state.mkdir()

    def write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def log(self, *texts: str, first: int = 100) -> None:
        self.write("dev/kmsg", "".join(f"6,{first + i},1000,-;{text}\n" for i, text in enumerate(texts)))

    def keep(self) -> None:
        about, mark = kept_verdict.identity(self.settings, self.root), kept_verdict.kernel_mark(self.root)
        kept_verdict.keep(self.settings, about, mark, self.now_s, "pass", "PASS 33 of 51 checks")

    def fresh(self) -> kept_verdict.FreshVerdict | None:
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
    assert machine.fresh() == kept_verdict.FreshVerdict("pass", "PASS 33 of 51 checks", 330.0)


def _older(machine: Machine) -> None:
    machine.now_s += 330.1


def _from_the_future(machine: Machine) -> None:
    machine.now_s -= 1


def _another_boot(machine: Machine) -> None:
    machine.write("proc/sys/kernel/random/boot_id", "boot-2\n")


def _another_driver(machine: Machine) -> None:
    machine.write("proc/driver/nvidia/version", "NVRM version: 560.35\n")


def _driver_gone(machine: Machine) -> None:
    (machine.root / "proc/driver/nvidia/version").unlink()


def _gpu_gone(machine: Machine) -> None:
    (machine.root / "proc/driver/nvidia/gpus" / _GPUS[1]).rmdir()


def _other_thresholds(machine: Machine) -> None:
    machine.write("etc/gpudoctor/config.yaml", "skip: [env]\n")


def _other_settings(machine: Machine) -> None:
    machine.settings = HookSettings(state=machine.settings.state, skip=("env",))


def _no_age_allowed(machine: Machine) -> None:
    machine.settings = HookSettings(state=machine.settings.state, max_age_s=0)


def _xid(machine: Machine) -> None:
    machine.log("usb 1-1: new device", "eth0: up", "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.")


def _aer(machine: Machine) -> None:
    machine.log("usb 1-1: new device", "eth0: up", "pcieport 0000:00:01.0: AER: Corrected error received")


def _log_overwritten(machine: Machine) -> None:
    machine.log("eth0: up", "eth0: down", first=5000)


def _log_of_another_kernel(machine: Machine) -> None:
    machine.log("eth0: up", first=1)


def _log_unreadable(machine: Machine) -> None:
    (machine.root / "dev/kmsg").unlink()


def _file_cut_off(machine: Machine) -> None:
    file = machine.settings.state / "verdict.json"
    file.write_bytes(file.read_bytes()[:40])


def _file_not_utf_8(machine: Machine) -> None:
    file = machine.settings.state / "verdict.json"
    file.write_bytes(file.read_bytes().replace(b"PASS", b"\xffASS"))


def _file_nested_too_deep(machine: Machine) -> None:
    (machine.settings.state / "verdict.json").write_bytes(b'{"x": ' + b"[" * 9999)


def _file_gone(machine: Machine) -> None:
    kept_verdict.forget(machine.settings)


_DOUBTS: tuple[Callable[[Machine], None], ...] = (
    _older,
    _from_the_future,
    _another_boot,
    _another_driver,
    _driver_gone,
    _gpu_gone,
    _other_thresholds,
    _other_settings,
    _no_age_allowed,
    _xid,
    _aer,
    _log_overwritten,
    _log_of_another_kernel,
    _log_unreadable,
    _file_cut_off,
    _file_not_utf_8,
    _file_nested_too_deep,
    _file_gone,
)


@pytest.mark.parametrize("change", _DOUBTS)
def test_any_doubt_is_a_look_at_the_node(machine: Machine, change: Callable[[Machine], None]) -> None:
    assert machine.fresh() is not None
    change(machine)
    assert machine.fresh() is None


def test_kernel_lines_of_others_are_no_doubt(machine: Machine) -> None:
    machine.log("usb 1-1: new device", "eth0: up", "EXT4-fs (sda1): mounted filesystem")
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


@pytest.mark.parametrize("about_driver", [True, False])
def test_where_driver_or_kernel_log_cannot_be_read_nothing_is_kept(machine: Machine, about_driver: bool) -> None:
    (_driver_gone if about_driver else _log_unreadable)(machine)
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
