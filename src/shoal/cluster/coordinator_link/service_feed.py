"""Hands on what the coordinator's service says to whoever reads it, in order, and holds no lock meanwhile."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from shoal.cluster.view import View

ForReader = bytes | View | BaseException


class ServiceReader(Protocol):
    """Who reads what the coordinator's service says. Called by the link's thread: it must not wait.

    It may hold locks of its own when it calls the link, and take them when it is called: the link holds none then. One
    that was replaced may still be told something that was on its way.
    """

    def read(self, content: bytes) -> None: ...

    def take(self, view: View) -> None:
        """There is a new view, or this one is the newest when the reader comes."""

    def over(self, why: BaseException) -> None:
        """The run is over for this member: the service says nothing more."""


class ServiceFeed:
    """What the service says is kept until somebody reads it; views and the end are told to who is there."""

    def __init__(self, stands: Callable[[], tuple[View, BaseException | None]]) -> None:
        """`stands`: the newest view, and why the run is over if it is. It must not wait."""
        self._stands = stands
        self._lock = threading.Lock()  # guards what follows; the reader is called without it
        self._untold: deque[ForReader] = deque()  # in order; without a reader, what the service says
        self._is_telling = False  # a thread calls the reader: it will tell what others leave here, too
        self._reader: ServiceReader | None = None

    def read_with(self, reader: ServiceReader | None) -> None:
        """From now on this one reads what the service says, first what came before. None: nobody does again."""
        with self._lock:
            self._reader = reader
            kept = [news for news in self._untold if isinstance(news, bytes)]
            view, why = self._stands()
            begins_with = [] if reader is None else [view]
            self._untold = deque([*begins_with, *kept, *([] if reader is None or why is None else [why])])
        self._tell_all()

    def leave(self, news: ForReader) -> None:
        """For the reader. Returns when it was told, or another thread is about to tell it."""
        with self._lock:
            if self._reader is not None or isinstance(news, bytes):
                self._untold.append(news)
        self._tell_all()

    def _tell_all(self) -> None:
        """What is left for the reader, in order: one thread at a time, which holds no lock meanwhile."""
        while (told := self._next_untold()) is not None:
            reader, news = told
            try:
                match news:
                    case bytes():
                        reader.read(news)
                    case View():
                        reader.take(news)
                    case _:
                        reader.over(news)
            finally:
                with self._lock:
                    self._is_telling = False

    def _next_untold(self) -> tuple[ServiceReader, ForReader] | None:
        with self._lock:
            if self._is_telling or self._reader is None or not self._untold:
                return None
            self._is_telling = True
            return self._reader, self._untold.popleft()
