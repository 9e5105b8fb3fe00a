"""What a GPU asks for after an error (NVML field 230, GPU recovery action), and what that means."""

from __future__ import annotations

import msgspec


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
