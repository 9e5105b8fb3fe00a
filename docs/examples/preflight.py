"""A training that starts only on a node that is fit: torchrun --nproc-per-node 2 docs/examples/preflight.py

Without GPUs: ... docs/examples/preflight.py rtx4090-4 takes a simulated node for this one, and trains on CPUs.
A further argument puts a fault on it: ... docs/examples/preflight.py rtx4090-4 pcie-width-x8@1
"""

from __future__ import annotations

import gc
import sys

import gpudoctor


def train() -> None:
    """Ten steps of DDP."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else "cpu"
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(10):
        inputs = torch.randn(32, 8, device=device)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"trained: loss {loss.item():.3f}")
    dist.barrier()  # nobody leaves while another still talks to it
    # DDP holds the process group and lies in cycles: freed only as Python ends, it may abort in gloo's threads
    del model, optimizer, loss
    gc.collect()
    dist.destroy_process_group()


def main() -> None:
    node, faults = next(iter(sys.argv[1:]), None), sys.argv[2:]
    try:
        report = gpudoctor.preflight("quick", node=node, faults=faults)  # before torch touches a GPU
    except gpudoctor.NotFitError as error:
        sys.exit(f"not trained: {error}")
    print(f"preflight: {report.reason}")
    train()


if __name__ == "__main__":
    main()
