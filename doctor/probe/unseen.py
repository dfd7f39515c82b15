"""Keeps the hooks' own frames from what a script sees of its calls: tracebacks, warnings, what torch compiles.

A function in Python cannot call another without a frame, so ``sys._getframe`` still shows it. Everything that reports an
error or a warning to a person goes by the traceback or the stack level, and those are put right here.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

_hooks: set[CodeType] = set()
_skipped: set[CodeType] = set()

# ``warnings.warn(stacklevel=...)`` passes over frames whose file has both words in its name (3.3 to 3.14): a warning
# about the caller is then about the hooked function's caller, as without the hook.
FILE = "<fasttrain_doctor, passed over like importlib._bootstrap>"


def wraps(original: Any, *, compiled: bool = False) -> Callable[[Any], Any]:
    """Return ``functools.wraps(original)`` for a function whose frame counts as none where a warning is placed.

    Args:
        original: what the function stands in for.
        compiled: whether torch may compile it: a module's call, which is where ``torch.compile(module)`` begins.
    """

    def made(function: Any) -> Any:
        return functools.wraps(original)(pass_over(function, compiled=compiled))

    return made


def pass_over(function: Any, *, compiled: bool = False) -> Any:
    """Let warnings pass over this function's frame; returns the function."""
    function.__code__ = function.__code__.replace(co_filename=FILE)
    if not compiled:
        _hooks.add(function.__code__)
    return function


def is_compiling() -> Callable[[], bool]:
    """Return torch's own answer to whether dynamo is compiling the caller; torch 2.1 and 2.2 have it elsewhere."""
    import torch

    answer: Any = getattr(torch.compiler, "is_compiling", None) or getattr(torch._utils, "is_compiling", bool)
    return answer  # type: ignore[no-any-return]


def strip(error: BaseException) -> None:
    """Take the frame that has caught ``error`` out of its traceback, and hooks' own errors out of its context.

    Follow it with a bare ``raise``.
    The interpreter adds a frame to a traceback where an error is raised or comes out of a call, but not where it is
    re-raised by a bare ``raise`` or the end of a ``finally`` (CPython 3.8 to 3.14): the caller's frame comes next.
    """
    trace = error.__traceback__
    if trace is not None:
        error.__traceback__ = trace.tb_next
    while error.__context__ is not None:  # a hook that failed has gone on where it caught its own error
        inner = error.__context__
        if inner.__traceback__ is not None and inner.__traceback__.tb_frame.f_code.co_filename == FILE:
            error.__context__ = inner.__context__
        else:
            error = inner


def skip_when_compiling() -> None:
    """Keep dynamo from compiling this package's own functions where a script runs them: it counts and warns of them.

    Called from a compiled function they are still looked through. Called again for modules that came since.
    """
    from torch._dynamo.eval_frame import skip_code  # torch 2.0 to 2.14

    for name, module in list(sys.modules.items()):
        if name.startswith("fasttrain_doctor"):
            for value in list(vars(module).values()):
                for member in vars(value).values() if isinstance(value, type) else (value,):
                    function = getattr(member, "fget", getattr(member, "__func__", member))
                    if isinstance(function, FunctionType) and function.__module__ == name:
                        _skip(function.__code__, skip_code)
    for code in _hooks - _skipped:
        _skip(code, skip_code)


def _skip(code: CodeType, skip_code: Callable[[CodeType], None]) -> None:
    if code in _skipped:
        return
    _skipped.add(code)
    skip_code(code)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            _skip(inner, skip_code)
