"""Stopping the script for good: streams flushed, workers gone, no handler of the script's run."""

from __future__ import annotations

import os
import signal
import sys

from fasttrain_doctor.probe import segments

_GOING = 1.0  # seconds a killed process may take to go


def stop(code: int) -> None:
    """End this process now. Its epoch counters are no longer its own, so it must not go on or clean up as if done."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()  # type: ignore[union-attr]
        except (OSError, ValueError, AttributeError):
            continue
    kill_children()
    _remove_temporary_folder()
    os._exit(code)


def _remove_temporary_folder() -> None:
    """Remove what multiprocessing made for passing tensors; its own exit function will not run."""
    import multiprocessing
    import shutil

    folder = multiprocessing.current_process()._config.get("tempdir")  # type: ignore[attr-defined]
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def kill_children() -> None:
    """Kill the processes made by multiprocessing here; stopped ones too, which multiprocessing would join for ever."""
    import multiprocessing

    try:
        from torch._C import _remove_worker_pids

        from fasttrain_doctor.probe import arms

        for iterator in arms.live_iterators():
            _remove_worker_pids(id(iterator))  # else torch's SIGCHLD handler raises in the user's loop
    except Exception:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    killed = []
    for child in multiprocessing.active_children():
        if child.pid is not None:
            killed.append(child)
            for number in (signal.SIGKILL, signal.SIGCONT):
                try:
                    os.kill(child.pid, number)
                except OSError:
                    continue
    for child in killed:
        child.join(_GOING)
    segments.remove([child.pid for child in killed if child.pid is not None])
