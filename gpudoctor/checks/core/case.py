"""The input of a check: facts, measurements, expectations and limits. Reads nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, wraps
from typing import Annotated, Literal, TypeVar

import msgspec

from gpudoctor.facts.model.gpu import Gpu, GpuPair
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.profiles.profile import NO_PROFILE, GpuModel, Profile, compute_gpus, has_name

T = TypeVar("T")


class Limit(msgspec.Struct, frozen=True):
    """A threshold: its default, its unit and the source of the number.

    `name` is its configuration key under each check that uses it. `status` is the result of a value beyond the
    limit, for the check's page; not needed if the name contains it ("warn_share").
    """

    value: float
    unit: str
    source: str
    name: str = ""
    status: Literal["warn", "fail"] | None = None

    @property
    def leads_to(self) -> str | None:
        """The status that a value beyond this limit gets, if this limit alone decides it."""
        return self.status or next((word for word in self.name.split("_") if word in ("warn", "fail")), None)


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the operator's configuration requires of this node. None: not configured."""

    gpus: Annotated[int | None, msgspec.Meta(description="How many GPUs the driver must show")] = None
    gpu_name: Annotated[str | None, msgspec.Meta(description="A part of every GPU's name")] = None


class Case(msgspec.Struct, frozen=True, dict=True):
    """Everything a check may look at.

    `scope` holds the NVML indices to judge and `scope_reason` why some are left out. `check_id` is the running
    check, whose limits `limit` returns; `limits` maps check id and limit name to the limits of all checks.
    `limit_overrides` maps (check id, limit name, GPU name pattern or "") to a configured number.
    """

    node: Node
    measurements: Measurements = Measurements()
    profile: Profile = NO_PROFILE
    scope: tuple[int, ...] | None = None
    scope_reason: str | None = None
    expect: Expect = Expect()
    check_id: str = ""
    limits: Mapping[str, Mapping[str, Limit]] = {}
    limit_overrides: Mapping[tuple[str, str, str], float] = {}

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs in scope, sorted by bus id."""
        if self.scope is None:
            return self.node.gpus
        return tuple(gpu for gpu in self.node.gpus if gpu.index in self.scope)

    @cached_property
    def compute_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs in scope, without those that only drive a display next to bigger ones."""
        return compute_gpus(self.gpus)

    @property
    def pairs(self) -> tuple[GpuPair, ...]:
        """Known pairs of which both GPUs are in scope."""
        if isinstance(self.node.pairs, Missing):
            return ()
        inside = {gpu.index for gpu in self.gpus}
        return tuple(pair for pair in self.node.pairs if {pair.a, pair.b} <= inside)

    def limit(self, limit: Limit, gpu: Gpu | None = None) -> float:
        """The threshold in force: the one configured for the GPU's model, else the configured one, else the default.

        Without a GPU, the model is the one that all compute GPUs in scope share, if they do. A check passes a limit
        that it was registered with (else KeyError).
        """
        default = self.limits[self.check_id][limit.name]
        for (check, name, pattern), value in self.limit_overrides.items():
            own = (check, name) == (self.check_id, default.name)
            if own and pattern and pattern.lower() in self._model(gpu).lower():
                return value
        return self.limit_overrides.get((self.check_id, default.name, ""), default.value)

    def limit_source(self, limit: Limit, gpu: Gpu | None = None) -> str:
        """Where the number of `limit` comes from, as text for `Expected.source`."""
        default = self.limits[self.check_id][limit.name]
        return default.source if self.limit(limit, gpu) == default.value else "configuration"

    def model_of(self, gpu: Gpu) -> GpuModel | None:
        """The profile's GPU model if this GPU is one; on a mixed node others may not be."""
        model, name = self.profile.gpu, known(gpu.name)
        if model is None or name is None:
            return None
        if has_name(model.patterns, name):
            return model
        return model if _compute_names(self) == {name} else None

    def _model(self, gpu: Gpu | None) -> str:
        names = {known(each.name) for each in ((gpu,) if gpu is not None else self.compute_gpus)}
        return (names.pop() or "") if len(names) == 1 else ""


def once_a_case(answer: Callable[[Case], T]) -> Callable[[Case], T]:
    """Keep the answer of a function with its case, so that a check that judges GPU by GPU asks of all of them once."""
    name = f"{answer.__module__}.{answer.__qualname__}"

    @wraps(answer)
    def kept_answer(case: Case) -> T:
        answers = vars(case)
        if name not in answers:
            answers[name] = answer(case)
        return answers[name]  # type: ignore[no-any-return]

    return kept_answer


@once_a_case
def _compute_names(case: Case) -> set[str | None]:
    return {known(gpu.name) for gpu in case.compute_gpus}
