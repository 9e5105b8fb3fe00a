"""A small DDP training, to try `gpudoctor run` on: healthy by default, with one fault on request.

    gpudoctor run -- torchrun --standalone --nproc-per-node 2 docs/examples/train_ddp.py --slow-rank 1

It needs no GPU. On GPUs, each rank takes the one of its LOCAL_RANK.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--slow-rank", type=int, help="this rank computes half as much again")
parser.add_argument("--die", type=int, help="this rank raises an error half way")
parser.add_argument("--hang", type=int, help="this rank stops in its forward half way")
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self, width: int = 512, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)))
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if step == args.steps // 2 and rank == args.hang:
            time.sleep(3600)  # stands for whatever may hang
        if step == args.steps // 2 and rank == args.die:
            raise RuntimeError("a fault, put here on purpose")
        features = self.layers(x)
        if rank == args.slow_rank:
            features = features + 0.0 * self.layers(x)
        return self.head(features)


on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
rank = dist.get_rank()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
step = 0
torch.manual_seed(rank)
data = TensorDataset(torch.randn(4096, 512), torch.randn(4096, 1))
loader = DataLoader(data, batch_size=64, sampler=DistributedSampler(data), drop_last=True)
model = DistributedDataParallel(Net().to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

while step < args.steps:
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step == args.steps:
            break
if rank == 0:
    print(f"step {step}, loss {loss.item():.4f}")
dist.destroy_process_group()
