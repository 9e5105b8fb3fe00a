"""Choose the GPUs that a job may use: python pick_gpus.py prints them for CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import pynvml


def pick_gpus() -> list[int]:
    """Indices of the GPUs that answer, are idle, and need no repair; none where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [index for index in range(pynvml.nvmlDeviceGetCount()) if is_fit(index)]
    finally:
        pynvml.nvmlShutdown()


def is_fit(index: int) -> bool:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)  # a lost GPU fails here
        if pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            return False
    except pynvml.NVMLError:
        return False
    return not needs_repair(handle)


def needs_repair(handle: object) -> bool:
    try:
        _, _, is_pending, has_failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    except pynvml.NVMLError_NotSupported:
        return False  # GPUs older than Ampere, which retire pages instead
    except pynvml.NVMLError:
        return True
    return bool(is_pending or has_failed)


if __name__ == "__main__":
    print(",".join(map(str, pick_gpus())))
