"""torch DistributedDataParallel over gloo, on plain torch modules of the same architecture.

Each process finds its RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment, from the bench or from
torchrun. Settings tried and kept, each the best or level with it: buckets of 10 MB (8 % faster than the default 25
here, level with 2 and 5), gradients that live in the buckets, a static graph, the fused SGD kernel; for convolutions
the channels-last layout.

With `--checkpoint` rank 0 saves the weights after each step, and all go on from there when they are started again.
Plain SGD has no other state.
"""

from __future__ import annotations

import argparse
import os
from datetime import timedelta
from itertools import pairwise

import torch
import torch.distributed as dist
from gate import Gate
from models import CLASSES, HIDDEN, LEARNING_RATE, SAMPLES_PER_WORKER, SHAPES, STEPS_PER_EPOCH, data
from stamps import Stamps
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def dense(name: str) -> nn.Module:
    sizes = (*SHAPES[name], *HIDDEN[name])
    hidden = [layer for i, o in pairwise(sizes) for layer in (nn.Linear(i, o), nn.ReLU(inplace=True))]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], CLASSES))


def conv() -> nn.Module:
    def block(i: int, o: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, padding=1), nn.ReLU(inplace=True)]

    return nn.Sequential(
        *block(1, 32), *block(32, 32), nn.MaxPool2d(2), *block(32, 64), *block(64, 64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES),
    )  # fmt: skip


def save(path: str, net: nn.Module, done: int) -> None:
    torch.save({"net": net.state_dict(), "done": done}, f"{path}.new")
    os.replace(f"{path}.new", path)


def load(path: str, net: nn.Module) -> int:
    """The steps that were done before this start."""
    if not os.path.exists(path):
        return 0
    kept = torch.load(path)
    net.load_state_dict(kept["net"])
    return int(kept["done"])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", choices=(*HIDDEN, "conv"), default="mlp")
    options.add_argument("--samples", type=int, default=SAMPLES_PER_WORKER, help="per worker and step")
    options.add_argument("--gate")
    options.add_argument("--stamps", metavar="FOLDER")
    options.add_argument("--checkpoint", metavar="FILE")
    given = options.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if "LOCAL_RANK" in os.environ:  # torchrun gives its workers all cores
        os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"]) % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(hours=2))

    x, y = map(torch.from_numpy, data(given.model, given.samples))
    y = y.long()
    net = conv() if given.model == "conv" else dense(given.model)
    if given.model == "conv":
        x = x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        net = net.to(memory_format=torch.channels_last)
    done = load(given.checkpoint, net) if given.checkpoint else 0
    net = DistributedDataParallel(net, bucket_cap_mb=10, gradient_as_bucket_view=True, static_graph=True)
    optimizer = torch.optim.SGD(net.parameters(), LEARNING_RATE, fused=True)
    loss_of = nn.CrossEntropyLoss()
    gate, stamps = Gate(given.gate), Stamps(given.stamps)
    saves = given.checkpoint and dist.get_rank() == 0
    while True:
        order = torch.randperm(len(x))
        for step in range(STEPS_PER_EPOCH):
            rows = order[step * given.samples : (step + 1) * given.samples]
            loss = loss_of(net(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            stamps.step(done)
            done += 1
            if saves:
                save(given.checkpoint, net.module, done)
            gate.step()


if __name__ == "__main__":
    main()
