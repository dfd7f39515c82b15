"""A hook whose target another torch release lacks: the run goes on, says what it lost, and knows no phase it did not see."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrain_doctor.evidence import Phase
from fasttrain_doctor.lost import of
from tests.watched import HEAD, assert_sums, watch

LOOP = """
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
for x, y in DataLoader(Points(), batch_size=4):
    opt.zero_grad(); loss = loss_of(net(x), y); loss.backward(); opt.step()
print(loss.item().hex())
"""

# Run at the end of `import torch`, as torch runs the backends of other devices; the probe is armed right after.
SITE = """
import importlib.metadata as metadata
real = metadata.entry_points
def breaks():
    import torch, torch.amp.grad_scaler
    from torch.utils.data import dataloader
    from torch.utils.data._utils import fetch
    exec(GONE)
class Entry:
    name = "breaks"
    def load(self): return breaks
metadata.entry_points = lambda **given: [Entry()] if given.get("group") == "torch.backends" else real(**given)
"""
GONE = {
    "loading": "del dataloader._BaseDataLoaderIter",
    "fetching": "del fetch._IterableDatasetFetcher",
    "optimizer": "import sys; del sys.modules['torch.optim.optimizer'].register_optimizer_step_pre_hook",
    "backward": "del torch.autograd.grad",
    "scaler": "del torch.amp.grad_scaler.GradScaler.unscale_",
    "forward": "del torch.is_grad_enabled",
}
# What torch itself needs later on is put back by the script.
BACK = "import torch\ntorch.is_grad_enabled = torch._C.is_grad_enabled\n"


@pytest.mark.parametrize(("hooks", "unknown"), [
    (("fetching", "optimizer", "scaler"), {Phase.IO, Phase.PREPARE, Phase.OPTIMIZER}),
    (("loading", "forward"), {Phase.IO, Phase.PREPARE, Phase.FORWARD}),
    (("backward",), {Phase.BACKWARD}),
])  # fmt: skip
def test_without_a_hook_the_rest_is_known_and_what_is_lost_is_null(
    hooks: tuple[str, ...], unknown: set[Phase], tmp_path: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    gone = "; ".join(GONE[hook] for hook in hooks)
    (site / "sitecustomize.py").write_text(f"GONE = {gone!r}\n{SITE}")
    seen = watch(BACK + HEAD + LOOP, tmp_path, env={"PYTHONPATH": str(site)})
    assert (seen.code, seen.stderr) == (0, "")
    assert 18 <= seen.steps <= 20
    lost = seen.recorded.degraded()
    assert sorted(line.partition(":")[0] for line in lost) == sorted(f"hook-{hook}" for hook in hooks)
    for hook, line in zip(sorted(hooks), sorted(lost), strict=True):
        loss = of(hook)
        assert loss is not None
        assert line.endswith(loss.words)
    phases = seen.breakdown.phases
    assert {p for p, seconds in phases.items() if seconds is None} == unknown | {Phase.H2D}, "no copies on a CPU"
    assert all(phases[p] for p in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER) if p not in unknown), phases


FROZEN = """
class Frozen(type(nn.Module)):
    def __setattr__(cls, name, value): raise TypeError("this class is finished")
class Model(Net, metaclass=Frozen): pass
patched = []
def replaced(self, *args, call=nn.Module.__call__):
    patched.append(1)
    return call(self, *args)
nn.Module.__call__ = replaced
net = Model(); opt = torch.optim.SGD(net.parameters(), 0.1)
for x, y in DataLoader(Points(), batch_size=4):
    opt.zero_grad(); loss = loss_of(net(x), y); loss.backward(); opt.step()
print(len(patched), nn.Module.__call__ is replaced)
"""


def test_a_frozen_class_and_a_patch_over_ours_lose_nothing(tmp_path: Path) -> None:
    seen = watch(HEAD + FROZEN, tmp_path)
    assert seen.steps == 20
    assert seen.recorded.degraded() == []
    assert seen.phase(Phase.FORWARD) > 0
    assert seen.stdout == f"{20 * 6} True\n", "net, its body and the body's three, and the loss, each time"
    assert_sums(seen.breakdown)
