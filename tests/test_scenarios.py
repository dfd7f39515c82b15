"""Situations in which other profilers blamed the wrong part, each by its name. All must come out right here.

The scripts wait for known times; what they wait must come back in the right part of the step, and in no other.
"""

from __future__ import annotations

import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from fasttrain_doctor.evidence import Phase
from tests.loop_batch import watch_all
from tests.loop_shape import LEARN, SGD, Shape
from tests.watched import HEAD, Seen, assert_sums, watch

WAITS = """
class Waits(Points):
    def __getitem__(self, i): time.sleep(0.002); return super().__getitem__(i)
"""

SHAPES = [
    Shape("io", WAITS + SGD + "for x, y in DataLoader(Waits(), batch_size=4):\n    " + LEARN, steps=20),
    Shape(
        "io_with_workers",
        WAITS.replace("0.002", "0.01")
        + SGD
        + "for x, y in DataLoader(Waits(), batch_size=2, num_workers=2):\n    "
        + LEARN,
        steps=40,
    ),
    Shape(
        "io_in_transform",
        SGD
        + """
        class Late(nn.Module):
            def forward(self, x): time.sleep(0.002); return x
        class Changed(Points):
            transform = nn.Sequential(Late(), nn.Identity())
            def __getitem__(self, i): x, y = super().__getitem__(i); return self.transform(x), y
        for x, y in DataLoader(Changed(), batch_size=4):
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        steps=20,
    ),
    Shape(
        "logging_pause",
        SGD
        + """
        import logging
        class Remote(logging.Handler):
            def emit(self, record): time.sleep(0.15)
        log = logging.getLogger("train"); log.addHandler(Remote()); log.setLevel("INFO")
        for i, (x, y) in enumerate(DataLoader(Points(), batch_size=4)):
            opt.zero_grad(); loss = loss_of(net(x), y)
            if i % 5 == 3: log.info("loss %s", loss.item())
            loss.backward(); opt.step()
        """,
        steps=20,
    ),
    Shape(
        "pause_after_the_optimizer",
        SGD
        + """
        for i, (x, y) in enumerate(DataLoader(Points(), batch_size=4)):
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
            if i % 5 == 3: time.sleep(0.15)
        """,
        steps=20,
    ),
    Shape(
        "validation_between_epochs",
        SGD
        + """
        train, val = DataLoader(Points(40), batch_size=4), DataLoader(Points(16), batch_size=8)
        for epoch in range(3):
            for x, y in train:
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
            net.eval()
            with torch.no_grad():
                for x, y in val: net(x); time.sleep(0.15)
            net.train()
        """,
        steps=30,
        roles=("train", "eval"),
    ),
    Shape(
        "gan",
        """
        g, d = Net(8), Net(1)
        og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
        for x, _ in DataLoader(Points(), batch_size=4):
            od.zero_grad(); (d(g(torch.randn(4, 8)).detach()).mean() - d(x).mean()).backward(); od.step()
            og.zero_grad(); (-d(g(torch.randn(4, 8))).mean()).backward(); og.step()
        """,
        steps=20,
    ),
    Shape(
        "batch_without_a_loader",
        SGD
        + """
        data = torch.randn(100, 8)
        for i in range(25):
            time.sleep(0.004)  # a read
            at = torch.randint(100, (4,)); x, y = data[at], at % 4
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        found_by="optimizer",
        steps=24,
        roles=(),
    ),
    Shape(
        "validation_with_a_loader_and_training_without",
        SGD
        + """
        val = DataLoader(Points(16), batch_size=8)
        for i in range(25):
            time.sleep(0.004); x, y = torch.randn(4, 8), torch.arange(4)
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
            if i % 4 == 3:
                net.eval()
                with torch.no_grad():
                    for u, v in val: net(u); time.sleep(0.02)
                net.train()
        """,
        found_by="optimizer",
        steps=24,
        roles=("eval",),
    ),
    Shape(
        "forward_called_directly",
        SGD
        + """
        def late(x): time.sleep(0.004); return Net.forward(net, x)
        net.forward = late
        for x, y in DataLoader(Points(), batch_size=4):
            opt.zero_grad(); loss = loss_of(net.forward(x), y); loss.backward(); opt.step()
        """,
        steps=20,
    ),
    Shape(
        "autograd_grad",
        """
        net = Net(); weights = list(net.parameters())
        for x, y in DataLoader(Points(), batch_size=4):
            for p, g in zip(weights, torch.autograd.grad(loss_of(net(x), y), weights)): p.data.sub_(0.1 * g)
        """,
        found_by="backward",
        steps=20,
    ),
    Shape(
        "update_by_hand",
        """
        net = Net()
        for x, y in DataLoader(Points(), batch_size=4):
            net.zero_grad(); loss_of(net(x), y).backward()
            with torch.no_grad():
                time.sleep(0.004)
                for p in net.parameters(): p.data.add_(p.grad, alpha=-0.1)
        """,
        found_by="backward",
        steps=20,
    ),
    Shape(
        "accumulation",
        WAITS
        + SGD
        + textwrap.dedent("""
        for i, (x, y) in enumerate(DataLoader(Waits(), batch_size=2)):
            (loss_of(net(x), y) / 4).backward()
            if i % 4 == 3: opt.step(); opt.zero_grad()
        """),
        steps=10,
        batches=4,
    ),
    Shape(
        "thread_that_prefetches",
        WAITS.replace("0.002", "0.01")
        + SGD
        + textwrap.dedent("""
        import queue, threading
        ahead = queue.Queue(4)
        def fetch():
            for batch in DataLoader(Waits(), batch_size=2): ahead.put(batch)
            ahead.put(None)
        threading.Thread(target=fetch, daemon=True).start()
        while (batch := ahead.get()) is not None:
            x, y = batch
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """),
        found_by="optimizer",
        steps=39,
    ),
]


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen | str]:
    """Every script, run once."""
    return watch_all(SHAPES, tmp_path_factory.mktemp("scenarios"))


