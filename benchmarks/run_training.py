"""Trainings with a fault that one rank has, for run_matrix.py: the loops that people write, and what goes wrong.

    torchrun --standalone --nproc-per-node 2 benchmarks/run_training.py tutorial --fault compute --rank 1

`tutorial` is the loop of PyTorch's DDP tutorial series (a dataset, a DistributedSampler, a Trainer class), `fsdp2`
that of its FSDP2 tutorial (fully_shard on each layer and the whole), `accelerate` that of Accelerate's quick tour,
`lightning` a LightningModule, `manual` averages gradients by hand, `single` is one process. All run on CPU ranks.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

_WARM_STEPS = 5


class Fault:
    """What goes wrong, if this is the rank that has it. The loops call it where the fault belongs."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        self.name = args.fault if rank == args.rank else "none"
        self.at = args.at
        self.share = args.share
        self.step = 0
        self.left: list[bytes] = []
        self.began_s = self.began_own_s = 0.0
        self.warm: list[tuple[float, float]] = []
        self.step_s = self.own_s = 0.0

    def in_loop(self) -> bool:
        """Between two steps; whether the loop is to be left."""
        now_s, own_s = time.perf_counter(), time.thread_time()
        if 0 < self.step <= _WARM_STEPS:  # how long a step takes without the fault
            self.warm.append((now_s - self.began_s, own_s - self.began_own_s))
            self.step_s, self.own_s = map(median, zip(*self.warm, strict=True))
        self.step += 1
        if self.step > _WARM_STEPS and self.name == "host":
            time.sleep(self.share * self.step_s)
        if self.step > _WARM_STEPS and self.name == "python":
            compute(self.share * self.step_s)
        if self.name == "leak":
            self.left.append(os.urandom(1 << 10) * 1024)
        if self.step == self.at:
            self.end()
        self.began_s, self.began_own_s = time.perf_counter(), time.thread_time()
        return self.step == self.at and self.name == "leave"

    def in_forward(self) -> None:
        if self.name == "compute" and self.step > _WARM_STEPS:
            compute(self.share * self.own_s)
        if self.name == "blocked" and self.step > _WARM_STEPS:
            time.sleep(self.share * self.step_s)
        if self.name == "hang" and self.step == self.at:
            stand_still()

    def in_data(self, batch: int) -> None:
        """For each item of a batch."""
        if self.name == "data" and self.step > _WARM_STEPS:
            time.sleep(self.share * self.step_s / batch)

    def loss(self, loss: Tensor) -> Tensor:
        return loss * float("nan") if self.name == "nan" and self.step == self.at else loss

    def end(self) -> None:
        if self.name == "raise":
            raise ValueError("label 17 is out of range")
        if self.name == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.name == "exit0":
            sys.exit(0)
        if self.name == "exit0-at-once":
            os._exit(0)
        if self.name == "oom":
            while True:
                self.left.append(os.urandom(1 << 10) * (1 << 14))


def stand_still() -> None:
    time.sleep(10_000)


def compute(seconds: float) -> None:
    """Use a CPU for so long."""
    until_s = time.thread_time() + seconds
    matrix = torch.ones(48, 48)
    with torch.no_grad():
        while time.thread_time() < until_s:
            matrix = (matrix @ matrix).clamp(-1, 1)


class Items(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, count: int, width: int, batch: int, fault: Fault) -> None:
        draw = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, width, generator=draw)
        self.y = torch.randint(0, 10, (count,), generator=draw)
        self.batch, self.fault = batch, fault

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.fault.in_data(self.batch)
        return self.x[index], self.y[index]


class Net(nn.Module):
    def __init__(self, width: int, layers: int, fault: Fault) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)))
        self.head = nn.Linear(width, 10)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        self.fault.in_forward()
        return self.head(self.layers(x))  # type: ignore[no-any-return]


def loader(args: argparse.Namespace, fault: Fault, rank: int, world: int) -> DataLoader[tuple[Tensor, Tensor]]:
    batch = args.batch
    if args.fault == "uneven" and rank == args.rank:
        batch = batch * 3 // 2
    items = Items(args.count * batch * world + args.odd, args.width, batch, fault)
    sampler: DistributedSampler[tuple[Tensor, Tensor]] = DistributedSampler(items, world, rank)
    return DataLoader(items, batch, sampler=sampler, num_workers=args.workers, persistent_workers=args.workers > 0)


