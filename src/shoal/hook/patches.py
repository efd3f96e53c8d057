"""The places where Keras is replaced: `fit`, `evaluate`, `predict`, `compile`, `save` and their kin of `keras.Model`.

Where a run has one worker and one piece, Keras's own methods run untouched.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import keras

from shoal.errors import CannotDistribute
from shoal.hook import engines, feeds, sharded_embedding
from shoal.hook.calls import decode_plain, decode_predictions, encode_plain, encode_predictions
from shoal.hook.evaluate import evaluate
from shoal.hook.fit import fit, replay
from shoal.hook.predict import predict
from shoal.hook.preload import check_backend
from shoal.hook.run import Run
from shoal.hook.training import FitArguments, returned_by_fit
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.parameter_server import ParameterServer
from shoal.strategies.scope import Strategy, entered

_strategies: weakref.WeakKeyDictionary[Any, Strategy] = weakref.WeakKeyDictionary()


def install(run: Run) -> None:
    """Makes `keras.Model` train in this run. Once per process."""
    model_class = keras.Model
    if run.servers is not None:
        sharded_embedding.live_on_servers(run.is_server)
    _replace(model_class, "compile", lambda original: _compile(original))
    _replace(model_class, "fit", lambda original: _fit(run, original))
    _replace(model_class, "evaluate", lambda original: _evaluate(run, original))
    _replace(model_class, "predict", lambda original: _predict(run, original))
    _replace(model_class, "train_on_batch", lambda original: _train_on_batch(run, original))
    for name in ("save", "save_weights", "export"):
        _replace(model_class, name, lambda original, name=name: _save(run, original, name))  # type: ignore[misc]
    for module in (keras.saving, keras.models):
        module.save_model = _save(run, module.save_model, "save_model")


def _replace(cls: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Where it is defined: Keras tells a user's override from its own method by comparing with that class."""
    owner = next(base for base in cls.__mro__ if name in base.__dict__)
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def _strategy_of(run: Run, model: Any) -> Strategy:
    """What its scope says; else what `shoal run` was told."""
    return _strategies.get(model) or entered() or (AllReduce() if run.servers is None else ParameterServer())


def _pieces_of(run: Run, model: Any) -> AllReduce:
    """How `evaluate` divides its work: whatever the model trains with."""
    strategy = _strategy_of(run, model)
    return strategy if isinstance(strategy, AllReduce) else AllReduce()


def _is_plain(run: Run, model: Any) -> bool:
    """One worker, one piece: nothing to distribute."""
    return run.is_plain and _pieces_of(run, model).pieces_for(run.pieces, 1) == 1


def _compile(original: Any) -> Any:
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        check_backend()
        engines.forget(self)
        strategy = entered()
        if strategy is not None:
            _strategies[self] = strategy
        return original(self, *args, **kwargs)

    return compile


def _fit(run: Run, original: Any) -> Any:
    signature = inspect.signature(original)

    def fit_(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        given.pop("self")
        if _is_plain(run, self):
            return original(self, **_with_reporter(run, given))
        arguments = FitArguments(**given)
        history = run.calls.count(
            lambda call: fit(run, _strategy_of(run, self), self, arguments, call),
            returned_by_fit,
            partial(replay, self),
            waits=False,
        )
        run.rest()  # not after an error, whose report tells what was going on
        return history

    return fit_


def _evaluate(run: Run, original: Any) -> Any:
    def evaluate_(
        self: Any,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        if _is_plain(run, self):
            return original(self, x, y, batch_size, verbose, sample_weight, steps, callbacks, return_dict, **kwargs)
        if not self.compiled:
            raise ValueError("You must call `compile()` before calling `evaluate()`.")
        request = feeds.Request("evaluate", x, y, sample_weight, batch_size, steps)
        logs = run.calls.count(
            lambda call: evaluate(run, _pieces_of(run, self), self, request, callbacks, verbose),
            encode_plain,
            decode_plain,
        )
        run.rest()
        return logs if return_dict else self._flatten_metrics_in_order(logs)

    return evaluate_


def _predict(run: Run, original: Any) -> Any:
    def predict_(
        self: Any,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        if _is_plain(run, self):
            return original(self, x, batch_size, verbose, steps, callbacks)
        request = feeds.Request("predict", x, batch_size=batch_size, steps=steps)
        rows = run.calls.count(
            lambda call: predict(run, self, request, callbacks, verbose),
            encode_predictions,
            decode_predictions,
        )
        run.rest()
        return rows

    return predict_


def _train_on_batch(run: Run, original: Any) -> Any:
    def train_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not run.is_plain:
            raise CannotDistribute(
                "train_on_batch() would train each worker's copy of the model by itself. Use fit(), whose batches are "
                "divided among the workers, or run this script with one worker."
            )
        return original(self, *args, **kwargs)

    return train_on_batch


def _save(run: Run, original: Any, name: str) -> Any:
    """The chief writes; the others wait until it has, so that the file is there when the script goes on.

    The chief waits for nobody: `if shoal.is_chief(): model.save(...)` is as good.
    """
    signature = inspect.signature(original)

    def save(*args: Any, **kwargs: Any) -> Any:
        if run.is_plain:
            return original(*args, **kwargs)
        path = str(signature.bind(*args, **kwargs).arguments["filepath"])
        if run.wait_for_chief(name, path):
            return None
        try:
            return original(*args, **kwargs)
        finally:
            run.announce(name, path)

    return save


def _with_reporter(run: Run, given: dict[str, Any]) -> dict[str, Any]:
    """Adds a callback that tells `shoal status` how plain Keras gets on."""
    callbacks = given.get("callbacks")
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return given
    listed = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []
    return given | {"callbacks": [*listed, _Reporter(run, given.get("batch_size"))]}


class _Reporter(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts steps and samples."""

    async_safe = True  # so that Keras still calls callbacks in the background

    def __init__(self, run: Run, batch_size: int | None) -> None:
        super().__init__()
        self._run = run
        self._batch_size = batch_size or feeds.DEFAULT_BATCH_SIZE
        self._step = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step += 1
        self._run.count(self._batch_size)
        self._run.say("training", self._step)
