"""First on PYTHONPATH in a watched command: starts the observer, and leaves no trace of itself.

The user's own `sitecustomize` is imported next, by site itself, as if this file did not exist.
"""

import os
import sys


def _start() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs every Python 10 ms
    sys.path[:] = [entry for entry in sys.path if entry != here]
    folder = os.environ.get("GPUDOCTOR_RUN_FOLDER")
    if not folder or sys.version_info < (3, 8):
        return
    observer = os.path.dirname(here)  # noqa: PTH120
    code = os.path.join(observer, "start.py")  # noqa: PTH118
    with open(code, encoding="utf-8") as file:  # noqa: PTH123
        names = {"__name__": "_gpudoctor_observer_start", "__file__": code}
        exec(compile(file.read(), code, "exec"), names)
    names["watch_for_torch"](observer, folder)  # type: ignore[operator]


try:
    _start()
except Exception:  # noqa: BLE001 - a command must run even if it cannot be observed
    pass
finally:
    sys.modules.pop("sitecustomize", None)
    sys.path_importer_cache.pop(os.path.dirname(os.path.abspath(__file__)), None)  # noqa: PTH100, PTH120

try:
    import sitecustomize  # type: ignore[import-not-found]  # the user's
except ImportError as error:
    if error.name != "sitecustomize":
        raise
    # site takes this for a missing module, which it is without us
    raise ImportError("No module named 'sitecustomize'", name="sitecustomize") from None
else:
    sys.modules["sitecustomize"] = sitecustomize
