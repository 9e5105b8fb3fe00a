"""What a bad finding of a check explains in other checks, as the check's decorator declares it."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from gpudoctor.checks.core.finding import Finding, Status

# What a GPU asks for after an error (NVML field 230, GPU recovery action), and what that means.


class RecoveryAction(msgspec.Struct, frozen=True):
    """What a GPU may ask for, in words for a finding.

    `unfit`: no work may start before it. `reboot`: a reset of the GPU alone does not do.
    `after_error`: a memory error or an Xid that was found too explains it.
    """

    words: str
    unfit: bool
    reboot: bool = False
    after_error: bool = True


# by the names that the readers give them, see facts/nvml/labels.py
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
