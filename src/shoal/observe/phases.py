"""What a member does: one of a few phases, and what in it. People read it, and tools compare the phase."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Phase(StrEnum):
    """Its value is how it is said."""

    STARTING = "starting"
    SCRIPT = "running the script"  # outside of fit, evaluate and predict
    LOOP = "running the script's loop"  # between two steps of it
    BUILDING = "building the model"
    TRACING = "tracing the training step"
    MEASURING = "measuring for a plan"
    JOINING = "waiting to be let in"
    RESUMING = "resuming"
    TAKING_WEIGHTS = "taking the chief's weights"
    READING = "waiting for data"
    COMPUTING = "computing"
    EXCHANGING = "exchanging gradients"
    APPLYING = "applying the update"
    CALLBACKS = "running callbacks"
    SAVING = "copying for a checkpoint"
    EVALUATING = "evaluating"
    PREDICTING = "predicting"
    GATHERING = "gathering predictions"
    WAITING = "waiting"
    STANDING_BY = "standing by"
    LEAVING = "leaving"
    FINISHED = "finished"
    TRAINING = "training"  # by Keras itself: the run has one worker
    SERVING = "serving"

    @property
    def is_scripts(self) -> bool:
        """Whether it is in the script's own lines, and not in a call in which others may need it."""
        return self in (Phase.STARTING, Phase.SCRIPT)

    @property
    def use(self) -> TimeUse:
        return _USES.get(self, TimeUse.OTHER)


class TimeUse(StrEnum):
    """What a member's time goes into."""

    COMPUTING = "computing"
    EXCHANGING = "exchanging"  # adding up, and what it takes to send
    WAITING = "waiting"  # for other members
    READING = "reading"  # waiting for data
    CALLBACKS = "callbacks"
    OTHER = "other"  # the script's own lines, building, checkpoints


_USES = {
    Phase.COMPUTING: TimeUse.COMPUTING,
    Phase.APPLYING: TimeUse.COMPUTING,
    Phase.EVALUATING: TimeUse.COMPUTING,
    Phase.PREDICTING: TimeUse.COMPUTING,
    Phase.TRAINING: TimeUse.COMPUTING,
    Phase.SERVING: TimeUse.COMPUTING,
    Phase.MEASURING: TimeUse.COMPUTING,
    Phase.EXCHANGING: TimeUse.EXCHANGING,
    Phase.TAKING_WEIGHTS: TimeUse.EXCHANGING,
    Phase.GATHERING: TimeUse.EXCHANGING,
    Phase.WAITING: TimeUse.WAITING,
    Phase.JOINING: TimeUse.WAITING,
    Phase.STANDING_BY: TimeUse.WAITING,
    Phase.READING: TimeUse.READING,
    Phase.CALLBACKS: TimeUse.CALLBACKS,
}


class Activity(msgspec.Struct, frozen=True, array_like=True):
    """What a member does now."""

    phase: Phase = Phase.STARTING
    detail: str = ""  # which piece, whom it waits for

    def __str__(self) -> str:
        return f"{self.phase} {self.detail}" if self.detail else str(self.phase)
