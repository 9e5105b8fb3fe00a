"""How long `gpudoctor diagnose` takes for a large log, and how much memory: python benchmarks/diagnose.py [GIGABYTES].

The log is that of a training on 8 ranks: steps of each rank, NCCL's information, warnings that mean nothing, a
handled traceback now and then; at its end one rank raises an exception and the others lose it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_RANKS = 8


def main() -> None:
    """Make the log, diagnose it, and print seconds, MiB and the answer."""
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.log")
        write_log(path, int(gigabytes * 1e9))
        begun_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "gpudoctor", "diagnose", str(path)], capture_output=True, text=True, check=False
        )
        took_s = time.monotonic() - begun_s
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        size_gb = path.stat().st_size / 1e9
        processor_s = used.ru_utime + used.ru_stime
        print(f"{size_gb:.2f} GB in {took_s:.1f} s on {os.cpu_count()} cores, exit {done.returncode}")
        print(f"{processor_s:.1f} s of processor time, {processor_s / size_gb:.1f} s for 1 GB", end="")
        print(f"; at most {used.ru_maxrss / 1024:.0f} MiB in one process")
        print("\n".join(done.stdout.split("\n")[:3]) + done.stderr)


def write_log(path: Path, size: int) -> None:
    """A log of about this many bytes."""
    with path.open("w") as file:
        step = 0
        while file.tell() < size - 4096:
            file.write("".join(_step(step + n) for n in range(200)))
            step += 200
        for rank in range(_RANKS):
            file.write(_failure(rank, "KeyError: 'label'" if rank == 5 else _LOST))


_LOST = (
    "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:2251, "
    "remote process exited or there was a network error, NCCL version 2.20.5"
)


def _step(step: int) -> str:
    lines = [
        f"[rank{rank}]: 2026-11-22 11:{step // 60 % 60:02d}:{step % 60:02d},733 INFO train.py:211 step {step} "
        f"rank {rank} loss {2 + 1 / (step + 1):.4f} lr 3.0e-04 tok/s 12345.{rank} mem 71.{rank}GiB\n"
        for rank in range(_RANKS)
    ]
    if step % 50 == 0:
        lines += [
            f"gpu-n01:23250{rank}:2325349 [{rank}] NCCL INFO Channel 0{rank}/0 : 0[{rank}] -> 1[{rank}] [send] "
            "via NET/IB\n"
            for rank in range(_RANKS)
        ]
    if step % 1000 == 0:
        lines.append("WARNING retry 1 of 3: read timed out: shard 00031\n")
        lines.append(_failure(None, "FileNotFoundError: [Errno 2] No such file or directory: 'cache.json'"))
    return "".join(lines)


def _failure(rank: int | None, words: str) -> str:
    label = f"[rank{rank}]: " if rank is not None else ""
    return (
        f"{label}Traceback (most recent call last):\n"
        f'{label}  File "/w/train.py", line 211, in main\n{label}    batch = next(loader)\n{label}{words}\n'
    )


if __name__ == "__main__":
    main()
