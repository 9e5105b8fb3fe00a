"""The request for one plan."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.load.devices import Backend, LoadRequest
from gpudoctor.plan.precision import Optimizer, Precision


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `gpudoctor plan`, with their meaning; `model` is a size or the path of a config.json.

    `precision` None: what the GPUs support. `tensor` and `pipeline` None: chosen. `verify` runs a few steps of the
    plan; `backend`, `ranks` and `force` select the devices. Raises UserError if these are given without `verify`.
    """

    model: str
    nodes: int = 1
    gpu: str | None = None
    seq: int | None = None
    precision: Precision | None = None
    optimizer: Optimizer = "adamw"
    global_batch: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    explain: bool = False
    verify: bool = False
    backend: Backend | Literal["auto"] | None = None
    ranks: int | None = None
    force: bool = False
    report: Path | None = None
    config: Path | None = None

    def __post_init__(self) -> None:
        for option, given in (("--backend", self.backend), ("--ranks", self.ranks), ("--force", self.force or None)):
            if given is not None and not self.verify:
                raise UserError(f"{option} selects the devices of --try: add --try, or leave {option} out")

    @property
    def load(self) -> LoadRequest:
        """The devices to verify the plan on."""
        return LoadRequest(self.backend or "auto", self.gpu, self.ranks, force=self.force)
