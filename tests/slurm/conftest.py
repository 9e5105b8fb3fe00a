"""A node `n1` of a partition of four, and a scontrol that only records its calls."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpudoctor.slurm import Hook
from gpudoctor.slurm.hooks import HookResult, run_hook, run_load
from tests.subprocesses import shell_program

SINCE = "[root@2026-11-21T12:00:00]"


@dataclass
class Node:
    """Node `n1` in Slurm's eyes and its hooks; `settings` are those of /etc/default/gpudoctor."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)

    def nodes(self, *records: tuple[str, str, str]) -> None:
        """(name, state, reason) of every node that scontrol knows."""
        lines = [
            f"NodeName={name} CoresPerSocket=1 Gres=gpu:h100:8 NodeAddr={name} State={state} ThreadsPerCore=1 "
            f"Partitions=main,all" + (f" Reason={reason} {SINCE}" if reason else "")
            for name, state, reason in records
        ]
        (self.folder / "nodes").write_text("\n".join(lines) + "\n")

    def node(self, state: str, reason: str = "") -> None:
        """`n1` alone."""
        self.nodes(("n1", state, reason))

    def healed(self, reason: str, **settings: str) -> None:
        """`n1` is drained for this reason, and healthy."""
        self.trial()
        self.node("IDLE+DRAIN", reason)
        self.settings |= settings

    def scontrol(self, script: str) -> None:
        """Run this instead of showing the nodes."""
        shell_program(self.folder / "scontrol", f'echo "$*" >> {self.folder}/calls\n{script}')

    def trial(self, *faults: str) -> None:
        """Let the hooks judge a simulated node with these faults."""
        self.settings["GPUDOCTOR_TRIAL"] = " ".join(("hgx-h100-8", *faults))

    def run(self, hook: Hook, **environ: str) -> HookResult:
        """Run a hook as slurmd does: a job with all eight GPUs."""
        return run_hook(
            hook, {"SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7", **self.settings, **environ}
        )

    def health_checks(self, times: int) -> None:
        for _ in range(times):
            self.run("health")

    def load(self) -> HookResult:
        """Run the check under load, as an administrator does."""
        return run_load({"SLURMD_NODENAME": "n1", **self.settings})

    def updates(self) -> list[str]:
        """The changes requested of scontrol."""
        return [call for call in self.calls() if call.startswith("update")]

    def calls(self) -> list[str]:
        """The queries to scontrol."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def state(self, name: str) -> str:
        """A file of the state folder; empty if there is none."""
        file = self.folder / "state" / name
        return file.read_text() if file.exists() else ""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(tmp_path, {"GPUDOCTOR_STATE": str(tmp_path / "state")})
    node.trial("xid-79@3")
    node.scontrol(f'if [ "$3" = show ]; then cat {shlex.quote(str(tmp_path))}/nodes; fi')
    node.node("IDLE")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return node
