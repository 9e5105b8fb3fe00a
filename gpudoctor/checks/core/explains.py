"""What a bad finding of a check explains in other checks, as the check's decorator declares it."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from gpudoctor.checks.core.finding import Finding, Status
from gpudoctor.checks.core.recovery_actions import RECOVERY_ACTIONS

# what torch, TensorFlow and JAX see of the GPUs
VIEWS = ("env.torch", "env.frameworks")
# checks of what the probes measured
PROBES = ("collective.*", "link.*", "compute.*", "train.*", "strategy.*", "burn.*")
# speeds of one GPU; what a hot or slow one computes must still be right
SPEEDS = ("compute.gemm", "compute.memory", "burn.drift")
# how a probe ends whose ranks cannot start or meet: never by a wrong result
ENDS = ("timeout", "crash")
# what gpu.lost finds if the GPU answers and asks for a reset: the error that came first explains that
RESETS = tuple(name for name, action in RECOVERY_ACTIONS.items() if action.after_error)


class Explains(msgspec.Struct, frozen=True):
    """A bad finding of the check explains findings of `effects` (ids or globs).

    `anywhere`: whatever the subject; else only if both concern the same GPU (see `causes`).
    `found` and `because`: only effects, and only causes, whose found value is one of these.
    `gaps`: only effects that are unknown, since what could not be measured has no cause of its own.
    `after`: these causes win over this one here, although the order of depth says otherwise.
    """

    effects: tuple[str, ...]
    anywhere: bool = False
    found: tuple[str | int, ...] = ()
    because: tuple[str, ...] = ()
    gaps: bool = False
    after: tuple[str, ...] = ()

    def fits_effect(self, check_id: str, finding: Finding) -> bool:
        """Whether a finding of this check is one that is explained."""
        unknown = finding.status is Status.UNKNOWN
        if (self.gaps and not unknown) or (self.found and not unknown and _value(finding) not in self.found):
            return False
        return any(fnmatchcase(check_id, effect) for effect in self.effects)

    def fits_cause(self, finding: Finding) -> bool:
        """Whether this bad finding of the declaring check explains anything."""
        return not self.because or _value(finding) in self.because


def _value(finding: Finding) -> float | str | None:
    return finding.found.value if finding.found else None
