"""Real failures over torchrun on CPU: a fault on a random rank at a random step -> the logs and the truth."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from tests.diagnose.asking import answer_of, said

TRAINING = Path(__file__).parents[2] / "docs" / "examples" / "train_ddp.py"
# what may be said, and whether the rank can be known: of two ranks that differ, nobody knows which one is wrong
FAULTS: dict[str, tuple[frozenset[str], bool]] = {
    "exception": (frozenset({"user_exception"}), True),
    "sigkill": (frozenset({"killed_sigkill"}), True),
    "eat-memory": (frozenset({"host_oom"}), True),
    "hang": (frozenset({"rank_hung", "rank_behind"}), True),
    "mismatch": (frozenset({"collective_mismatch"}), False),
    "shape": (frozenset({"collective_mismatch"}), False),
    "import-error": (frozenset({"import_error"}), True),
    "port": (frozenset({"port_in_use"}), False),
    "never-starts": (frozenset({"missing_rank", "rank_hung"}), True),
    "full-disk": (frozenset({"disk_full"}), False),
    "sigstop": (frozenset({"rank_hung", "rank_behind"}), True),
    "segfault": (frozenset({"segfault"}), True),
    "silent-exit": (frozenset({"silent_exit"}), True),
    "leave": (frozenset({"early_exit"}), True),
    "early-exit": (frozenset({"early_exit"}), True),
    "nan": (frozenset({"nan"}), True),
    "alloc": (frozenset({"host_alloc_failed"}), True),
    "params": (frozenset({"config_mismatch"}), False),
}
LAYOUTS = {"console": [], "tee": ["--tee", "3"], "tree": ["--redirects", "3"]}
_CGROUPS = Path("/sys/fs/cgroup")
_MEMORY_BYTES = 3 << 30
_LONGEST_S = 300


class Run(NamedTuple):
    """One failed job: what was done, where its logs lie."""

    fault: str
    world: int
    rank: int
    at: int
    layout: str
    folder: Path

    def verdict(self) -> str:
        """`right`, `blamed` for another rank that was named, else `unknown` or `wrong`."""
        what, rank = said(answer := answer_of(self.folder))
        whats, known = FAULTS[self.fault]
        if rank is not None and rank != self.rank:
            return "blamed"
        if what in whats and (rank == self.rank or not known):
            return "right"
        return "wrong" if answer.verdict == "cause" else "unknown"


def can_limit_memory() -> bool:
    """Whether a memory cgroup can be made here: version 1 or 2, as root."""
    try:
        with memory_cgroup():
            return True
    except OSError:
        return False


def run_job(fault: str, seed: int, folder: Path) -> Run:
    """Train until the fault ends it; at most five minutes."""
    chance = random.Random(f"{fault}-{seed}")
    world = chance.choice([2, 3, 4, 4, 5, 8])
    run = Run(fault, world, chance.randrange(world), chance.randrange(1, 40), chance.choice(list(LAYOUTS)), folder)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world)]
    command += ["--log-dir", str(folder / "logs"), *LAYOUTS[run.layout]] if run.layout != "console" else []
    limit = memory_cgroup() if fault == "eat-memory" else nullcontext()
    with socket.socket() as held, limit as cgroup:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        command += ["--master-addr", "127.0.0.1", "--master-port", str(port)] if fault == "port" else ["--standalone"]
        command += [str(TRAINING), "--at", str(run.at), "--steps", "60", "--timeout", str(10 + 5 * world)]
        command += [f"--{fault}", str(run.rank)] if fault != "port" else []
        _run_to_the_end(command, folder / "console.log", cgroup)
    if fault == "eat-memory":
        said_by_kernel = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout.split("\n")
        (folder / "dmesg.log").write_text("\n".join(said_by_kernel[-60:]) + "\n")
    return run


def _run_to_the_end(command: list[str], console: Path, cgroup: Path | None) -> None:
    with console.open("wb") as out, tempfile.TemporaryDirectory(prefix="gpudoctor-run-") as scratch:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TMPDIR": scratch}
        job = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(job.pid))
        try:
            job.wait(_LONGEST_S)
        except subprocess.TimeoutExpired:
            job.terminate()
            job.wait(60)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)


@contextmanager
def memory_cgroup() -> Iterator[Path]:
    """A memory cgroup of 3 GiB, of version 1 or 2, that goes with the block."""
    version_1 = (_CGROUPS / "memory").is_dir()
    path = (_CGROUPS / "memory" if version_1 else _CGROUPS) / f"gpudoctor-test-{os.getpid()}"
    path.mkdir()
    try:
        (path / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(_MEMORY_BYTES))
        yield path
    finally:
        for pid in (path / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        while (path / "cgroup.procs").read_text().strip():
            pass
        path.rmdir()
