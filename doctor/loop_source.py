"""Finds the loop statement that trains in the user's source, from the lines above backwards and updates."""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

Line = tuple[str, int]  # file, line
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class LoopStatement:
    """A ``for`` or ``while`` of the user's; ``over`` is the source of what it goes over, None for a ``while``."""

    file: str
    first: int
    last: int
    over: str | None


def training_loop(stacks: Sequence[Sequence[Line]]) -> LoopStatement | None:
    """Return the innermost loop in which most of the backwards and updates lie; None where they lie in none.

    Args:
        stacks: for each of them the lines of the user's code that led there, the innermost first.
    """
    found: Counter[LoopStatement] = Counter()
    depth: dict[LoopStatement, int] = {}
    for stack in stacks:
        around = list(dict.fromkeys(loop for line in stack for loop in _around(*line)))
        found.update(around)
        for i, loop in enumerate(around):
            depth[loop] = min(i, depth.get(loop, i))
    return max(found, key=lambda loop: (found[loop], -depth[loop]), default=None)


def _around(file: str, line: int) -> Iterator[LoopStatement]:
    """Yield the loops around a line within its own function, the innermost first."""
    inside: list[ast.AST] = []
    node: ast.AST | None = _tree(file)
    while node is not None:
        inside.append(node)
        node = next((child for child in ast.iter_child_nodes(node) if _covers(child, line)), None)
    for node in reversed(inside):
        if isinstance(node, _SCOPES):
            return
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)) and line >= node.body[0].lineno:
            over = None if isinstance(node, ast.While) else ast.unparse(node.iter)
            yield LoopStatement(file, node.lineno, node.end_lineno or node.lineno, over)


def _covers(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if first is None or last is None:  # such as the body of a comprehension, or an except clause's type
        return any(_covers(child, line) for child in ast.iter_child_nodes(node))
    return bool(first <= line <= last)


@lru_cache(maxsize=32)
def _tree(file: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the user's source, which is run elsewhere
            return ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
