from __future__ import annotations

import pytest

from shoal.cluster.identity import Identity, installed_version, instruction_set, kernel_choice
from shoal.cluster.view import View

from .scene import IDENTITY, config, member


def test_ranks_follow_the_numbers_not_the_letters():
    view = View.of(1, [member(10), member(2), member(0)])
    assert [m.id for m in view.workers] == ["worker-0", "worker-2", "worker-10"]
    assert view.chief.id == "worker-0"
    assert view.rank("worker-10") == 2


def test_asking_for_the_rank_of_a_stranger_says_who_is_there():
    with pytest.raises(ValueError, match=r"worker-3 is not a worker of view 1 \(worker-0, worker-1\)"):
        View.of(1, [member(0), member(1)]).rank("worker-3")


def test_an_identity_is_read_without_importing_anything_heavy():
    identity = Identity.of_this_process(config(workers=3))
    assert (identity.backend, identity.threads, identity.pieces) == ("jax", 1, 3)
    assert identity.keras == installed_version("keras") != "unknown"
    assert identity.instructions == instruction_set()
    assert identity.differences("a", identity, "b") == ()


def test_differences_name_both_values_and_whose_they_are():
    other = Identity("jax", "0.11", "3.15", "2.4", 1, 2, "x86_64 avx2")
    assert other.differences("worker-1", IDENTITY, "worker-0") == (
        "backend version is '0.11' on worker-1 and '0.10' on worker-0",
    )


def test_only_what_decides_kernels_counts_the_makers_name_too():
    flags = ["flags\t\t: fpu avx2 avx fma hypervisor avx512f pti", "flags : other"]
    intel, amd = (["processor : 0", f"vendor_id : {name}", *flags] for name in ("GenuineIntel", "AuthenticAMD"))
    assert kernel_choice(intel) == ["GenuineIntel", "avx", "avx2", "avx512f", "fma"]
    assert kernel_choice(intel) != kernel_choice(amd), "MKL sums in another order on each"
    assert kernel_choice(["Features : fp asimd sve", "CPU implementer : 0x41"]) == ["asimd", "sve"]
    assert kernel_choice([]) == []