@pytest.fixture
def seen(scenarios: dict[str, Seen | str], request: pytest.FixtureRequest) -> Seen:
    """What was seen of the script that the test is named after."""
    name = request.node.name.removeprefix("test_")
    found = scenarios[name]
    assert isinstance(found, Seen), found
    shape = next(shape for shape in SHAPES if shape.name == name)
    assert (found.watched.steps.found_by, found.steps) == (shape.found_by, shape.steps)
    assert found.breakdown.batches_per_step == shape.batches
    assert sorted(found.roles) == sorted(shape.roles)
    assert_sums(found.breakdown)
    return found


pytestmark = pytest.mark.xdist_group("scenarios")


def others(seen: Seen, *left_out: Phase) -> float:
    """Seconds per step of the phases that were measured, but for those left out."""
    return sum(s for phase, s in seen.breakdown.phases.items() if s is not None and phase not in left_out)


def part(seen: Seen, name: str) -> float:
    return seen.breakdown.other[name] or 0.0


def test_io(seen: Seen) -> None:
    assert seen.phase(Phase.IO) > 0.0075  # four samples of 2 ms, waited for one after the other
    assert others(seen, Phase.IO) < seen.phase(Phase.IO)


def test_io_with_workers(seen: Seen) -> None:
    assert seen.phase(Phase.IO) > 0.6 * seen.breakdown.mean  # two workers wait for 20 ms each while a step takes one
    assert seen.breakdown.hidden["io"] is not None


def test_io_in_transform(seen: Seen) -> None:
    assert seen.phase(Phase.IO) > 0.0075
    assert seen.phase(Phase.FORWARD) < 0.25 * seen.phase(Phase.IO)  # transforms are modules, and no forward of ours


def test_logging_pause(seen: Seen) -> None:
    assert part(seen, "logging") > 0.025  # 150 ms in every fifth step
    assert others(seen, Phase.OTHER) < 0.5 * part(seen, "logging")


def test_pause_after_the_optimizer(seen: Seen) -> None:
    assert part(seen, "python") > 0.025
    assert seen.phase(Phase.OPTIMIZER) < 0.25 * part(seen, "python")
    assert others(seen, Phase.OTHER) < 0.5 * part(seen, "python")


