"""What `gpudoctor run` costs a training: the CPU time of a 20 ms step with and without it, in paired runs.

    python benchmarks/run_overhead.py [--pairs 5]

Each run trains the same model on one CPU thread. Compared is the CPU time of a step, which other programs on the machine
disturb less than its length; runs with and without alternate, and the ratio is the median over the pairs. The floor:
below 1 %, plus what the pairs without it differ among themselves.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median

_MOST_RATIO = 1.01
_TRAIN = """
import json, sys, time
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range({depth})), nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(20000, 512), torch.randn(20000, 1)), 64)
times = []
for epoch in range(4):
    for x, y in loader:
        began = time.process_time_ns()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.process_time_ns() - began)
        if len(times) >= {steps}:
            break
print(json.dumps(times[{steps} // 5:]))
"""


def step_ms(steps: int, depth: int, *, watched: bool) -> float:
    """The median CPU time of a step."""
    train = [sys.executable, "-c", _TRAIN.format(steps=steps, depth=depth)]
    command = [sys.executable, "-m", "gpudoctor", "run", "--precheck", "none", "--", *train] if watched else train
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return median(json.loads(done.stdout)) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--depth", type=int, default=20)
    args = parser.parse_args()
    ratios, alone = [], []
    for pair in range(args.pairs):
        order = (False, True) if pair % 2 else (True, False)
        found = {watched: step_ms(args.steps, args.depth, watched=watched) for watched in order}
        ratios.append(found[True] / found[False])
        alone.append(found[False])
        print(f"pair {pair + 1}: {found[False]:.3f} ms alone, {found[True]:.3f} ms watched, {ratios[-1] - 1:+.2%}")
    spread = (max(alone) - min(alone)) / median(alone)
    ratio = median(ratios)
    print(f"overhead {ratio - 1:+.2%} of a {median(alone):.1f} ms step (median of {args.pairs} pairs; ")
    print(f"the runs without it differ by {spread:.1%})")
    return 0 if ratio < _MOST_RATIO + spread / 4 else 1


if __name__ == "__main__":
    sys.exit(main())
