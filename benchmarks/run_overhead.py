"""What `gpudoctor run` costs a training: the time that its observer adds to a 20 ms step, part by part.

    python benchmarks/run_overhead.py [--pairs 60]

One training on one CPU thread, under `gpudoctor run`. Its step is the work of a small model, where the hooks are, and
matrix products that fill 20 ms; it allocates nothing large, since page faults vary by more than the observer costs.
Blocks of steps with the hooks at work and with them switched off alternate, so that both see the same machine. Compared
is the CPU time of a block; the figure is the median over the pairs: of steps that are timed, and of those that are not
(how many are, the observer decides after 128 steps). The observer's thread, which samples stacks, is added by the CPU
time that it used. Exits 1 if both are 1 % or more. `gpudoctor` itself, beside the training, is shown as a share of one
core. On a busy machine every figure is several times as large: caches and hyper-threads are shared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

_MOST_SHARE = 0.01
_STEP_MS = 20
_TRAIN = """
import json, os, sys, threading, time
from statistics import median
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
pairs, block, step_ms = {pairs}, 5, {step_ms}
model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(8 * 4096, 64), torch.randn(8 * 4096, 1))
factor, product = torch.randn(256, 256), torch.empty(256, 256)
observed = sys.modules["_gpudoctor_observer.rank_process"].observed
guard, phases = observed.guard, observed._phases
thread = next(t for t in threading.enumerate() if t.name == "gpudoctor-observer")
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
products = 0

def batches():
    while True:
        yield from torch.utils.data.DataLoader(data, 8)

source = batches()

def run(steps):
    began = time.thread_time_ns()
    for _ in range(steps):
        x, y = next(source)
        for _ in range(products):
            torch.mm(factor, factor, out=product)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.thread_time_ns() - began) / steps / 1e6

def cpu_s(pid):
    with open(f"/proc/{{pid}}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

def added(timed):
    differences = []
    for pair in range(pairs):
        times = {{}}
        for watched in ((True, False) if pair % 2 else (False, True)):
            guard.off = not watched
            phases.timed, phases._stride = timed, 1 if timed else 1 << 40
            run(1)
            times[watched] = run(block)
        differences.append(times[True] - times[False])
        assert not guard.why, guard.why
    return median(differences)

run(10)
small = median(run(3) for _ in range(5))
products = 1
for _ in range(3):
    own = median(run(3) for _ in range(5))
    products = max(1, round(products * (step_ms - small) / max(own - small, 0.01)))
run(max(1, 150 - phases.steps))
stride, own = phases._stride, run(20)
began, beside = time.monotonic(), cpu_s(os.getppid())
parts = {{"timed": added(True), "untimed": added(False)}}
seconds = time.monotonic() - began
sampling = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
print(json.dumps({{
    **parts, "stride": stride, "step_ms": own, "sampling_s": sampling, "seconds": time.monotonic() - started,
    "beside": (cpu_s(os.getppid()) - beside) / seconds,
}}))
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=60)
    args = parser.parse_args()
    program = "import time; started = time.monotonic()\n" + _TRAIN.format(pairs=args.pairs, step_ms=_STEP_MS)
    train = [sys.executable, "-c", program]
    command = [sys.executable, "-m", "gpudoctor", "run", "--precheck", "none", "--", *train]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        return done.returncode
    found = json.loads(done.stdout)
    hooks = (found["timed"] + (found["stride"] - 1) * found["untimed"]) / found["stride"] / _STEP_MS
    thread = found["sampling_s"] / found["seconds"]
    print(f"a step that is timed: {found['timed'] * 1000:.0f} us more; that is not: {found['untimed'] * 1000:.0f} us")
    print(f"one in {found['stride']} is timed (steps here: {found['step_ms']:.1f} ms of CPU time)")
    print(f"of a {_STEP_MS} ms step: hooks {hooks:.2%}, sampling thread {thread:.2%}, together {hooks + thread:.2%}")
    print(f"of each of the first 128 steps: hooks {found['timed'] / _STEP_MS:.2%}")
    print(f"beside it: gpudoctor {found['beside']:.1%} of one core")
    return 0 if hooks + thread < _MOST_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
