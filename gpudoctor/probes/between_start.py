"""Where a process begins that ends when the one that started it does."""

from __future__ import annotations

import json
import os
import signal
import sys

from gpudoctor.probes.starter import tie_to_parent

# not `-m`: it would put the working directory, and a user's torch.py or random.py in it, first on sys.path
_BOOT = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); sys.path.append({root!r}); "
    "from {module} import begin; begin()"
)


def boot(module: str) -> str:
    """The source that a new interpreter runs to come to `begin` of the module."""
    return _BOOT.format(root=package_root(), module=module)


def package_root() -> str:
    """The folder that gpudoctor lies in."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH120, PTH100


def tied_rank(fd: int) -> list[str]:
    """The command line of a rank between nodes; it answers on the file descriptor, and dies with this process."""
    return [sys.executable, "-c", boot("gpudoctor.probes.between_start"), json.dumps([os.getpid(), fd])]


def begin() -> None:
    """Be the rank that argv[1] says."""
    parent, fd = json.loads(sys.argv[1])
    tie_to_parent(parent, signal.SIGKILL)
    from gpudoctor.probes.between_seat import take_orders

    take_orders(fd)
