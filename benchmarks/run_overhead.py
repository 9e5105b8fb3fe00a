"""What `gpudoctor run` costs a training: the time that its observer adds to a 20 ms step.

    python benchmarks/run_overhead.py [--pairs 40]

One training on one CPU thread, under `gpudoctor run`: blocks of steps with the observer's hooks at work and blocks
with them switched off alternate, so that both see the same machine. Compared is the CPU time of a block, which other
programs disturb less than its length; the figure is the median over the pairs of blocks. The observer's thread, which
samples stacks, is added by the CPU time that it used. Exits 1 if both together are 1 % or more. On a busy machine the
figure is the machine's: caches and hyper-threads are shared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

_MOST_SHARE = 0.01
_TRAIN = """
import json, sys, threading, time
from statistics import median
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
pairs, depth, block = {pairs}, {depth}, 10
model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(depth)), nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(64 * 64, 512), torch.randn(64 * 64, 1))
guard = sys.modules["_gpudoctor_observer.rank_process"].observed.guard
thread = next(t for t in threading.enumerate() if t.name == "gpudoctor-observer")

def batches():
    while True:
        yield from torch.utils.data.DataLoader(data, 64)

source = batches()

def run(steps):
    began = time.thread_time_ns()
    for _ in range(steps):
        x, y = next(source)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.thread_time_ns() - began) / steps / 1e6

run(20)
began = time.monotonic()
on, off = [], []
for pair in range(pairs):
    for watched in ((True, False) if pair % 2 else (False, True)):
        guard.off = not watched
        (on if watched else off).append(run(block))
    assert not guard.why, guard.why
clock = time.pthread_getcpuclockid(thread.ident)
sampling = time.clock_gettime(clock) / (time.monotonic() - began)
added = median(a - b for a, b in zip(on, off))
print(json.dumps({{"step_ms": median(off), "added_ms": added, "sampling": sampling}}))
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--depth", type=int, default=20)
    args = parser.parse_args()
    train = [sys.executable, "-c", _TRAIN.format(pairs=args.pairs, depth=args.depth)]
    command = [sys.executable, "-m", "gpudoctor", "run", "--precheck", "none", "--", *train]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    hooks = found["added_ms"] / 20  # of a step of 20 ms, whatever one of this model takes here
    print(f"hooks add {found['added_ms'] * 1000:.0f} us a step (steps here: {found['step_ms']:.1f} ms)")
    print(f"of a 20 ms step: hooks {hooks:.2%}, sampling thread {found['sampling']:.2%}")
    return 0 if hooks + found["sampling"] < _MOST_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
