"""One rank while nodes are measured against each other: it joins one process group after the other.

Every exception becomes an answer, since a rank that just died would not give its reason.
"""

from __future__ import annotations

import datetime
import socket
import time
from typing import Any

import torch
import torch.distributed as dist

from gpudoctor.probes.inter_node.rank import AllReduceTimes, InterNodeFailure, Opened, Rendezvous
from gpudoctor.probes.runner.torch_device import in_one_line, too_old

_OPERATIONS = {"nccl": 4, "gloo": 1}  # per timing, so that launching and waiting for a GPU is a small part of it
_FEWEST_TIMES, _MOST_TIMES = 2, 20
_dist: Any = dist


class InterNodeRank:
    """A rank, and the store of the groups in which its node comes first.

    The store has no authentication, so it listens only on `address`, at which the job's other nodes reach this one.
    """

    def __init__(self, backend: str, address: str) -> None:
        self._backend, self._address = backend, address
        self._device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
        self._store: Any = None
        torch.set_num_threads(1)

    def open(self) -> Opened | InterNodeFailure:
        """Check that this torch can do it, and open the store on a free port."""
        why_old = too_old(str(torch.__version__))
        if why_old is not None:
            return InterNodeFailure(why_old, absent=True)
        if not dist.is_available() or (self._backend == "nccl" and not dist.is_nccl_available()):
            return InterNodeFailure(f"this torch ({torch.__version__}) was built without {self._backend}", absent=True)
        try:
            if self._backend == "nccl":
                torch.cuda.set_device(0)
                float(torch.ones(1, device=self._device).add(1))
            # by itself torch's store would listen on every address, whatever host it is given
            family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
            listener = socket.create_server((self._address, 0), family=family)
            port = listener.getsockname()[1]
            self._store = _dist.TCPStore(
                self._address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
            )
        except OSError as error:
            return InterNodeFailure(f"its address {self._address} cannot be listened on: {error.strerror or error}")
        except Exception as error:  # noqa: BLE001 - see above
            return InterNodeFailure(in_one_line(error))
        return Opened(int(self._store.port), str(torch.__version__))

    def measure(self, rendezvous: Rendezvous) -> AllReduceTimes | InterNodeFailure:
        """Join, measure, leave. After a failure this process must not be reused: threads of the group may remain."""
        try:
            store = self._join(rendezvous)
            times = self._measure(rendezvous)
            _wait_for_all(store, rendezvous.size)
            dist.destroy_process_group()
        except Exception as error:  # noqa: BLE001 - see above
            return InterNodeFailure(in_one_line(error))
        return times

    def _join(self, rendezvous: Rendezvous) -> Any:
        """Join the group; returns its store."""
        timeout = datetime.timedelta(seconds=rendezvous.limit_s)
        at = _dist.TCPStore(rendezvous.host, rendezvous.port, is_master=False, timeout=timeout)
        store = _dist.PrefixStore(rendezvous.key, at)
        options: dict[str, Any] = {"device_id": self._device} if self._backend == "nccl" else {}
        dist.init_process_group(
            self._backend,
            store=store,
            rank=rendezvous.rank,
            world_size=rendezvous.size,
            timeout=timeout,
            **options,
        )
        return store

    def _measure(self, rendezvous: Rendezvous) -> AllReduceTimes:
        data = torch.empty(rendezvous.size_bytes // 4, dtype=torch.float32, device=self._device)
        token = torch.zeros(1, device=self._device)
        right = self._sum_is_right(data, rendezvous)  # the first operations also open the connections
        data.zero_()
        once = torch.tensor([self._timed(data, token)], device=self._device)
        dist.all_reduce(once, op=dist.ReduceOp.MAX)  # all ranks must repeat it equally often
        times = max(_FEWEST_TIMES, min(_MOST_TIMES, int(rendezvous.box_s / max(1e-6, float(once.item())))))
        seconds = [self._timed(data, token) for _ in range(times)]
        right = self._sum_is_right(data, rendezvous) and right
        per_operation = _OPERATIONS[self._backend]
        return AllReduceTimes(tuple(second / per_operation for second in seconds), data.numel() * 4, right)

    def _timed(self, data: torch.Tensor, token: torch.Tensor) -> float:
        dist.all_reduce(token)  # so that all begin together
        self._wait()
        began = time.perf_counter()
        for _ in range(_OPERATIONS[self._backend]):
            dist.all_reduce(data)
        self._wait()
        return time.perf_counter() - began

    def _sum_is_right(self, data: torch.Tensor, rendezvous: Rendezvous) -> bool:
        """Whether a sum of small whole numbers is exact; these give the same bits in any order of addition."""
        data.fill_(float(rendezvous.rank + 1))
        dist.all_reduce(data)
        expected = float(rendezvous.size * (rendezvous.size + 1) // 2)
        return bool(torch.all(data == expected).item())

    def _wait(self) -> None:
        if self._backend == "nccl":
            torch.cuda.synchronize()


def _wait_for_all(store: Any, size: int) -> None:
    """Return when every rank has measured.

    Before torch 2.6 destroy_process_group aborts the communicator: what this rank has still to send to a slower one
    would be lost, and that one would wait until its timeout (pytorch pull request 141510).
    """
    if store.add("measured", 1) == size:
        store.set("all-measured", "yes")
    store.wait(["all-measured"])
