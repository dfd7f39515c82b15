"""What a script can see of its process, without torch."""

import builtins
import copy
import gc
import io
import logging
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import warnings

from telling import fact

_OURS = ("fasttrain", "FASTTRAIN_DOCTOR")
# Of the standard library, imported before the script's first line; torch imports each of them as well.
_EARLY = {
    "_ctypes",
    "_json",
    "_struct",
    "_typing",
    "_weakrefset",
    "collections.abc",
    "ctypes",
    "ctypes._endian",
    "fcntl",
    "json",
    "json.decoder",
    "json.encoder",
    "json.scanner",
    "signal",
    "struct",
    "threading",
    "typing",
    "typing.io",
    "typing.re",
    "weakref",
    "math",
    "socket",
    "_socket",
}


def status_lines(*names):
    with open("/proc/self/status") as lines:
        return [line.split() for line in lines if line.startswith(names)]


def process():
    """Everything that needs no torch."""

    @fact
    def path():
        return sys.path, sys.argv, sys.orig_argv, os.getcwd(), __name__, sorted(sys.modules["__main__"].__dict__)

    @fact
    def flags():
        return sys.flags, sys.warnoptions, sys.dont_write_bytecode, sys._xoptions, sys.pycache_prefix

    @fact
    def environment():
        known = (
            "PYTHONPATH",
            "WANDB_MODE",
            "NEPTUNE_MODE",
            "COMET_START_ONLINE",
            "CLEARML_OFFLINE_MODE",
            "SWANLAB_MODE",
        )
        return sorted((k, v) for k, v in os.environ.items() if not k.startswith(_OURS) and k not in known)

    @fact
    def signals():
        kinds = [(s.name, signal.getsignal(s)) for s in signal.valid_signals() if isinstance(s, signal.Signals)]
        return sorted(map(str, kinds)), signal.pthread_sigmask(signal.SIG_BLOCK, []), status_lines("Sig", "Shd")[1:]

    @fact
    def threads():
        return (
            [t.name for t in threading.enumerate()],
            threading.active_count(),
            threading.gettrace(),
            threading.getprofile(),
        )

    @fact
    def collector():
        return gc.get_threshold(), gc.isenabled(), gc.get_debug(), gc.get_freeze_count()

    @fact
    def interpreter():
        hooks = sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook, sys.breakpointhook
        return (
            sys.getswitchinterval(),
            sys.getrecursionlimit(),
            sys.gettrace(),
            sys.getprofile(),
            list(map(repr, hooks)),
        )

    @fact
    def recursion():
        def down(n):
            try:
                return down(n + 1)
            except RecursionError:
                return n

        return down(0)

    @fact
    def limits():
        names = sorted(n for n in dir(resource) if n.startswith("RLIMIT_"))
        return [resource.getrlimit(getattr(resource, n)) for n in names], os.umask(0o022), os.nice(0)

    @fact
    def group():
        return os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()

    @fact
    def descriptors_of_a_child():
        words = [sys.executable, "-I", "-S", "-c", "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"]
        return subprocess.run(words, close_fds=False, capture_output=True, text=True).stdout

    @fact
    def descriptors_of_a_fork():
        pid, _got = os.fork(), None
        if pid == 0:
            os._exit(len([fd for fd in range(64) if _inheritable(fd)]))
        return os.waitpid(pid, 0)[1]

    @fact
    def next_descriptor():
        return [os.fstat(fd).st_mode for fd in (0, 1, 2)]

    @fact
    def a_child_with_a_clean_environment():
        words = [sys.executable, "-c", "import sys, os; print(sys.path[1:], sorted(os.environ), sorted(sys.modules))"]
        return subprocess.run(words, env={}, capture_output=True, text=True).stdout

    @fact
    def a_child():
        code = f"import sys; print(sorted(m for m in sys.modules if 'fasttrain' not in m and m not in {_EARLY}), sys.path[1:])"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout

    @fact
    def streams():
        return [(s.name, s.encoding, s.errors, s.line_buffering, s.write_through) for s in (sys.stdout, sys.stderr)]

    @fact
    def shown_warnings():
        return warnings.filters, warnings.showwarning.__module__, logging.getLogger().handlers, logging.root.level

    @fact
    def built_in():
        class Class:
            log = print

        held = io.StringIO()
        stdout, sys.stdout = sys.stdout, held
        try:
            Class().log("from a class")
        finally:
            sys.stdout = stdout
        same = copy.deepcopy(print) is print and pickle.loads(pickle.dumps(print)) is print
        return sorted(dir(builtins)), held.getvalue(), same, print.__name__, print.__module__, print.__self__.__class__

    @fact
    def opened():
        return open is io.open, open.__module__, os.open.__module__, type(open).__name__


def _inheritable(fd):
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def modules(when):
    @fact
    def loaded():
        return when, sorted(m for m in sys.modules if not m.startswith(_OURS) and m not in _EARLY)

    @fact
    def finders():
        others = [
            type(f).__name__ for f in sys.meta_path if not type(f).__module__.startswith((*_OURS, "sitecustomize"))
        ]
        return when, others, len(sys.path_hooks)
