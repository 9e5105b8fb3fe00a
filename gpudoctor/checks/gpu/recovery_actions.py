"""The action that a GPU requests after an error (NVML field 230, GPU recovery action), and its consequences."""

from __future__ import annotations

import msgspec


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
# what gpu.lost finds if the GPU answers but requests a reset: the earlier error explains the request
RESETS = tuple(name for name, action in RECOVERY_ACTIONS.items() if action.after_error)
