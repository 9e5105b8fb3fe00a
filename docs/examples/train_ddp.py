"""A small DDP training on CPU or GPU that can be made to fail, to try `gpudoctor run` and `gpudoctor diagnose` on.

    gpudoctor run -- torchrun --standalone --nproc-per-node 2 docs/examples/train_ddp.py --slow-rank 1
    torchrun --standalone --nproc-per-node 4 docs/examples/train_ddp.py --hang 2 2>&1 | tee hang.log
    gpudoctor diagnose hang.log

Each option names the RANK that goes wrong, at step `--at`. `--timeout` is that of the process group in seconds.
`--die` is `--exception`; `--slow-rank` computes more in every step.
`--dumps DIR` has every rank write its flight recorder there, while it waits or hangs.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import os
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULTS = ("exception", "sigkill", "sigstop", "segfault", "hang", "mismatch", "shape", "import-error", "silent-exit",
          "early-exit", "nan", "alloc", "full-disk", "never-starts", "params", "eat-memory", "leave")  # fmt: skip


def main() -> None:
    """Train a small model, and go wrong where told to."""
    parser = argparse.ArgumentParser()
    for fault in FAULTS:
        names = ("--exception", "--die") if fault == "exception" else (f"--{fault}",)
        parser.add_argument(*names, type=int, metavar="RANK")
    parser.add_argument("--slow-rank", type=int, metavar="RANK")
    parser.add_argument("--at", type=int, default=12, help="the step at which it goes wrong")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--timeout", type=float, default=20.0)
    parser.add_argument("--dumps", type=Path, metavar="DIR")
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    if args.import_error == rank:
        import flash_attention_of_another_image  # type: ignore[import-not-found]  # noqa: F401
    if args.never_starts == rank:
        time.sleep(10_000)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=datetime.timedelta(seconds=args.timeout))
    torch.manual_seed(0)
    layers = [nn.Linear(256, 256) for _ in range(3 if args.params == rank else 2)]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(256, 1)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        if step == args.at and args.dumps:
            threading.Timer(args.timeout / 2, write_dump, (args.dumps, rank)).start()
        if step == args.at:
            go_wrong(args, rank, device)
        if step == args.at and args.early_exit == rank:
            print("early stopping: no improvement in 8 evaluations", flush=True)
            os._exit(0)
        loss = model(torch.randn(32, 256, device=device)).pow(2).mean()
        if args.slow_rank == rank:
            compute_more(model.module, device)
        if step == args.at and args.nan == rank:
            raise FloatingPointError(f"step {step}: loss is nan")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
    dist.barrier()
    # DDP holds the process group and lies in cycles: freed only as Python ends, it may abort in gloo's threads
    del model, optimizer
    gc.collect()
    dist.destroy_process_group()
    if rank == 0:
        print("training finished", flush=True)


def compute_more(module: nn.Module, device: torch.device) -> None:
    """What makes the slow rank slow: as if its device computed at half the speed."""
    with torch.no_grad():
        for _ in range(4):
            module(torch.randn(32, 256, device=device))


def write_dump(folder: Path, rank: int) -> None:
    """This rank's flight recorder, as torch's own dump on a timeout has it; torch 2.13 records gloo as well."""
    folder.mkdir(parents=True, exist_ok=True)
    Path(folder, f"trace_{rank}").write_bytes(torch._C._distributed_c10d._dump_fr_trace())


def go_wrong(args: argparse.Namespace, rank: int, device: torch.device) -> None:
    """The fault that was asked for, if it is this rank's."""
    if args.exception == rank:
        raise KeyError("<|im_end|>")
    if args.sigkill == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    if args.sigstop == rank:
        os.kill(os.getpid(), signal.SIGSTOP)
    if args.segfault == rank:
        os.kill(os.getpid(), signal.SIGSEGV)
    if args.hang == rank:
        time.sleep(10_000)
    if args.silent_exit == rank:
        os._exit(1)
    if args.leave == rank:
        os._exit(0)
    if args.alloc == rank:
        torch.empty(1 << 46)
    if args.eat_memory == rank:  # 4 GiB at most: run it in a memory cgroup
        print(len([bytearray(os.urandom(1 << 10) * (64 << 10)) for _ in range(64)]), flush=True)
        time.sleep(10_000)
    if args.full_disk == rank:
        with open("/dev/full", "wb") as file:  # noqa: PTH123
            file.write(b"0" * 100_000)
    if args.mismatch is not None:
        value = torch.ones(4, device=device)
        dist.broadcast(value, 0) if args.mismatch == rank else dist.all_reduce(value)
    if args.shape is not None:
        dist.all_reduce(torch.ones(7 if args.shape == rank else 4, device=device))


if __name__ == "__main__":
    main()
