"""What a bad finding explains in other checks, as the check's decorator declares it."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from gpudoctor.checks.core.finding import Finding, Status

# The action a GPU requests after an error (NVML field 230, GPU recovery action), and its consequences.


class RecoveryAction(msgspec.Struct, frozen=True):
    """An action that a GPU may request, with the text of the finding.

    `unfit`: no work may start before the action. `reboot`: a GPU reset alone is not enough.
    `after_error`: a memory error or Xid found in the same run explains the request.
    """

    words: str
    unfit: bool
    reboot: bool = False
    after_error: bool = True


# keyed by the readers' names for the actions, see facts/nvml/codes.py
RECOVERY_ACTIONS = {
    "gpu-reset": RecoveryAction("the GPU needs a reset", unfit=True),
    "node-reboot": RecoveryAction("the GPU needs the node rebooted", unfit=True, reboot=True),
    "drain-p2p": RecoveryAction("the GPU asks that its peer-to-peer traffic be drained", unfit=False),
    "drain-and-reset": RecoveryAction("the GPU asks to be drained and reset", unfit=True),
    "recover-imex-domain": RecoveryAction(
        "the GPU asks that its IMEX domain be recovered", unfit=False, after_error=False
    ),
    "bus-reset": RecoveryAction("the GPU needs a reset of its bus", unfit=True, reboot=True),
    "system-reboot": RecoveryAction("the GPU needs the system rebooted", unfit=True, reboot=True),
}


# checks of what the driver and the bus say of each GPU: a GPU that does not answer explains only their gaps
READINGS = ("gpu.*", "pcie.*", "nvlink.*", "topology.*")
# checks of what torch, TensorFlow and JAX see of the GPUs
VIEWS = ("env.torch", "env.frameworks")
# checks of what the probes measured
PROBES = ("collective.*", "link.*", "compute.*", "train.*", "strategy.*", "burn.*")
# checks of one GPU's speed; a hot or slow GPU must still compute correct results
SPEEDS = ("compute.gemm", "compute.memory", "burn.drift")
# how a probe ends if its ranks cannot start or connect; a wrong result has other causes
ENDS = ("timeout", "crash")
# what gpu.lost finds if the GPU answers but requests a reset: the earlier error explains the request
RESETS = tuple(name for name, action in RECOVERY_ACTIONS.items() if action.after_error)


class Explains(msgspec.Struct, frozen=True):
    """A bad finding of the declaring check explains findings of the checks `effects` (ids or globs).

    `anywhere`: whatever their subject; otherwise only if both concern the same GPU (see `causes`).
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
