"""On the path of a plain run: at its end, says into the file PROBE how many updates its optimizers made."""

import atexit
import importlib.abc
import importlib.util
import os
import sys

optimizers = []
loaded = {}  # updates that an optimizer has from a file (or has lost to one), by its id
steps_of_torch = [0]


def _iterations(optimizer):
    value = optimizer._iterations.value  # `iterations` counts accumulated gradients once
    return int(value.numpy()) if hasattr(value, "numpy") else int(value)  # a mirrored variable has no int


def _watch_keras(keras):
    construct = keras.optimizers.Optimizer.__init__

    def __init__(self, *args, **kwargs):
        construct(self, *args, **kwargs)
        optimizers.append(self)

    load = keras.optimizers.Optimizer.load_own_variables

    def load_own_variables(self, store):
        before = _iterations(self)
        load(self, store)
        loaded[id(self)] = loaded.get(id(self), 0) + _iterations(self) - before

    keras.optimizers.Optimizer.__init__ = __init__
    keras.optimizers.Optimizer.load_own_variables = load_own_variables


def _watch_torch(torch):
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def count(*_):
        steps_of_torch[0] += 1

    register_optimizer_step_post_hook(count)


def _updates():
    # An optimizer within another (loss scaling) is counted once, as is one that was made and never used.
    inner = {id(o): o.inner_optimizer for o in optimizers if hasattr(o, "inner_optimizer")}
    counted = {id(inner.get(id(o), o)): inner.get(id(o), o) for o in optimizers}  # the inner one counts
    made = sum(_iterations(o) - loaded.get(id(o), 0) for o in counted.values())
    return steps_of_torch[0] + made


class _Finder(importlib.abc.MetaPathFinder):
    """Finds a module as everyone else would; it is watched once it is executed, which who only looks never does."""

    def __init__(self, name, watch):
        self.name, self.watch, self.looks = name, watch, False

    def find_spec(self, name, path, target=None):
        if name != self.name or self.looks:
            return None
        self.looks = True
        spec = importlib.util.find_spec(name)
        self.looks = False
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = self.then(spec.loader.exec_module)
        return spec

    def then(self, load):
        def exec_module(module):
            load(module)
            self.watch(module)

        return exec_module


def _say():
    if "keras" not in sys.modules:  # a process around the one that trains
        return
    with open(os.environ["PROBE"], "w") as file:
        file.write(str(_updates()))


if "PROBE" in os.environ:
    sys.meta_path[:0] = [_Finder("keras", _watch_keras), _Finder("torch.optim", _watch_torch)]
    atexit.register(_say)
