"""The environment of the command: what makes failures readable and costs nothing, unless the user has set it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

FOLDER_VARIABLE = "GPUDOCTOR_RUN_FOLDER"
NO_SETTINGS_VARIABLE = "GPUDOCTOR_RUN_NO_ENV"
_ENTRY = Path(__file__).parent / "observer" / "entry"


def failure_settings(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables to set; a group of which the user has set one is left alone.

    Sources: PyTorch's "Flight Recorder" tutorial and ProcessGroupNCCL environment variables; NCCL's environment
    variables; torch.distributed.elastic.multiprocessing.errors.
    """
    groups = (
        {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": f"{folder}/logs/nccl.%h.%p.log"},
        {"TORCHELASTIC_ERROR_FILE": f"{folder}/logs/torchelastic_error.json"},
    )
    return {name: value for group in groups if not group.keys() & environ.keys() for name, value in group.items()}


def observer_settings(folder: Path, environ: Mapping[str, str], *, settings: bool) -> dict[str, str]:
    """Variables that put the observer into each Python process, in front of what the user has on the path.

    With `settings` the observer sets those of torch's flight recorder, whose names depend on the version of torch.
    """
    others = environ.get("PYTHONPATH", "")
    path = f"{_ENTRY}{os.pathsep}{others}" if others else str(_ENTRY)
    return {"PYTHONPATH": path, FOLDER_VARIABLE: str(folder), **({} if settings else {NO_SETTINGS_VARIABLE: "1"})}
