"""Processes of the script end with the one that made them, but not with a thread of it."""

from __future__ import annotations

import subprocess
import sys

CHILD = "from fasttrain_doctor.probe.orphans import die_with_parent as d; print(d(), flush=True); import time; time.sleep({})"
MAKER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD.format(600)!r}])"
THREADED = f"""
import subprocess, sys, threading
def make():
    made.append(subprocess.Popen([sys.executable, '-c', {CHILD.format(0.5)!r}], stdout=subprocess.PIPE))
    print(made[0].stdout.readline().decode().strip(), flush=True)
made = []
t = threading.Thread(target=make)
t.start(); t.join()
sys.exit(made[0].wait())
"""


def test_a_process_ends_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", MAKER], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"True\n"
    parent.kill()
    parent.wait()
    assert parent.stdout.read() == b"", "the pipe ends only when the child has gone as well"


def test_a_process_outlives_the_thread_that_made_it() -> None:
    done = subprocess.run([sys.executable, "-c", THREADED], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("False\n", 0), "not killed when the thread ended"


def test_a_fork_from_the_main_thread_is_protected() -> None:
    source = (
        "import os\nfrom fasttrain_doctor.probe.orphans import die_with_parent\n"
        "pid = os.fork()\nif pid == 0: os._exit(10 if die_with_parent() else 11)\nos._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 10
