"""Whether gpudoctor's all_reduce figure agrees with that of a benchmark written by hand.

The other side is nccl-tests' method in the fewest lines: barrier, so many all_reduces back to back,
the mean of their time. Each pair is a fresh process group of torchrun, in which both sides measure
in turn, many times, at the same size and with the same number of operations: what else the machine
does meets both alike. Prints each pair and the median of their ratios; exits 1 where that is off by
more than --tolerance. (As whole processes, started one after the other, two runs of the same side
differ by 20 % and more on a virtual machine: no number of pairs that anyone would wait for tells 3 %.)

    python benchmarks/fidelity.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MIB = 1 << 20


def by_hand_gb_s(size_bytes: int, operations: int) -> float:
    """busbw by the plainest loop there is; of the slowest rank, as `nccl-tests -a 3` prints it."""
    import torch
    import torch.distributed as dist

    data = torch.ones(size_bytes // 4)
    dist.all_reduce(data)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(operations):
        dist.all_reduce(data)
    each_s = torch.tensor((time.perf_counter() - start) / operations, dtype=torch.float64)
    dist.all_reduce(each_s, op=dist.ReduceOp.MAX)
    ranks = dist.get_world_size()
    return size_bytes / each_s.item() * 2 * (ranks - 1) / ranks / 1e9


def inside(size_bytes: int, rounds: int, folder: str) -> None:
    """What each rank of torchrun does; rank 0 prints the ratio, gpudoctor's figure and the other."""
    import msgspec
    import torch
    import torch.distributed as dist

    from gpudoctor.probes.collective import probe as collectives
    from gpudoctor.probes.collective.merge import merged_collectives
    from gpudoctor.probes.collective.operations import AllReduce
    from gpudoctor.probes.runner import messages
    from gpudoctor.probes.runner.rank import Rank

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    number, ranks = dist.get_rank(), dist.get_world_size()
    job = messages.RankJob("gloo", ranks, ("collective",), folder, 60.0)
    sent = Path(folder) / f"rank-{number}"
    with sent.open("ab", buffering=0) as file:
        rank = Rank(number, job, file.fileno())
        operations, theirs = 0, []
        for turn in range(rounds + 1):
            pace = collectives._measure(rank, AllReduce(rank, size_bytes), collectives._CPU_SUM, None)
            operations = max(1, pace.operations * pace.batches)
            gb_s = by_hand_gb_s(size_bytes, operations)
            if turn:  # the first only warms up
                theirs.append(gb_s)
    dist.barrier()
    if number == 0:
        lines = [(Path(folder) / f"rank-{n}").read_bytes().splitlines() for n in range(ranks)]
        samples = {
            n: [msgspec.json.decode(line, type=messages.CollectiveSample) for line in lines[n]] for n in range(ranks)
        }
        ours = [row.busbw_gb_s for row in merged_collectives(samples, ranks)[1:]]
        assert len(ours) == len(theirs)
        print(statistics.median(ours), statistics.median(theirs), operations)
    dist.destroy_process_group()


def pair(ranks: int, size_bytes: int, rounds: int) -> tuple[float, float, int]:
    """gpudoctor's figure, the hand-written one, in GB/s, and the operations of one measurement."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--inside", folder, "--mib", str(size_bytes // MIB), "--rounds", str(rounds)]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        done = subprocess.run([*launcher, __file__, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    ours, theirs, operations = done.stdout.split()
    return float(ours), float(theirs), int(operations)


def main() -> int:
    """Print the pairs and judge the median."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mib", type=int, default=16, help="size of the all_reduce")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each side within a pair")
    parser.add_argument("--tolerance", type=float, default=0.03)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args()
    size_bytes = args.mib * MIB
    if args.inside:
        inside(size_bytes, args.rounds, args.inside)
        return 0
    ratios = []
    for number in range(args.pairs):
        ours, theirs, operations = pair(args.ranks, size_bytes, args.rounds)
        ratios.append(ours / theirs)
        print(
            f"pair {number + 1}: gpudoctor {ours:.3f}, by hand {theirs:.3f} GB/s busbw, ratio {ratios[-1]:.3f}"
            f" ({args.rounds} measurements of about {operations} operations each)",
            flush=True,
        )
    median = statistics.median(ratios)
    cores = len(os.sched_getaffinity(0))
    print(
        f"all_reduce of {args.mib} MiB on {args.ranks} CPU ranks, {cores} cores:"
        f" median ratio {median:.3f} (1 +- {args.tolerance})"
    )
    return 0 if abs(median - 1) <= args.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
