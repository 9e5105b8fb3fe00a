"""The case before a check: facts, measurements, expectations and limits. Nothing to read."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpudoctor.facts.gpu import Gpu, GpuPair
from gpudoctor.facts.measurements import Measurements
from gpudoctor.facts.missing import Missing, known
from gpudoctor.facts.node import Node
from gpudoctor.profiles.peers import compute_gpus
from gpudoctor.profiles.profile import NO_PROFILE, Profile


class Limit(msgspec.Struct, frozen=True):
    """A threshold: its default, unit, and where the number comes from."""

    value: float
    unit: str
    source: str


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the operator's configuration says this node must have. None: not said."""

    gpus: int | None = None
    gpu_name: str | None = None


class Case(msgspec.Struct, frozen=True):
    """Everything a check may look at.

    `scope` holds the NVML indices judged and `scope_reason` why they are not all;
    `limit_overrides` maps (check id, limit name, GPU name pattern or "") to a configured number.
    """

    node: Node
    measurements: Measurements = Measurements()
    profile: Profile = NO_PROFILE
    scope: tuple[int, ...] | None = None
    scope_reason: str | None = None
    expect: Expect = Expect()
    limits: Mapping[str, Mapping[str, Limit]] = {}
    limit_overrides: Mapping[tuple[str, str, str], float] = {}

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs in scope, by bus id."""
        if self.scope is None:
            return self.node.gpus
        return tuple(gpu for gpu in self.node.gpus if gpu.index in self.scope)

    @property
    def compute_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs in scope less those that only drive a display beside bigger ones."""
        return compute_gpus(self.gpus)

    @property
    def pairs(self) -> tuple[GpuPair, ...]:
        """Known pairs with both ends in scope."""
        if isinstance(self.node.pairs, Missing):
            return ()
        inside = {gpu.index for gpu in self.gpus}
        return tuple(pair for pair in self.node.pairs if {pair.a, pair.b} <= inside)

    def limit(self, check_id: str, name: str, gpu: Gpu | None = None) -> float:
        """The threshold in force: configured for this GPU's model, configured, or the default."""
        model = known(gpu.name) if gpu is not None else None
        if model is not None:
            for (check, limit, pattern), value in self.limit_overrides.items():
                if check == check_id and limit == name and pattern and pattern.lower() in model.lower():
                    return value
        plain = self.limit_overrides.get((check_id, name, ""))
        return plain if plain is not None else self.limits[check_id][name].value

    def limit_source(self, check_id: str, name: str, gpu: Gpu | None = None) -> str:
        """Where `limit` took its number from, in words for `Expected.source`."""
        default = self.limits[check_id][name]
        return default.source if self.limit(check_id, name, gpu) == default.value else "configuration"
