"""What a bad finding explains in other checks, as the check's decorator declares it."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from gpudoctor.checks.core.finding import Finding, Status

# checks of what the driver and the bus say of each GPU: a GPU that does not answer explains only their gaps
READINGS = ("gpu.*", "pcie.*", "nvlink.*", "topology.*")
# checks of what torch, TensorFlow and JAX see of the GPUs
VIEWS = ("env.torch", "env.frameworks")
# checks of what the probes measured
PROBES = ("collective.*", "link.*", "compute.*", "train.*", "strategy.*", "burn.*")
# those of them whose ranks work together
TOGETHER = ("collective.*", "train.*", "strategy.*")
# what a slow PCIe link slows down
OVER_PCIE = ("pcie.balance", "collective.bandwidth", "collective.pairs", "link.*", "train.balance", "train.scaling")
# checks of one GPU's speed; a hot or slow GPU must still compute correct results
SPEEDS = ("compute.gemm", "compute.memory", "burn.drift")
# how a probe ends if its ranks cannot start or connect; a wrong result has other causes
ENDS = ("timeout", "crash")


class Explains(msgspec.Struct, frozen=True):
    """A bad finding of the declaring check explains findings of the checks `effects` (ids or globs).

    `anywhere`: whatever their subject; otherwise only if both concern the same GPU (see `faults`).
    `found`: only effects with one of these found values. `because`: only causes with one of these found values.
    `gaps`: only effects that are unknown, for causes that only prevent a measurement.
    `after`: these causes win over this one, although `DEEPEST_FIRST` orders them the other way round.
    """

    effects: tuple[str, ...]
    anywhere: bool = False
    found: tuple[str | int | None, ...] = ()
    because: tuple[str, ...] = ()
    gaps: bool = False
    after: tuple[str, ...] = ()

    def fits_effect(self, check_id: str, finding: Finding) -> bool:
        """Whether this can explain such a finding of the check `check_id`."""
        unknown = finding.status is Status.UNKNOWN
        if (self.gaps and not unknown) or (self.found and not unknown and _value(finding) not in self.found):
            return False
        return any(fnmatchcase(check_id, effect) for effect in self.effects)

    def fits_cause(self, finding: Finding) -> bool:
        """Whether this bad finding of the declaring check can explain others."""
        return not self.because or _value(finding) in self.because


def _value(finding: Finding) -> float | str | None:
    return finding.found.value if finding.found else None
