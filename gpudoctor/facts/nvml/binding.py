"""NVIDIA's own Python binding where an older package of its name hides it."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

_NAME = "gpudoctor_nvidia_ml_py"


def unhidden() -> Any:
    """The module of the distribution nvidia-ml-py, by its path and under a name of our own; None where it is not there.

    Packages `pynvml` up to 11.5.0 are a folder of that name, which Python prefers to nvidia-ml-py's
    pynvml.py beside it. They answer bytes, or lack what newer drivers tell. What other programs get
    from `import pynvml` is left as it is; `hidden_by` of the module says in words what hides it.
    """
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    try:
        path = Path(str(distribution("nvidia-ml-py").locate_file("pynvml.py")))
    except PackageNotFoundError:
        return None
    spec = spec_from_file_location(_NAME, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        return None
    module: Any = module_from_spec(spec)
    sys.modules[_NAME] = module  # it looks itself up while it is loaded
    spec.loader.exec_module(module)
    module.hidden_by = hider()
    return module


def hider() -> str:
    """The package that is in front, as "pynvml 11.5.0"."""
    try:
        return f"pynvml {version('pynvml')}"
    except PackageNotFoundError:
        return "a folder pynvml"
