"""The page's server needs packages that training does not."""

from __future__ import annotations

from importlib.util import find_spec

from shoal.errors import UsageError


def require(asked: str) -> None:
    """UsageError if they are not installed. `asked`: what needs them."""
    missing = [package for package in ("starlette", "uvicorn") if find_spec(package) is None]
    if missing:
        raise UsageError(
            f"{asked} needs {' and '.join(missing)}, which are not installed: pip install 'shoal[dashboard]'"
        )
