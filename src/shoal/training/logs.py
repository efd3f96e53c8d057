"""The logs of a step: which of them are a metric's result, to be computed anew from the metrics of all pieces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

Logs = dict[str, Any]


def flat(logs: Any) -> Logs:
    """As Keras shows them: nested ones (`{m.name: m.result() for m in self.metrics}`) by their inner names."""
    found: Logs = {}
    for name, value in (logs or {}).items():
        found |= flat(value) if isinstance(value, dict) else {name: value}
    return found


class MetricResult(msgspec.Struct, frozen=True, array_like=True):
    """One result of a metric."""

    metric: int  # its place among the model's
    key: str | None = None  # of a metric that gives several


Sources = dict[str, MetricResult | None]  # of each log of a step: the metric that it comes from, if one


class MetricLogs:
    """Which logs of a model's step are results of which of its metrics. The others are the step's own."""

    def __init__(self, metrics: Sequence[Any], variables: Sequence[Any], is_mean: Callable[[Any], bool]) -> None:
        self._metrics = list(metrics)
        self._is_mean = is_mean
        places = {id(variable): i for i, variable in enumerate(variables)}
        self._held = [{places[id(v)] for v in metric.variables if id(v) in places} for metric in self._metrics]
        self._given: dict[int, tuple[Any, MetricResult]] = {}
        self._of_rows: dict[int, bool] = {}  # of each metric that the step updates: whether some update counts rows
        self.sources: Sources = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While a step is traced: notes what metrics are told, and what they give.

        A log may have another name than its metric.
        """
        self._of_rows.clear()
        for place, metric in enumerate(self._metrics):
            metric.__dict__["result"] = self._noting_result(place, metric.result)
            metric.__dict__["update_state"] = self._noting_update(place, metric.update_state)
        try:
            yield
        finally:
            for metric in self._metrics:
                del metric.__dict__["result"], metric.__dict__["update_state"]
            self._given.clear()

    def note(self, logs: Logs) -> None:
        """The logs that the watched step returned."""
        named = self._by_name()
        self.sources = {
            name: self._given[id(value)][1] if id(value) in self._given else named.get(name)
            for name, value in logs.items()
        }

    def averaged(self) -> set[int]:
        """The variables of metrics that stay what they are when a step's pieces are averaged, not added.

        A `Mean` that is told the loss of a step counts one, however many pieces the step had. Added, a step of many
        pieces would weigh more in its epoch than one of few: the last batch, if it is small, or all before the number
        of pieces changed.
        """
        alone = (place for place, of_rows in self._of_rows.items() if not of_rows)
        return {i for place in alone if self._is_mean(self._metrics[place]) for i in self._held[place]}

    def of_metrics(self, sources: Sources, updated: Collection[int]) -> dict[str, MetricResult]:
        """The logs that are metrics' results; `updated`: the variables of metrics that the step has updated.

        A log that only shares its name with a metric which the step never updates is the step's own.
        """
        return {
            name: source
            for name, source in sources.items()
            if source is not None and not self._held[source.metric].isdisjoint(updated)
        }

    def results(self, logs: Mapping[str, MetricResult]) -> Logs:
        """What the metrics give now."""
        given = {place: self._metrics[place].result() for place in {source.metric for source in logs.values()}}
        return {name: _pick(given[source.metric], source.key) for name, source in logs.items()}

    def _noting_update(self, place: int, original: Any) -> Any:
        def update_state(*args: Any, **kwargs: Any) -> Any:
            weighted = len(args) > 1 or kwargs.get("sample_weight") is not None
            of_rows = weighted or not all(map(_is_number, (*args, *kwargs.values())))
            self._of_rows[place] = of_rows or self._of_rows.get(place, False)
            return original(*args, **kwargs)

        return update_state

    def _noting_result(self, place: int, original: Any) -> Any:
        def result(*args: Any, **kwargs: Any) -> Any:
            given = original(*args, **kwargs)
            for key, value in given.items() if isinstance(given, dict) else [(None, given)]:
                # Held, so that nothing else gets its id.
                self._given[id(value)] = (value, MetricResult(place, key))
            return given

        return result

    def _by_name(self) -> dict[str, MetricResult]:
        named: dict[str, MetricResult] = {}
        for place, metric in enumerate(self._metrics):
            if not getattr(metric, "built", True):  # the compiled ones, of a step that never uses them
                continue
            given = metric.result()
            if isinstance(given, dict):
                named |= {key: MetricResult(place, key) for key in given}
            else:
                named[metric.name] = MetricResult(place)
        return named


def _is_number(value: Any) -> bool:
    shape = getattr(value, "shape", ())
    return getattr(shape, "rank", 0) is not None and len(shape) == 0


def _pick(given: Any, key: str | None) -> Any:
    return given if key is None else given[key]
