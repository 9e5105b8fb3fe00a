"""How long a standard check takes, against doing the same by hand, one after the other.

By hand is torchrun of a minimal all_reduce benchmark, then torchrun of a minimal DDP script, both below: the same
ranks, sizes and numbers of operations, the same model, batch and number of steps as gpudoctor's report states, each
with its result checked. Both sides are run in turn, as whole processes; prints the times and the ratio of their
medians, and exits 1 if it is above --max.

    python benchmarks/by_hand.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ALL_REDUCE = """
import sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
for word in sys.argv[1:]:
    size_bytes, iterations = map(int, word.split(":"))
    mine = torch.full((size_bytes // 4,), float(rank + 1))
    data = mine.clone()
    dist.all_reduce(data)
    right = bool((data == world_size * (world_size + 1) / 2).all())
    times = []
    for _ in range(5 + iterations):
        data.copy_(mine)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(data)
        times.append(time.perf_counter() - start)
    median = sorted(times[5:])[iterations // 2]
    if rank == 0:
        print(size_bytes, "right" if right else "WRONG", size_bytes / median * 2 * (world_size - 1) / world_size / 1e9)
dist.destroy_process_group()
"""

DDP = """
import sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

batch, steps = map(int, sys.argv[1:])
dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
layers = [nn.Linear(128, 256), nn.ReLU()]
for _ in range(2):
    layers += [nn.Linear(256, 256), nn.ReLU()]
model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(256, 16)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
inputs = torch.randn(4 * batch * dist.get_world_size(), 128)
data = TensorDataset(inputs, inputs @ torch.randn(128, 16) / 128**0.5)
sampler = DistributedSampler(data)
losses, times, epoch = [], [], 0
while len(losses) < steps:
    sampler.set_epoch(epoch)
    epoch += 1
    for x, y in DataLoader(data, batch_size=batch, sampler=sampler):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
        losses.append(loss.item())
total = sum(p.double().sum() for p in model.parameters())
everyone = [torch.zeros_like(total) for _ in range(dist.get_world_size())]
dist.all_gather(everyone, total)
if dist.get_rank() == 0:
    same = all(bool(other == total) for other in everyone)
    print("same weights" if same else "DESYNC", losses[0], losses[-1], sorted(times)[len(times) // 2] * 1e3)
dist.destroy_process_group()
"""


def gpudoctor(ranks: int) -> tuple[float, dict[str, Any]]:
    """Seconds of a standard check, and its measurements."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's interpreter keeps its compiled files
    command = ["check", "--level", "standard", "--backend", "gloo", "--ranks", str(ranks), "--node", "hgx-h100-8"]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "gpudoctor", *command, "--json"], capture_output=True, text=True, check=False
    )
    passed_s = time.perf_counter() - began
    measured: dict[str, Any] = json.loads(done.stdout)["measurements"]
    if measured.get("problems") or "training" not in measured or not measured.get("collectives"):
        sys.exit(f"the check did not measure everything: {measured.get('problems') or measured.get('not_run')}")
    return passed_s, measured


def by_hand(script: Path, ranks: int, arguments: list[str]) -> float:
    """Seconds of torchrun of one script."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    began = time.perf_counter()
    subprocess.run([*launcher, str(script), *arguments], capture_output=True, check=True, cwd=script.parent)
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--max", type=float, default=0.6)
    args = parser.parse_args()
    _, measured = gpudoctor(args.ranks)  # fills the caches, and reports how much work it is
    sizes = [f"{row['size_bytes']}:{row['iterations']}" for row in measured["collectives"]]
    training = measured["training"]
    steps = [str(training["batch_per_rank"]), str(training["steps"])]
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        scripts = Path(folder) / "all_reduce.py", Path(folder) / "ddp.py"
        for script, source in zip(scripts, (ALL_REDUCE, DDP), strict=True):
            script.write_text(source)
        by_hand(scripts[0], args.ranks, sizes)
        for run in range(args.runs):
            ours.append(gpudoctor(args.ranks)[0])
            parts = by_hand(scripts[0], args.ranks, sizes), by_hand(scripts[1], args.ranks, steps)
            theirs.append(sum(parts))
            print(f"run {run + 1}: gpudoctor {ours[-1]:.2f} s, by hand {parts[0]:.2f} + {parts[1]:.2f} s", flush=True)
    ratio = statistics.median(ours) / statistics.median(theirs)
    print(f"ratio {ratio:.2f} (at most {args.max}) at sizes:operations {' '.join(sizes)}, batch and steps {steps}")
    return 0 if ratio <= args.max else 1


if __name__ == "__main__":
    sys.exit(main())
