"""Begins and ends the observation of this process, and says in a small file what it is."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from time import monotonic_ns
from typing import Any

from . import layout
from .guard import Guard
from .phases import Phases
from .record_file import RecordFile
from .stacks import StackSampler, write_stacks_on_signal
from .streams import keep_output
from .torch_hooks import TorchHooks

# torch pull request 152563 of May 2025 gave the variables new names; in the versions between, torch's defaults stay
_RENAMED_FROM, _RENAMED_BY = (2, 8), (2, 9)
_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
observed: RankProcess | None = None


class RankProcess:
    def __init__(self, folder: str, torch: Any) -> None:
        self._path = f"{folder}/ranks/{os.getpid()}"
        self._torch = torch
        self._pid = os.getpid()
        self.guard = Guard()
        stack_signal = write_stacks_on_signal(f"{self._path}.stacks")
        self._record = RecordFile(self._path + layout.SUFFIX, stack_signal)
        self._place = (_number(_RANK), _number(_LOCAL_RANK), _number(_WORLD))
        self._record.place(*self._place, False, -1)
        keep_output(self._record)
        self._phases = Phases(self._record)
        self._hooks = TorchHooks(torch, self._phases, self.guard)
        self._hooks.install()
        self._sampler = StackSampler(self._phases, lambda: self.guard.call(self._now_and_then))

    def begin(self) -> None:
        if not os.environ.get("GPUDOCTOR_RUN_NO_ENV"):
            self._set_flight_recorder()
        atexit.register(self._at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._in_forked_child)
        self._write()
        self._sampler.start()

    def _set_flight_recorder(self) -> None:
        """The last collectives of each rank, written when one times out; torch reads it when ranks join.

        Unless the user has set any of it. Torch warns of a name of another version, so only the right one is set.
        """
        version = tuple(int("".join(filter(str.isdigit, part)) or 0) for part in self._torch.__version__.split(".")[:2])
        if any(
            name.startswith(("TORCH_FR_", "TORCH_NCCL_TRACE", "TORCH_NCCL_DUMP", "TORCH_NCCL_DEBUG_INFO"))
            for name in os.environ
        ):
            return
        file = f"{os.path.dirname(os.path.dirname(self._path))}/dumps/nccl_trace_rank_"  # noqa: PTH120
        os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "1"
        if version >= _RENAMED_BY:
            os.environ.update(TORCH_FR_BUFFER_SIZE="2000", TORCH_FR_DUMP_TEMP_FILE=file)
        elif version < _RENAMED_FROM:
            os.environ.update(TORCH_NCCL_TRACE_BUFFER_SIZE="2000", TORCH_NCCL_DEBUG_INFO_TEMP_FILE=file)

    def _in_forked_child(self) -> None:
        # a worker of a DataLoader, or a rank that was forked: the record is its parent's
        self.guard.off = True
        self._sampler.stopped = True

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return
        ended_ns = monotonic_ns()
        self._sampler.stopped = True
        error = getattr(sys, "last_value", None)
        self.guard.call(self._where)
        self._write(error)
        self._record.ended(2 if error is not None else 1, ended_ns)

    def _now_and_then(self) -> None:
        self._hooks.found_modules()
        self._where()
        self._write()

    def _where(self) -> None:
        """Which rank this is: by torch once it knows, else by the launcher."""
        distributed = sys.modules.get("torch.distributed")
        rank, local, world = self._place
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            rank, world = distributed.get_rank(), distributed.get_world_size()
        on_gpu = self._torch.cuda.is_initialized()
        self._record.place(rank, local, world, on_gpu, self._torch.cuda.current_device() if on_gpu else -1)

    def _write(self, error: BaseException | None = None) -> None:
        """Write what is not in the record: atomically, and never a reason to fail."""
        names = layout.PHASES
        content = {
            "argv": sys.argv[:64] if hasattr(sys, "argv") else [],
            "main": getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None),
            "torch": str(self._torch.__version__),
            "python": ".".join(map(str, sys.version_info[:3])),
            "threads": self._torch.get_num_threads(),
            "thread": self._phases.thread,
            "native_id": self._native_id(),
            "observer_off": self.guard.why,
            "error": None if error is None else f"{type(error).__name__}: {error}"[:2000],
            "places": [[names[p], f, n, w, c] for (p, f, n, w), c in list(self._sampler.places.items())],
            "modules": [m for m in ("deepspeed", "lightning", "pytorch_lightning", "accelerate") if m in sys.modules],
            "loader": self._hooks.loader_seen,
            "loader_workers": self._hooks.loader_workers,
        }
        try:
            with open(f"{self._path}.json.new", "w", encoding="utf-8", errors="backslashreplace") as file:  # noqa: PTH123
                json.dump(content, file)
            os.replace(f"{self._path}.json.new", f"{self._path}.json")  # noqa: PTH105
        except OSError:
            return

    def _native_id(self) -> int:
        for thread in threading.enumerate():
            if thread.ident == self._phases.thread:
                return getattr(thread, "native_id", None) or self._pid
        return self._pid


def _number(names: tuple[str, ...]) -> int:
    for name in names:
        value = os.environ.get(name, "")
        if value.isascii() and value.isdecimal():
            return int(value)
    return -1


def begin(folder: str) -> None:
    """Observe this process; torch was just imported. Raise whatever is in the way."""
    global observed
    observed = RankProcess(folder, sys.modules["torch"])
    observed.begin()
