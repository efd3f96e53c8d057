"""What the simulator finds."""

from __future__ import annotations


class Wrong(AssertionError):
    """A promise was broken."""
