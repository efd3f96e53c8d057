"""The places where Keras is replaced: `fit`, `evaluate`, `predict`, `compile`, `save` and their kin of `keras.Model`.

Where a run has one worker and one piece, Keras's own methods run untouched.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import keras
import msgspec

from shoal.hook.backends.registry import Engines
from shoal.hook.calls import feeds, on_batch
from shoal.hook.calls.chief import acts_alone
from shoal.hook.calls.evaluate import evaluate
from shoal.hook.calls.fit import fit
from shoal.hook.calls.history import history_of, returned_by_fit
from shoal.hook.calls.predict import decode_predictions, encode_predictions, predict
from shoal.hook.keras_private import TF_KERAS, metrics_in_order
from shoal.hook.mesh.laying import scope_of, tell_keras
from shoal.hook.patching import outside_fit
from shoal.hook.patching.chiefs_saves import save_for_all
from shoal.hook.patching.on_import import when_imported
from shoal.hook.planning.choice import planned
from shoal.hook.scopes import Plans, Scopes, strategy_of
from shoal.hook.served.serving import show_tables
from shoal.hook.tables.sharded_embedding import ShardedEmbedding
from shoal.hook.tables.worker_tables import TablesOnServers
from shoal.observe.phases import Phase
from shoal.strategies.scope import entered, watch
from shoal.training.calls import decode_plain, encode_plain
from shoal.training.outcomes import RaisedError, error_like
from shoal.training.prepared import FitArguments
from shoal.training.run import Run

# The function has many names: `tf.keras` is a package of its own, and `from tensorflow.keras` makes one more.
_WITH_SAVE_MODEL = tuple(
    f"{package}.{module}" for package in ("keras", TF_KERAS, "tensorflow.keras") for module in ("models", "saving")
)


def install(run: Run) -> None:
    """Makes `keras.Model` train in this run. Once per process."""
    model_class = keras.Model
    if run.servers is not None:
        tables = run.memory.of(TablesOnServers)
        tables.are_of_server = run.is_server
        ShardedEmbedding.tables_home = tables
    _replace(model_class, "compile", lambda original: _compile(run, original))
    _replace(model_class, "fit", lambda original: _fit(run, original))
    _replace(model_class, "evaluate", lambda original: _evaluate(run, original))
    _replace(model_class, "predict", lambda original: _predict(run, original))
    for name in ("train_on_batch", "test_on_batch"):
        _replace(model_class, name, lambda original, name=name: _on_batch(run, original, name))  # type: ignore[misc]
    _replace(model_class, "predict_on_batch", lambda original: _predict_on_batch(run, original))
    for name in ("save", "save_weights", "export"):
        _replace(model_class, name, lambda original, name=name: _save(run, original, name))  # type: ignore[misc]
    for name in _WITH_SAVE_MODEL:
        when_imported(name, partial(_replace_save_model, run, name))
    outside_fit.install(run)
    watch(lambda: tell_keras(run))
    tell_keras(run)


def _replace_save_model(run: Run, module: str) -> None:
    original = sys.modules[module].save_model
    sys.modules[module].save_model = functools.wraps(original)(_save(run, original, "save_model"))  # type: ignore[attr-defined]


def _replace(cls: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Where it is defined: Keras tells a user's override from its own method by comparing with that class."""
    owner = next(base for base in cls.__mro__ if name in base.__dict__)
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def _is_plain(run: Run, model: Any) -> bool:
    """One worker, one piece, one device, no codec: nothing to distribute."""
    strategy = strategy_of(run, model)
    return run.is_plain and strategy.mesh is None and strategy.leaves_to_keras(run.pieces, run.compress)


def _compile(run: Run, original: Any) -> Any:
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        run.memory.of(Engines).forget(self)
        run.memory.of(Plans).forget(self)
        strategy = entered()
        if strategy is not None:
            run.memory.of(Scopes).keep(self, strategy)
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
        strategy = strategy_of(run, self).settled(partial(planned, run, self, arguments))
        history = run.calls.count(
            "fit",
            lambda call: fit(run, strategy, self, arguments, call),
            returned_by_fit,
            partial(history_of, self),
            waits=False,
        )
        run.rest()  # not after an error, whose report tells what was going on
        return history

    return fit_


