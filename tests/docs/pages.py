"""The documentation as data: its code blocks, links and inline code."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/shoal"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A fenced block. `directive` is the HTML comment on the line before it."""

    line: int  # of its first line of code, from 1
    language: str
    directive: str
    code: tuple[str, ...]

    @property
    def is_checked(self) -> bool:
        return not self.directive.startswith("not run:")

    def commands(self) -> Iterator[list[str]]:
        """The words of its commands; in a console block, lines without a prompt are output."""
        for line in self.code:
            if self.language == "console" and not line.startswith("$ "):
                continue
            if words := shlex.split(line.removeprefix("$ "), comments=True):
                yield words


@dataclass(frozen=True)
class Page:
    path: Path
    blocks: tuple[Block, ...]
    prose: str  # without the blocks

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    def codes(self) -> list[str]:
        """All inline code."""
        return re.findall(r"`([^`\n]+)`", self.prose)

    def links(self) -> list[str]:
        """Targets of all links that do not leave the repository."""
        targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]+`", "", self.prose))
        return [target for target in targets if "://" not in target]

    def headings(self) -> list[str]:
        return re.findall(r"^#+ (.+)$", self.prose, re.MULTILINE)

    def script(self) -> str:
        """Its Python blocks as one script, each line where it is in the page: tracebacks point to the page."""
        lines: list[str] = []
        for block in self.blocks:
            if block.language == "python" and block.is_checked and not block.directive:
                lines += [""] * (block.line - 1 - len(lines))
                lines += block.code
        return "\n".join(lines)

    def files(self) -> dict[str, str]:
        """The blocks that are to be saved, by name."""
        named = [block for block in self.blocks if block.directive.startswith("file:")]
        return {block.directive.removeprefix("file:").strip(): "\n".join(block.code) for block in named}


def read(path: Path) -> Page:
    blocks, prose, code = [], [], []
    fence: tuple[int, str, str] | None = None
    last = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if fence is None and line.startswith("```"):
            directive = re.fullmatch(r"<!-- (.*) -->", last)
            fence, code = (number + 1, line[3:], directive.group(1) if directive else ""), []
        elif fence is not None and line == "```":
            blocks.append(Block(*fence, tuple(code)))
            fence = None
        elif fence is not None:
            code.append(line)
        else:
            prose.append(line)
        last = line
    assert fence is None, f"{path}: a block is not closed"
    return Page(path, tuple(blocks), "\n".join(prose))


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def has_symbol(path: Path, symbol: str) -> bool:
    """Whether a file defines this function, class or method."""
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for name in symbol.split("."):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found = next((node for node in body if isinstance(node, kinds) and node.name == name), None)
        if found is None:
            return False
        body = found.body
    return True


def source_strings() -> list[str]:
    """Every string in the source, as far as it is fixed."""
    return [node.value for node in _nodes() if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def source_classes() -> set[str]:
    """The name of every class in the source."""
    return {node.name for node in _nodes() if isinstance(node, ast.ClassDef)}


@cache
def _nodes() -> list[ast.AST]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")]
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.Constant)]
