"""Tensors go straight from one worker to others, between exchanges of all and of some, over every transport."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from shoal.collectives.group import AbstractGroup
from shoal.collectives.layout import VectorLayout
from shoal.errors import PeerClosed

from .harness import run_group


@pytest.mark.parametrize("transport", ["shm", "tcp", "aab"])
def test_every_tensor_arrives_whatever_the_order_and_exchanges_go_on_between(transport: str, tmp_path: Path) -> None:
    layout = VectorLayout(8)

    def scene(group: AbstractGroup) -> list[bytes]:
        whole = group.open(layout, 1)
        some = group.among([0, 1]).open(layout, 1) if group.rank < 2 else None
        found = []
        for step in range(3):
            size = 10 + 40_000 * step  # a larger tensor under the same name
            if group.rank == 0:
                for piece in range(4):
                    group.send([1, 2], (piece, 7), [np.full(size, piece + step, np.float32), np.array(piece)])
                group.send([2], (9,), [np.full((2, 3), step, ml_dtypes.bfloat16), np.zeros((0, 4))])
            else:
                order = range(4) if group.rank == 1 else reversed(range(4))
                found += [b"".join(a.tobytes() for a in group.receive(0, (piece, 7), "test")) for piece in order]
                if group.rank == 2:
                    half, nothing = group.receive(0, (9,), "test")
                    assert (half.dtype, nothing.shape) == (np.dtype(ml_dtypes.bfloat16), (0, 4))
                    assert (half == step).all()
            group.flush("test")
            if some is not None:
                some.slot(0).f32[:] = 1.0
                total, _ = some.reduce(f"some {step}", 2, (range(1), range(1, 2)), b"")
                assert (total.f32 == 2.0).all()
            whole.slot(0).f32[:] = 1.0
            total, _ = whole.reduce(f"all {step}", 3, tuple(range(r, r + 1) for r in range(3)), b"")
            assert (total.f32 == 3.0).all()
        whole.close()
        if some is not None:
            some.close()
        return found

    _, first, second = run_group(3, transport, tmp_path, scene)
    assert len(first) == 12
    assert sorted(first) == sorted(second)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_who_waits_for_a_tensor_of_one_who_is_gone_is_told(transport: str, tmp_path: Path) -> None:
    def scene(group: AbstractGroup) -> None:
        if group.rank == 1:
            group.receive(0, (1,), "step 3")

    with pytest.raises(PeerClosed, match="step 3: worker-0 is gone"):
        run_group(2, transport, tmp_path, scene)