def _arguments(signature: inspect.Signature, model: Any, args: Any, kwargs: Any) -> SimpleNamespace:
    """What a call of Keras's method was given, with its own defaults."""
    bound = signature.bind(model, *args, **kwargs)
    bound.apply_defaults()
    return SimpleNamespace(**bound.arguments)


def _evaluate(run: Run, original: Any) -> Any:
    signature = inspect.signature(original)

    def evaluate_(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_plain(run, self) or acts_alone():
            return original(self, *args, **kwargs)
        if not self.compiled:
            raise ValueError("You must call `compile()` before calling `evaluate()`.")
        given = _arguments(signature, self, args, kwargs)
        request = feeds.DataRequest("evaluate", given.x, given.y, given.sample_weight, given.batch_size, given.steps)
        logs = run.calls.count(
            "evaluate",
            lambda call: evaluate(run, strategy_of(run, self), self, request, given.callbacks, given.verbose, call),
            encode_plain,
            decode_plain,
            meanwhile=partial(show_tables, run, self, request) if run.is_server else None,
        )
        run.rest()
        return dict(sorted(logs.items())) if given.return_dict else metrics_in_order(self, logs)

    return evaluate_


def _predict(run: Run, original: Any) -> Any:
    signature = inspect.signature(original)

    def predict_(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_plain(run, self) or acts_alone():
            return original(self, *args, **kwargs)
        given = _arguments(signature, self, args, kwargs)
        request = feeds.DataRequest("predict", given.x, batch_size=given.batch_size, steps=given.steps)
        rows = run.calls.count(
            "predict",
            lambda call: predict(run, self, request, given.callbacks, given.verbose, call),
            encode_predictions,
            decode_predictions,
            meanwhile=partial(show_tables, run, self, request) if run.is_server else None,
        )
        run.rest()
        return rows

    return predict_


def _on_batch(run: Run, original: Any, name: str) -> Any:
    """`train_on_batch` and `test_on_batch`."""
    signature = inspect.signature(original)
    does = {"train_on_batch": on_batch.train_on_batch, "test_on_batch": on_batch.test_on_batch}[name]

    def on_batch_(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_plain(run, self) or run.calls.going_on is not None:
            return original(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs).arguments
        request = feeds.DataRequest(
            name, given["x"], given.get("y"), given.get("sample_weight"), class_weight=given.get("class_weight")
        )
        with run.calls.brief(name):
            logs = does(run, strategy_of(run, self), self, request)
        run.rest()
        return dict(sorted(logs.items())) if given.get("return_dict") else metrics_in_order(self, logs)

    return on_batch_


def _predict_on_batch(run: Run, original: Any) -> Any:
    def predict_on_batch(self: Any, x: Any) -> Any:
        if _is_plain(run, self) or run.calls.going_on is not None:
            with scope_of(run, self):
                return original(self, x)
        with run.calls.brief("predict_on_batch"), scope_of(run, self):
            rows = on_batch.predict_on_batch(run, self, x, original)
        run.rest()
        return rows

    return predict_on_batch


def _save(run: Run, original: Any, name: str) -> Any:
    """The chief writes; the others wait until it has, so that the file is there when the script goes on.

    The chief waits for nobody: `if shoal.is_chief(): model.save(...)` is as good.
    """
    signature = inspect.signature(original)

    def save(*args: Any, **kwargs: Any) -> Any:
        if run.is_plain:
            return original(*args, **kwargs)
        path = str(signature.bind(*args, **kwargs).arguments["filepath"])
        failure = run.wait_for_chief(name, path)
        if failure is None:
            return save_for_all(run, name, path, lambda: original(*args, **kwargs))
        if failure:
            raised = msgspec.msgpack.decode(failure, type=RaisedError)
            raise error_like(
                raised, f"{name}({path!r}) failed on the chief, {raised.member}: {raised.text or raised.kind}"
            )
        return None

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

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._run.count(self._batch_size)
        self._run.record(Phase.TRAINING, step=self._run.counters.steps)
