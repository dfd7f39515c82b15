"""What the user asked to run, as ``python`` itself would understand it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fasttrain_doctor.errors import UsageError

_PYTHON = re.compile(r"^(python|pypy)[\d.]*$")
_WITH_VALUE = "cmWX"  # options of python that take a value; c and m end the options


@dataclass(frozen=True, slots=True)
class Command:
    """A command ready to start.

    Attributes:
        argv: what is executed, the program first.
        kind: ``script`` (python FILE), ``module`` (python -m NAME) or ``program`` (anything else).
        name: the target as the user named it: a path, a module, a program.
        stem: a short name for folders and headings.
        script: the Python file that is run, where it is known.
    """

    argv: tuple[str, ...]
    kind: Literal["script", "module", "program"]
    name: str
    stem: str
    script: Path | None = None


def parse_target(argv: Sequence[str], python: str | None = None) -> Command:
    """Turn ``train.py ARGS``, ``-m pkg.train ARGS`` or ``-- program ARGS`` into a command.

    Everything after the target belongs to it; one ``--`` right after a script or module is dropped.

    Args:
        argv: the words after our own options.
        python: the interpreter for scripts and modules; ours by default.

    Raises:
        UsageError: nothing to run (``no-target``), ``script-missing``, ``script-is-directory``, ``script-unreadable``,
            ``notebook``, ``python-missing``, ``program-missing``, ``isolated-python`` (-I, -E and -S ignore what we inject).
    """
    words = list(argv)
    if not words or words == ["--"]:
        raise UsageError(
            "no-target", "nothing to run: give a script (train.py ARGS), -m MODULE ARGS or -- PROGRAM ARGS"
        )
    if words[0] == "--":
        return _program(words[1:])
    interpreter = _interpreter(python)
    first = words[0]
    if first == "-m":
        if len(words) < 2:
            raise UsageError("no-target", "-m needs the name of a module, as in: -m pkg.train ARGS")
        return Command(
            (interpreter, "-m", words[1], *_drop(words[2:])), "module", words[1], words[1].rpartition(".")[2]
        )
    if first.startswith("-"):
        _refuse_isolation(words)
        raise UsageError("no-target", f"expected a script, -m MODULE or -- PROGRAM, got option {first!r}")
    path = Path(first)
    if not path.exists() and os.sep not in first and path.suffix != ".py" and shutil.which(first):
        return _program(words)
    return Command((interpreter, first, *_drop(words[1:])), "script", first, path.stem, _readable(path))


def _drop(words: list[str]) -> list[str]:
    return words[1:] if words[:1] == ["--"] else words


def _interpreter(python: str | None) -> str:
    if python is None:
        return sys.executable
    found = shutil.which(python)
    if found is None:
        raise UsageError("python-missing", f"--python must name an interpreter that can be run, got {python!r}")
    return found


def _readable(path: Path) -> Path:
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise UsageError(
                "script-is-directory", f"{path} is a directory without a __main__.py; name the script in it"
            )
        path /= "__main__.py"
    elif not path.exists():
        raise UsageError("script-missing", f"no such script: {path} (in {Path.cwd()})")
    if path.suffix == ".ipynb":
        raise UsageError(
            "notebook",
            f"{path} is a notebook, whose cells a kernel runs; make a script of it, e.g. jupyter nbconvert --to script {path}",
        )
    if not os.access(path, os.R_OK):
        raise UsageError("script-unreadable", f"{path} cannot be read: permission denied")
    return path


def _program(words: list[str]) -> Command:
    program = words[0]
    if Path(program).suffix == ".py" and not os.access(program, os.X_OK):
        return parse_target(words)
    if shutil.which(program) is None:
        raise UsageError("program-missing", f"no such program: {program}")
    if _PYTHON.match(Path(program).name):
        _refuse_isolation(words[1:])
    script = next((Path(w) for w in words[1:] if w.endswith(".py") and Path(w).is_file()), None)
    return Command(tuple(words), "program", program, script.stem if script else Path(program).stem, script)


def _refuse_isolation(words: Sequence[str]) -> None:
    """Refuse the flags with which the interpreter ignores PYTHONPATH or ``sitecustomize``."""
    skip = False
    for word in words:
        if skip:
            skip = False
            continue
        if not word.startswith("-") or word.startswith("--") or word == "-":
            return
        for at, letter in enumerate(word[1:], 1):
            if letter in "IES":
                raise UsageError(
                    "isolated-python",
                    f"python {word}: with -{letter} the interpreter ignores what is measured with; run without it",
                )
            if letter in _WITH_VALUE:
                if letter in "cm":
                    return
                skip = at == len(word) - 1
                break
