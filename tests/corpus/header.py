"""The scripts of the corpus, and what the comments at their head say of them.

# backends: jax torch                     on which it runs plain
# agrees: rounding                        with two workers it prints and writes the same numbers
# agrees: trend                           its last numbers are near (another order of samples, other random numbers)
# agrees: refused: adds up over the batch the run ends with these words, which docs/troubleshooting.md explains
# updates: 2 a step                       how often optimizers are applied in a step, if not once
# arguments: --epochs 2                   what follows the script on the command line
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
BACKENDS = ("jax", "tensorflow", "torch")
_LINE = re.compile(r'^(?:#|\s*")\s*#?\s*(backends|agrees|updates|arguments): (.+?)(?:\\n",?|")?\s*$')


@dataclass(frozen=True)
class Script:
    path: Path
    backends: tuple[str, ...]
    agrees: str  # "rounding", "trend" or "refused"
    refusal: str = ""
    updates: int = 1
    arguments: tuple[str, ...] = ()
    chooses: bool = False  # sets KERAS_BACKEND itself

    @property
    def is_notebook(self) -> bool:
        return self.path.suffix == ".ipynb"

    @property
    def name(self) -> str:
        return (
            str(self.path.relative_to(SCRIPTS).with_suffix("")) if self.path.is_relative_to(SCRIPTS) else self.path.stem
        )


def read(path: Path) -> Script:
    """A script or a notebook. Raises ValueError where its head does not say what it must."""
    text = path.read_text()
    said = {found[1]: found[2] for line in text.splitlines() if (found := _LINE.match(line))}
    if not {"backends", "agrees"} <= set(said):
        raise ValueError(f"{path} must say `# backends:` and `# agrees:`")
    backends = tuple(said["backends"].split())
    agrees, _, refusal = said["agrees"].partition(": ")
    if not set(backends) <= set(BACKENDS) or agrees not in ("rounding", "trend", "refused"):
        raise ValueError(f"{path}: backends: {said['backends']}; agrees: {said['agrees']}")
    return Script(
        path,
        backends,
        agrees,
        refusal,
        int(said.get("updates", "1").split()[0]),
        tuple(said.get("arguments", "").split()),
        'environ["KERAS_BACKEND"]' in text.replace("\\", ""),
    )


def all_scripts() -> list[Script]:
    """Modules beside a script say nothing of backends and are none."""
    paths = sorted([*SCRIPTS.rglob("*.py"), *SCRIPTS.rglob("*.ipynb")])
    return [read(path) for path in paths if "backends: " in path.read_text()]