class Trainer:
    """As in the tutorial."""

    def __init__(self, args: argparse.Namespace, model: nn.Module, data: DataLoader[tuple[Tensor, Tensor]]) -> None:
        self.args, self.model, self.data = args, model, data
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.steps = 0

    def run_batch(self, source: Tensor, targets: Tensor, fault: Fault) -> None:
        for micro in range(self.args.accumulate):
            if not micro:
                self.optimizer.zero_grad()
            output = self.model(source)
            fault.loss(nn.functional.cross_entropy(output, targets)).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def train(self, fault: Fault) -> None:
        epoch = 0
        while self.steps < self.args.steps:
            self.data.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            for source, targets in self.data:
                if self.steps >= self.args.steps or fault.in_loop():
                    return
                self.run_batch(source, targets, fault)
                self.steps += 1
                if self.args.evaluate and self.steps % self.args.evaluate == 0:
                    self.evaluate()
                if self.args.save and self.steps % self.args.save == 0:
                    self.save()
            epoch += 1

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            for _, (source, targets) in zip(range(8), self.data, strict=False):
                nn.functional.cross_entropy(self.model(source), targets)
        self.model.train()

    def save(self) -> None:
        """By rank 0 alone, as everyone does."""
        if not dist.is_initialized() or dist.get_rank() == 0:
            with tempfile.TemporaryFile() as file:
                torch.save(self.model.state_dict(), file)


def tutorial(args: argparse.Namespace, fault: Fault, rank: int, world: int) -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Net(args.width, args.layers, fault))
    Trainer(args, model, loader(args, fault, rank, world)).train(fault)


def single(args: argparse.Namespace, fault: Fault, rank: int, world: int) -> None:
    Trainer(args, Net(args.width, args.layers, fault), loader(args, fault, rank, world)).train(fault)


def manual(args: argparse.Namespace, fault: Fault, rank: int, world: int) -> None:
    dist.init_process_group("gloo")
    model = Net(args.width, args.layers, fault)
    optimizer = torch.optim.AdamW(model.parameters())
    for source, targets in repeated(loader(args, fault, rank, world), args.steps):
        if fault.in_loop():
            return
        fault.loss(nn.functional.cross_entropy(model(source), targets)).backward()  # type: ignore[no-untyped-call]
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def fsdp2(args: argparse.Namespace, fault: Fault, rank: int, world: int) -> None:
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = Net(args.width, args.layers, fault)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = repeated(loader(args, fault, rank, world), args.steps)
    for source, targets in batches:
        if fault.in_loop():
            return
        loss = fault.loss(nn.functional.cross_entropy(model(source), targets))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()


def accelerate(args: argparse.Namespace, fault: Fault, rank: int, world: int) -> None:
    from accelerate import Accelerator  # type: ignore[import-not-found, unused-ignore]

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    model = Net(args.width, args.layers, fault)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    batch = args.batch * 3 // 2 if args.fault == "uneven" and rank == args.rank else args.batch
    items = Items(args.count * batch * world, args.width, batch, fault)
    data = DataLoader(items, batch, shuffle=True)
    model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
    for source, targets in repeated(data, args.steps * args.accumulate):
        with accelerator.accumulate(model):
            if fault.in_loop():
                return
            loss = fault.loss(nn.functional.cross_entropy(model(source), targets))
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


def lightning(args: argparse.Namespace, fault: Fault, rank: int, world: int) -> None:
    import lightning as framework  # type: ignore[import-not-found, unused-ignore]

    class Module(framework.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(args.width, args.layers, fault)

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
            return fault.loss(nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

        def on_train_batch_start(self, batch: object, index: int) -> int | None:
            return -1 if fault.in_loop() else None

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    trainer = framework.Trainer(
        accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto", max_steps=args.steps, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, use_distributed_sampler=False, barebones=False,
    )  # fmt: skip
    trainer.fit(Module(), loader(args, fault, rank, world))


def repeated(data: DataLoader[tuple[Tensor, Tensor]], steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    made = 0
    while True:
        for batch in data:
            if made >= steps:
                return
            yield batch
            made += 1


TRAININGS = {each.__name__: each for each in (tutorial, fsdp2, accelerate, lightning, manual, single)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("training", choices=TRAININGS)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--at", type=int, default=30, help="the step at which the rank goes wrong")
    parser.add_argument(
        "--share", type=float, default=0.15, help="of a step, that slow compute, data or host time adds"
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--count", type=int, default=50, help="batches of each rank in an epoch")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--odd", type=int, default=0, help="items more, so that the last batch of an epoch is small")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--evaluate", type=int, default=0, help="evaluate after so many steps")
    parser.add_argument("--save", type=int, default=0, help="save after so many steps")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if args.fault == "core" and rank == args.rank:
        os.sched_setaffinity(0, {0})
    TRAININGS[args.training](args, Fault(args, rank), rank, world)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