def test_validation_between_epochs(seen: Seen) -> None:
    assert max(s.seconds for s in seen.watched.steps.steps) < 0.15  # one batch of the validation takes as long
    assert part(seen, "eval") == 0.0


def test_gan(seen: Seen) -> None:
    assert [s.updates for s in seen.watched.steps.steps] == [2] * 20
    assert len(seen.watched.optimizers) == 2
    assert seen.phase(Phase.OPTIMIZER) > 0


def test_batch_without_a_loader(seen: Seen) -> None:
    assert seen.breakdown.inferred == ("io", "prepare")
    assert seen.phase(Phase.IO) > 0.0035


def test_validation_with_a_loader_and_training_without(seen: Seen) -> None:
    assert part(seen, "eval") > 0.004  # in a quarter of the steps 20 ms lie between its two batches
    assert seen.phase(Phase.IO) > 0.0035  # in all of them, also in those that begin with an evaluation
    assert part(seen, "python") < 0.5 * seen.phase(Phase.IO)


def test_forward_called_directly(seen: Seen) -> None:
    assert seen.phase(Phase.FORWARD) + part(seen, "python") > 0.0035
    assert seen.phase(Phase.BACKWARD) > 0
    assert seen.phase(Phase.IO) < 0.001


def test_autograd_grad(seen: Seen) -> None:
    assert seen.phase(Phase.FORWARD) > 0
    assert seen.phase(Phase.BACKWARD) > 0


def test_update_by_hand(seen: Seen) -> None:
    assert seen.phase(Phase.OPTIMIZER) + part(seen, "python") > 0.0035
    assert others(seen, Phase.OTHER, Phase.OPTIMIZER) < 0.0035


def test_accumulation(seen: Seen) -> None:
    assert seen.phase(Phase.IO) > 0.015  # eight samples of 2 ms to a step


def test_thread_that_prefetches(seen: Seen) -> None:
    assert seen.phase(Phase.IO) > 0.6 * seen.breakdown.mean  # the loop waits for the thread, and the thread for reads
    assert others(seen, Phase.IO) < seen.phase(Phase.IO)


def lacking(*modules: str) -> pytest.MarkDecorator:
    missing = [name for name in modules if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")


LIGHTNING = """
import lightning as L
class Lit(L.LightningModule):
    def __init__(self): super().__init__(); self.net = Net()
    def training_step(self, batch, i): return loss_of(self.net(batch[0]), batch[1])
    def validation_step(self, batch, i): self.net(batch[0]); time.sleep(0.15)
    def configure_optimizers(self): return torch.optim.Adam(self.parameters())
trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Lit(), DataLoader(Waits(), batch_size=4), DataLoader(Points(8), batch_size=4))
"""

TRAINER = """
from transformers import Trainer, TrainingArguments
class Rows(Waits):
    def __getitem__(self, i): x, y = super().__getitem__(i); return {"x": x, "labels": y}
class Scored(Net):
    def forward(self, x, labels): logits = super().forward(x); return {"loss": loss_of(logits, labels), "logits": logits}
args = TrainingArguments(output_dir="out", max_steps=20, per_device_train_batch_size=4, use_cpu=True, report_to=[],
                         logging_strategy="no", save_strategy="no", disable_tqdm=True)
Trainer(model=Scored(), args=args, train_dataset=Rows()).train()
"""


@lacking("lightning")
def test_lightning(tmp_path: Path) -> None:
    seen = watch(HEAD + WAITS + LIGHTNING, tmp_path)
    assert seen.watched.framework == "lightning"
    assert seen.steps == 39  # nothing follows the last
    assert seen.phase(Phase.IO) > 0.0075
    assert max(s.seconds for s in seen.watched.steps.steps) < 0.15  # validation is between epochs
    assert_sums(seen.breakdown)


@lacking("transformers", "accelerate")
def test_trainer_of_transformers(tmp_path: Path) -> None:
    seen = watch(HEAD + WAITS + TRAINER, tmp_path)
    assert seen.steps == 19
    assert seen.phase(Phase.IO) > 0.0075
    assert_sums(seen.breakdown)
