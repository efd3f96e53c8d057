"""How what PyTorch has computed on a device comes to the host: in one page-locked buffer per type, which stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shoal.strategies.schema import Array


class HostBuffers:
    """Of one engine. What was brought is valid until the next call."""

    def __init__(self) -> None:
        self._by_type: dict[torch.dtype, torch.Tensor] = {}

    def bring(self, tensors: Sequence[Any]) -> list[Array]:
        """All copies are begun before one is waited for: they go on beside each other."""
        sizes: dict[torch.dtype, int] = {}
        places = []
        for tensor in tensors:
            start = sizes.get(tensor.dtype, 0)
            places.append(slice(start, start + tensor.numel()))
            sizes[tensor.dtype] = start + tensor.numel()
        buffers = {dtype: self._buffer(dtype, size) for dtype, size in sizes.items()}
        views = [buffers[t.dtype][place].view(t.shape) for t, place in zip(tensors, places, strict=True)]
        for tensor, view in zip(tensors, views, strict=True):
            view.copy_(tensor, non_blocking=True)
        if any(tensor.is_cuda for tensor in tensors):
            torch.cuda.current_stream().synchronize()
        return [view.numpy() for view in views]

    def _buffer(self, dtype: torch.dtype, size: int) -> torch.Tensor:
        kept = self._by_type.get(dtype)
        if kept is None or kept.numel() < size:
            kept = torch.empty(size, dtype=dtype, device="cpu", pin_memory=torch.cuda.is_available())
            self._by_type[dtype] = kept
        return kept
