"""A watched script behaves as it does alone: what it computes, prints, imports, pickles, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fasttrain_doctor.evidence import Phase
from tests.conftest import environment
from tests.watched import HEAD, assert_sums, run, watch

LOOP = """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for x, y in DataLoader(Points(), batch_size=4, shuffle=True):
    opt.zero_grad(); loss = loss_of(net(x), y); loss.backward(); opt.step()
"""


def alone(
    folder: Path, args: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the script that was watched without the doctor."""
    return subprocess.run(
        [sys.executable, "train.py", *args],
        cwd=folder,
        env=environment(env),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_losses_output_and_exit_code_are_the_scripts_own(workers: int, tmp_path: Path) -> None:
    script = f"""
import random, sys
class Noisy(Points):
    def __getitem__(self, i): return torch.rand(8) + random.random() * 0, i % 4
class Dropped(Net):
    def forward(self, x): return nn.functional.dropout(super().forward(x), 0.2)
net = Dropped(); opt = torch.optim.Adam(net.parameters())
for epoch in range(2):
    for x, y in DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers={workers}):
        opt.zero_grad(); loss = loss_of(net(x), y); loss.backward(); opt.step()
        print(loss.item().hex())
print("done", file=sys.stderr)
sys.exit(7)
"""
    seen = watch(HEAD + script, tmp_path)
    by_itself = alone(tmp_path)
    assert seen.stdout == by_itself.stdout
    assert seen.stdout.count("\n") == 40
    assert (seen.stderr, seen.code) == (by_itself.stderr, by_itself.returncode) == ("done\n", 7)


def test_path_arguments_and_main_are_as_they_would_be(tmp_path: Path) -> None:
    script = """
import json, sys, os
print(json.dumps([sys.path, sys.argv, __name__, __file__, sys.orig_argv, sorted(sys.modules["__main__"].__dict__),
                  os.getcwd(), sys.flags.dont_write_bytecode, sys.getrecursionlimit(), sys.gettrace() is None]))
"""
    _, _, watched, _ = run(script + HEAD + LOOP, tmp_path, args=["--lr", "1"])
    assert json.loads(watched) == json.loads(alone(tmp_path, ["--lr", "1"]).stdout)


def test_the_users_own_sitecustomize_and_pythonpath_are_used(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins; builtins.WELCOME = 'hello from site'\n")
    (site / "helper_of_mine.py").write_text("VALUE = 5\n")
    script = "import helper_of_mine\nprint(WELCOME, helper_of_mine.VALUE)\n"
    seen = watch(script + HEAD + LOOP, tmp_path, env={"PYTHONPATH": str(site)})
    assert seen.stdout == "hello from site 5\n"
    assert seen.steps == 20


def test_the_users_modules_come_first_whatever_their_names(tmp_path: Path) -> None:
    names = ["kernels", "reports", "doctor", "tuners", "utils", "records", "probe", "state", "loop"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"MINE = {name!r}\n")
    script = f"print([__import__(name).MINE for name in {names}])\n"
    seen = watch(script + HEAD + LOOP + script, tmp_path)
    assert seen.stdout == f"{names}\n" * 2
    assert seen.steps == 20


def test_code_that_replaces_the_clock_does_not_confuse(tmp_path: Path) -> None:
    script = """
import time
real = time.sleep
for name in ("perf_counter", "perf_counter_ns", "time", "time_ns", "monotonic", "thread_time_ns", "process_time_ns"):
    setattr(time, name, lambda: 42)
class Slow(Points):
    def __getitem__(self, i): real(0.002); return super().__getitem__(i)
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for x, y in DataLoader(Slow(40), batch_size=2):
    opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
"""
    seen = watch(HEAD + script, tmp_path)
    assert seen.steps == 20
    assert seen.phase(Phase.IO) > 0.003
    assert_sums(seen.breakdown)


def test_what_is_pickled_and_copied_carries_nothing_of_ours(tmp_path: Path) -> None:
    script = """
import copy, io, pickle
loader = DataLoader(Points(), batch_size=4)
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for x, y in loader:
    opt.zero_grad(); loss = loss_of(net(x), y); loss.backward(); opt.step()
for obj in (net, loader, opt, copy.deepcopy(net), copy.copy(loader)):
    data = pickle.dumps(obj)
    assert b"fasttrain" not in data and b"_ftd" not in data, type(obj)
    assert type(pickle.loads(data)) is type(obj)
buffer = io.BytesIO(); torch.save(net, buffer); buffer.seek(0)
assert b"fasttrain" not in buffer.getvalue()
torch.load(buffer, weights_only=False)(x)
print(sorted(net.__dict__), sorted(loader.__dict__), len(list(net.parameters())), net._forward_hooks)
"""
    seen = watch(HEAD + script, tmp_path)
    by_itself = alone(tmp_path)
    assert (seen.code, seen.stdout) == (0, by_itself.stdout), seen.stderr


def test_signatures_that_frameworks_inspect_are_unchanged(tmp_path: Path) -> None:
    script = """
import inspect
for f in (DataLoader.__init__, DataLoader.__iter__, torch.optim.SGD.step, torch.autograd.backward, torch.autograd.grad,
          nn.Module.__call__, nn.Module.forward, torch.save, torch.Tensor.backward, torch.optim.Optimizer.zero_grad):
    print(inspect.signature(f), inspect.isgeneratorfunction(f), f.__name__, f.__module__)
"""
    seen = watch(HEAD + script + LOOP, tmp_path)
    assert seen.stdout == alone(tmp_path).stdout


def test_an_exception_of_the_data_set_comes_once_and_as_it_was(tmp_path: Path) -> None:
    script = """
asked = []
class Bad(Points):
    def __getitem__(self, i):
        asked.append(i)
        if i == 30: raise OSError("bad file")
        return super().__getitem__(i)
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
try:
    for x, y in DataLoader(Bad(), batch_size=2):
        opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
except OSError as error:
    print(error, len(asked))
"""
    seen = watch(HEAD + script, tmp_path)
    assert seen.stdout == "bad file 31\n"
    assert seen.recorded.degraded() == []


BREAKS = '''
import sys
from importlib.util import find_spec

class Breaks:
    """Takes away what one hook is put on, as another torch release might."""
    def find_spec(self, name, path=None, target=None):
        if name != "torch.utils.data._utils.fetch": return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            del module._IterableDatasetFetcher
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Breaks())
'''


def test_a_hook_that_cannot_be_installed_is_noted_and_the_rest_works(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BREAKS)
    seen = watch(HEAD + LOOP, tmp_path, env={"PYTHONPATH": str(site)})
    (lost,) = seen.recorded.degraded()
    assert lost.startswith("hook-fetching: AttributeError")
    assert seen.steps == 20
    assert seen.breakdown.phases[Phase.IO] is None
    assert seen.breakdown.data is not None
    assert_sums(seen.breakdown)


def test_a_script_that_forks_for_itself_is_recorded_as_it_goes(tmp_path: Path) -> None:
    script = """
import os
pid = os.fork()
if pid == 0:
    net = Net()
    os._exit(0)
os.waitpid(pid, 0)
"""
    seen = watch(HEAD + script + LOOP, tmp_path)
    assert seen.steps == 20
    assert len(seen.recorded.trainers) == 1
