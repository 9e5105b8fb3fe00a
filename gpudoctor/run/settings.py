"""The environment of the command: what makes failures readable and costs nothing, unless the user has set it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

FOLDER_VARIABLE = "GPUDOCTOR_RUN_FOLDER"
OBSERVER_ENTRY = Path(__file__).parent / "observer" / "entry"


def failure_settings(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables to set; a group of which the user has set one is left alone.

    Sources: PyTorch's "Flight Recorder" tutorial and ProcessGroupNCCL environment variables; NCCL's environment
    variables; torch.distributed.elastic.multiprocessing.errors.
    """
    groups = (
        {
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{folder}/dumps/nccl_trace_rank_",
        },
        {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": f"{folder}/logs/nccl.%h.%p.log"},
        {"TORCHELASTIC_ERROR_FILE": f"{folder}/logs/torchelastic_error.json"},
    )
    return {name: value for group in groups if not group.keys() & environ.keys() for name, value in group.items()}


def observer_settings(folder: Path, entry: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that put the observer into each Python process, in front of what the user has on the path."""
    others = environ.get("PYTHONPATH", "")
    path = f"{entry}{os.pathsep}{others}" if others else str(entry)
    return {"PYTHONPATH": path, FOLDER_VARIABLE: str(folder)}
