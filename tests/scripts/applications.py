"""Cuts every functional model of keras.applications in 2 and in 4: `applications.py OUT.json`."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path

import keras

from shoal.hook.stages.graph import take_apart
from shoal.strategies.stages import choose_cuts, costs, cut

uneven: dict[str, list[float]] = {}
names = [name for name in dir(keras.applications) if name[0].isupper()]
if keras.backend.backend() == "torch":
    names = [name for name in names if not name.startswith("NASNet")]  # Keras has none there
for name in names:
    make = getattr(keras.applications, name)
    if not callable(make) or "weights" not in inspect.signature(make).parameters:
        continue
    with keras.device("cpu"), keras.StatelessScope():  # shapes are enough: no weights are made
        model = make(weights=None)
    graph = take_apart(model).graph
    found = []
    for count in (2, 4):
        cuts = choose_cuts(graph, count)
        assert len(cut(graph, cuts)) == count
        found.append(max(costs(graph, cuts)) * count / sum(costs(graph, cuts)))
    uneven[name] = found
    keras.backend.clear_session()
Path(sys.argv[1]).write_text(json.dumps(uneven))
