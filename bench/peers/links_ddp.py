"""torch DistributedDataParallel over gloo, with and without its fp16 hook: step times and bytes, as links_training.py.

links_ddp.py FOLDER NETWORK BATCH; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are in the environment
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from models import CLASSES, HIDDEN, SHAPES
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from turns import PEER, Marks, turns


def large() -> nn.Module:
    sizes = (*SHAPES["large"], *HIDDEN["large"])
    return nn.Sequential(
        *(part for i, o in pairwise(sizes) for part in (nn.Linear(i, o), nn.ReLU())), nn.Linear(sizes[-1], CLASSES)
    )


def conv() -> nn.Module:
    blocks = [part for i, o in pairwise((1, 32, 32, 64, 64)) for part in (nn.Conv2d(i, o, 3), nn.ReLU())]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def made(network: str, method: str) -> DistributedDataParallel:
    net = {"large": large, "conv": conv}[network]()
    parallel = DistributedDataParallel(net, bucket_cap_mb=10, gradient_as_bucket_view=True)
    if method == "ddp fp16":
        parallel.register_comm_hook(None, fp16_compress_hook)
    return parallel


def main(folder: Path, network: str, batch: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    nets = {method: made(network, method) for method in ("ddp", "ddp fp16")}
    rows = batch // dist.get_world_size()
    x = torch.randn(rows, *((1024,) if network == "large" else (1, 28, 28)))
    y = torch.randint(0, CLASSES, (rows,))
    for turn in turns(folder, PEER):
        net, marks = nets[turn.method], Marks(1, turn.skipped)
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        for _ in range(turn.skipped + turn.steps + 1):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            marks.add()
        if dist.get_rank() == 0:
            turn.answer(marks)


main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
