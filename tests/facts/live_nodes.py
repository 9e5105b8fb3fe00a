"""The live machine for tests: a scripted driver behind the real collector process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpudoctor.facts.collect import collect_live
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.node import Node
from gpudoctor.testing.fake_nvml import Script, ScriptedFault, write_script

CALL_DEADLINE_S = 0.8


def collect(root: Path, node: Node, *faults: ScriptedFault, maker: str = "", **options: Any) -> Node:
    spec = write_script(root.parent / "script.json", Script(node, faults))
    if maker:
        spec = f"{maker}:{spec.rpartition(':')[2]}"
    options.setdefault("deadline_s", 20.0)
    options.setdefault("call_deadline_s", 10.0)
    return collect_live(root, nvml_module=spec, **options)


def as_read(gpu: Gpu) -> Gpu:
    """Without the bridges, which the driver does not report."""
    return replace(gpu, pcie=replace(gpu.pcie, path=Gpu(0, "").pcie.path))
