"""A tiny process beside the doctor: when the doctor dies, however it dies, it ends the script and restores its files.

Run by path with ``python -I -S``: standard library only. Its standard input is a pipe whose other end only the doctor
holds: one line ``pid N`` for each process to end with the token's, ``bye`` at an orderly end; an end without ``bye``
means that the doctor is gone.

    python -I -S watchdog.py PACKAGE_FOLDER TOKEN [RUN_FOLDER]
"""

from __future__ import annotations

import os
import signal
import sys
import types


def main(argv: list[str]) -> int:
    """Wait for the doctor's end; clean up unless it said that it had."""
    package, token = argv[1], argv[2]
    run = argv[3] if len(argv) > 3 else None
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    stub = types.ModuleType("fasttrain_doctor")  # -S knows no site-packages; the package's own __init__ is not needed
    stub.__path__ = [package]
    sys.modules["fasttrain_doctor"] = stub
    from fasttrain_doctor import descendants

    roots: set[int] = set()
    for line in sys.stdin:
        if line == "bye\n":
            return 0
        word, _, number_said = line.partition(" ")
        if word == "pid":
            roots.add(int(number_said))
    names: set[str] = set()
    pids: set[int] = set(roots)

    def find() -> list[descendants.Process]:
        found = descendants.members(token, roots)
        pids.update(p.pid for p in found)
        return found

    names.update(descendants.segments(p.pid for p in find()))
    descendants.end(find, grace=0.5)
    descendants.remove_segments(names, pids)
    if run is not None and os.path.isdir(run):  # noqa: PTH112
        from fasttrain_doctor.journal import restore

        restore(run)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
