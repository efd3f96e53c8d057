"""Random numbers without a seed are the run's: in a process of its own, since they are the process's."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

SCRIPT = """
import json, multiprocessing, random, sys, threading
import numpy as np
from shoal.hook.patching.chance import leave_nothing_to_chance

def draw():
    return int(np.random.default_rng().integers(2**62))

leave_nothing_to_chance(int(sys.argv[1]))
drawn = {
    "python": random.random(),
    "numpy": np.random.random(),
    "generators": [draw(), draw()],
    "sequence": str(np.random.SeedSequence().entropy),
    "legacy": float(np.random.RandomState().random()),
    "seeded": float(np.random.default_rng(5).random()),
}
in_thread = []
thread = threading.Thread(target=lambda: in_thread.append(draw()))
thread.start()
thread.join()
with multiprocessing.get_context("fork").Pool(1) as pool:
    own = {"thread": in_thread[0], "child": pool.apply(draw)}
drawn["after"] = draw()
print(json.dumps([drawn, own]))
"""


def drawn(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    words = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(seed)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    alike, own = json.loads(result.stdout)
    return alike, own


def test_numbers_without_a_seed_are_alike_on_all_workers_and_differ_within_one() -> None:
    (one, own_one), (other, own_other), (another_run, _) = drawn(7), drawn(7), drawn(8)
    assert one == other
    assert one["generators"][0] != one["generators"][1]
    differing = {name for name in one if one[name] != another_run[name]}
    assert differing == one.keys() - {"seeded"}
    # Other threads and child processes draw their own, and disturb nobody's.
    assert len({own_one["thread"], own_other["thread"], own_one["child"], own_other["child"]}) == 4
