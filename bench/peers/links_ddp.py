"""torch DistributedDataParallel over gloo, with and without its fp16 hook: step times and bytes, as links_training.py.

links_ddp.py OUT NETWORK; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are in the environment
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from models import CLASSES, HIDDEN, SHAPES
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

SENT = Path("/sys/class/net/cable/statistics/tx_bytes")
STEPS, BATCH = {"large": 7, "conv": 25}, 16


def large() -> nn.Module:
    sizes = (*SHAPES["large"], *HIDDEN["large"])
    return nn.Sequential(
        *(part for i, o in pairwise(sizes) for part in (nn.Linear(i, o), nn.ReLU())), nn.Linear(sizes[-1], CLASSES)
    )


def conv() -> nn.Module:
    blocks = [part for i, o in pairwise((1, 32, 32, 64, 64)) for part in (nn.Conv2d(i, o, 3), nn.ReLU())]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


out, network = sys.argv[1:]
torch.set_num_threads(1)
dist.init_process_group("gloo")
told = {}
for name in ("ddp", "ddp fp16"):
    net = DistributedDataParallel(
        {"large": large, "conv": conv}[network](), bucket_cap_mb=10, gradient_as_bucket_view=True
    )
    if name == "ddp fp16":
        net.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    x = torch.randn(BATCH // dist.get_world_size(), *((1024,) if network == "large" else (1, 28, 28)))
    y = torch.randint(0, 10, (len(x),))
    marks = []
    for _ in range(STEPS[network]):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        marks.append((time.perf_counter(), int(SENT.read_text())))
    told[name] = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(marks)][1:]
if dist.get_rank() == 0:
    Path(out).write_text(json.dumps(told))
