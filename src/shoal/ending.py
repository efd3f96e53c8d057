"""The end of this process, at once: no handlers, no waiting for threads."""

from __future__ import annotations

import os
from typing import NoReturn


def end_at_once(code: int) -> NoReturn:
    os._exit(code)
