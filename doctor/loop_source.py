"""What the user's source says of the loop: the statement that trains, where its batches come from, what is not followed."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fasttrain_doctor.recorded import Process

Line = tuple[str, int]  # file, line
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class LoopStatement:
    """A ``for`` or ``while`` of the user's; ``over`` is the source of what it goes over, None for a ``while``."""

    file: str
    first: int
    last: int
    over: str | None


# How a script may train where no backward and no optimizer is called in its processes, by what it imports.
_NOT_FOLLOWED = {
    "torch.distributed.autograd": "through torch.distributed.autograd, whose backward and optimizer run by remote calls",
    "torch.distributed.rpc": "by remote procedure calls, whose backward and optimizer run elsewhere",
}
_COUNTING = re.compile(r"^(enumerate|reversed|tqdm|trange|range|tqdm\.tqdm|count|itertools\.count)\b")


def loop_of_process(process: Process) -> LoopStatement | None:
    """Return the loop statement in which a process trains, from the places that its probe noted."""
    return training_loop([[(str(file), int(line)) for file, line in f["stack"]] for f in process.facts_of("at")])


def no_loader(loop: LoopStatement | None) -> str:
    """Say why nothing is known of a loader where the loop asks none that has hooks."""
    over = None if loop is None else loop.over
    if (
        loop is None
        or over is None
        or (_COUNTING.match(over) and "range" in over)
        or over.startswith("itertools.count")
    ):
        return "the loop asks no loader for its batches: they are made between an update and the next forward"
    where = f"{Path(loop.file).name}:{loop.first}"
    return f"batches come from {over[:60]} ({where}), no DataLoader of torch: its time is seen from outside alone"


def not_followed(script: Path | None) -> str | None:
    """Say how a script trains that calls no backward and no optimizer, by its imports; None where they do not tell."""
    tree = None if script is None else _tree(str(script))
    if tree is None:
        return None
    names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return next((how for name, how in _NOT_FOLLOWED.items() if _within(names, name)), None)


def _within(names: set[str], module: str) -> bool:
    return any(name == module or name.startswith(module + ".") for name in names)


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
        if not Path(file).is_file():  # a pipe or a terminal: opening it would wait for somebody
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the user's source, which is run elsewhere
            return ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
