"""What is compared: trainings, what a script can see of its process, how it ends, how it is started."""

from __future__ import annotations

from tests.same.running import SCRIPTS, Case, Watch

# In one process one after the other: by name of a function of scripts/trainings.py.
IN_PROCESS = (
    "map_style", "iterable", "all_at_once", "own_generator", "accumulation", "gan", "lbfgs", "amp", "by_hand",
    "no_loader", "copied", "evaluated", "in_a_thread", "checkpointed",
)  # fmt: skip
FORKING = ("fork", "iterable_workers")
SLOWER = ("spawn", "forkserver", "compiled")


def training(*names: str, watch: Watch = "observe") -> Case:
    """Return a case of trainings in one process."""
    return Case("+".join(names) if len(names) < 3 else "all trainings", ("trainings.py", *names), watch=watch)


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "trainings.py", "distributed")

# Modules of the user's with names that the doctor has as well, and what their own site folder runs at the start.
SHADOWS = {f"{name}.py": f"MINE = '{name}'\n" for name in ("doctor", "records", "state", "welcome")} | {
    "kernels/__init__.py": "MINE = 'kernels'\n",
    "tuners/__init__.py": "MINE = 'tuners'\n",
    "mine/sitecustomize.py": "import builtins, sys\nprint('site', sys.flags.optimize)\nbuiltins.WELCOME = 1\n",
    "mine/usercustomize.py": "print('user')\n",
    "mine/user_site.py": "MINE = 'on the path'\n",
    "pkg/__init__.py": "",
    "pkg/train.py": (SCRIPTS / "started.py").read_text(),
    "run.py": "import runpy\nrunpy.run_path('started.py', run_name='__main__')\n",
}
_STRICT = ("-W", "error", "-W", "ignore::DeprecationWarning", "-O", "-X", "frozen_modules=off")


def started(name: str, *words: str, terminal: bool = False, **env: str) -> Case:
    """Return a case of starting the small script in one way or another."""
    env = {"PYTHONPATH": "mine", **env}
    return Case(name, words, SHADOWS, env, terminal=terminal)


STARTED = (
    started("as a script", "started.py", "--lr", "1"),
    started("as a script, failing", "started.py", "--fail"),
    started("as a module", "-m", "pkg.train", "--lr", "1"),
    started("by runpy", "run.py"),
    started("with strict options", *_STRICT, "started.py"),
    started("with a safe path", "started.py", PYTHONSAFEPATH="1"),
    started("without a script's cache", "started.py", PYTHONDONTWRITEBYTECODE="1", PYTHONUNBUFFERED="1"),
    started("in development mode", "-X", "dev", "-W", "ignore", "started.py"),
    started("on a terminal", "started.py", "--fail", terminal=True),
)
SEEN = Case("seen", ("seen.py", "--lr", "1"))
ENDINGS = Case("endings", ("endings.py", "3"))

CASES = (
    *(training(name, watch=w) for name in (*IN_PROCESS, *FORKING, *SLOWER) for w in ("observe", "look")),
    Case("torchrun", TORCHRUN, several=True),
    SEEN,
    ENDINGS,
    *STARTED,
)
