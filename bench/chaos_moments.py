"""When somebody is hit in a training with chaos."""

from __future__ import annotations

from shoal.observe.phases import Activity, Phase

Moment = Phase | Activity | None  # None: whatever the victim does

IN_STEP = (Phase.READING, Phase.COMPUTING, Phase.EXCHANGING, Phase.APPLYING, Phase.CALLBACKS)
COMING_IN = (Phase.BUILDING, Phase.TRACING, Phase.JOINING)
BETWEEN_FITS = Activity(Phase.SCRIPT, "between two fits")
SAVING = Activity(Phase.SCRIPT, "saving the model")


def fits(doing: Activity, moment: Moment) -> bool:
    return moment in (None, doing.phase, doing)
