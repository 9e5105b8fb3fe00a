"""Lines with words of failure that report none.

Sources: NCCL's src/plugin and src/misc (information about optional parts), torch's warnings at a clean end, Ray.
"""

from __future__ import annotations

import re

_HARMLESS = re.compile(
    r"NET/Plugin ?: |Plugin load|Could not find: ?lib|Failed to find nccl\w+Plugin|Failed to find CUDA library"
    r"|Failed to find \w+Plugin|NET/IB : No device found|Failed to open libibverbs|NVLS multicast support is not available"
    r"|P2P plugin |fabric UUID 0\.0|Could not find real path of /sys/class/net|destroy_process_group\(\) was not called"
    r"|process group has NOT been destroyed|Guessing device ID|OMP_NUM_THREADS|leaked (?:semaphore|shared_memory) objects"
    r"|Missing hostname|CXI Service ID|FI_HMEM|PlacementGroupCleaner|TUNER/Plugin|PROFILER/Plugin|No plugin found"
    r"|switch_g_job_postfini|Graceful shutdown of backend failed|TORCH_NCCL_\w+ is deprecated|libibverbs: Warning"
    r"|DeprecationWarning|FutureWarning|UserWarning: (?!CUDA init)"
)


def is_harmless(text: str) -> bool:
    """Whether the line is only information."""
    return _HARMLESS.search(text) is not None
