"""From a sampled frame's code to what it says: file, line, module, and for the innermost what it was calling."""

from __future__ import annotations

import ast
import builtins
import dis
import os
import re
import tokenize
from collections.abc import Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from fasttrain_doctor.probe import state
from fasttrain_doctor.probe.looking_stacks import Frame, Stack

_MOST_SOURCE = 4 << 20  # bytes of one file that are read for it


class Reader:
    """Turns sampled stacks into frames, each place of the code once.

    ``codes`` holds each code object with its globals by identity, ``timers`` the code of timers around transforms.
    """

    def __init__(self, codes: Mapping[int, tuple[CodeType, Mapping[str, Any]]], timers: frozenset[CodeType]) -> None:
        self._codes, self._timers = codes, timers
        self._frames: dict[tuple[int, int, bool], Frame] = {}
        self._stacks: dict[tuple[int, ...], Stack] = {}
        self._lines: dict[str, list[str]] = {}

    def stack(self, key: tuple[int, ...]) -> Stack:
        """Return the frames of a sampled key, innermost first."""
        found = self._stacks.get(key)
        if found is None:
            pairs = zip(key[::2], key[1::2], strict=True)
            found = self._stacks[key] = [self._frame(code, offset, i == 0) for i, (code, offset) in enumerate(pairs)]
        return found

    def _frame(self, number: int, offset: int, innermost: bool) -> Frame:
        code, space = self._codes[number]
        looked = innermost or code.co_name == "fetch"
        found = self._frames.get((number, offset, looked))
        if found is None:
            found = self._frames[number, offset, looked] = self._read(code, space, offset, looked)
        return found

    def _read(self, code: CodeType, space: Mapping[str, Any], offset: int, looked: bool) -> Frame:
        module = str(space.get("__name__", ""))
        line, end, left, right = _position(code, offset)
        user = _is_users(code.co_filename)
        call, callee, enters = "", "", False
        if looked:
            text = self._text(code.co_filename, line, end, left, right)
            opname = dis.opname[code.co_code[offset]] if 0 <= offset < len(code.co_code) else ""
            enters = opname == "BEFORE_WITH" or (opname == "CALL" and self._is_with(code.co_filename, line, text))
            call = _called(text)
            callee = _module_of(call, space)
        return Frame(
            file=os.path.abspath(code.co_filename) if user else code.co_filename,
            line=line,
            function=code.co_name,
            module=module,
            user=user,
            call=call,
            callee=callee,
            enters=enters,
            timed=code in self._timers,
        )

    def _source(self, file: str) -> list[str]:
        found = self._lines.get(file)
        if found is None:
            found = []
            try:
                if os.path.isfile(
                    file
                ):  # code may say it is from a pipe or the terminal: the script reads that, not we
                    with tokenize.open(file) as source:
                        found = source.read(_MOST_SOURCE).split("\n")  # ``splitlines`` also ends one at a form feed
            except (OSError, SyntaxError, ValueError):
                pass
            self._lines[file] = found
        return found

    def _text(self, file: str, line: int, end: int, left: int, right: int) -> str:
        """Return the source of the expression under way, on one line."""
        lines = self._source(file)[line - 1 : end]
        if not lines or left < 0:
            return ""
        cut = [text.encode() for text in lines]  # columns count bytes
        cut[-1] = cut[-1][:right]
        cut[0] = cut[0][left:]
        return b" ".join(part.strip() for part in cut).decode(errors="replace")

    def _is_with(self, file: str, line: int, text: str) -> bool:
        """Whether a call is a ``with``'s own: newer interpreters enter by a plain call of ``__enter__``."""
        lines = self._source(file)[line - 1 : line]
        return bool(lines) and lines[0].lstrip().startswith("with ") and not text.rstrip().endswith(")")


def _position(code: CodeType, offset: int) -> tuple[int, int, int, int]:
    """Return (line, last line, first column, end column) of the instruction at ``offset``, -1 where there is none."""
    for i, (line, end, left, right) in enumerate(code.co_positions()):
        if 2 * i == offset:
            known = line if line is not None else code.co_firstlineno
            return known, end or known, -1 if left is None else left, -1 if right is None else right
    return code.co_firstlineno, code.co_firstlineno, -1, -1


def _called(text: str) -> str:
    """Return the dotted name that a call's text calls: ``a.b`` for ``a.b(c)``, ``.b`` for ``a[0].b(c)``, else ''."""
    try:
        # What escapes say is nothing to us, and Python would warn the script of those that say nothing.
        node: ast.AST = ast.parse(re.sub(r"\\.", "__", text.strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    if not isinstance(node, ast.Call):
        return ""
    names: list[str] = []
    node = node.func
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    names.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(names))


def _module_of(call: str, space: Mapping[str, Any]) -> str:
    """Return the module that a called name belongs to, '' where only running the code could tell."""
    first, *rest = call.split(".")
    if not first:
        return ""
    found = space.get(first, getattr(builtins, first, None))
    # By their types, and a module's own names only: asking what stands for another object could import or open it.
    while issubclass(type(found), ModuleType) and rest:
        inner = vars(found).get(rest[0])
        if inner is None:
            return str(found.__name__)
        found, rest = inner, rest[1:]
    if issubclass(type(found), ModuleType):
        return str(found.__name__)
    if issubclass(type(found), (FunctionType, BuiltinFunctionType, type)):
        return str(found.__module__ or "")
    return ""


def _is_users(file: str) -> bool:
    """Whether a file is the user's own code; the same as ``state.user_line`` goes by."""
    library = file.startswith((state._OURS, "<", state._STDLIB + os.sep))
    return not library and not any(part in file for part in state._LIBRARY)
