"""What runs beside the training: evaluation, sampling, teachers."""

from __future__ import annotations

import pytest

from fasttrain_doctor.evidence import Phase
from fasttrain_doctor.records import Call, Kind
from tests.loop_shape import SGD, Shape
from tests.watched import Seen


def _evaluation_is_apart(seen: Seen) -> None:
    evaluated = seen.breakdown.other["eval"] or 0.0
    assert evaluated == pytest.approx(0.5 * seen.breakdown.mean, rel=1.0)
    assert evaluated > 0.007  # three waits of 5 ms lie between its forwards, in every other step
    assert seen.phase(Phase.FORWARD) < 0.3 * seen.breakdown.mean


def _no_evaluation_in_a_step(seen: Seen) -> None:
    looks = [r.t0 for r in seen.watched.process.of(Kind.FORWARD) if not r.flag & Call.GRAD]
    assert looks
    assert not any(s.start <= t < s.end for t in looks for s in seen.watched.steps.steps)
    assert seen.breakdown.other["eval"] in (None, 0.0)


def _two_training_loaders(seen: Seen) -> None:
    assert len(seen.watched.steps.loaders) == 2


def _sampling_is_apart(seen: Seen) -> None:
    assert (seen.breakdown.other["eval"] or 0.0) > 0.003  # 40 ms in every tenth step


SHAPES = [
    Shape(
        "evaluation_inside",
        SGD
        + """
        val = DataLoader(Points(16), batch_size=8)
        for i, (x, y) in enumerate(DataLoader(Points(), batch_size=4)):
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
            if i % 2 == 0:
                net.eval()
                with torch.no_grad():
                    for u, v in val: net(u); time.sleep(0.02)
                net.train()
        """,
        steps=20,
        roles=("train", "eval"),
        check=_evaluation_is_apart,
        loop="for i, (x, y) in enumerate(",
    ),
    Shape(
        "evaluation_inside_without_loader",
        SGD
        + """
        def get_batch(): return torch.randn(4, 8), torch.arange(4)
        @torch.no_grad()
        def estimate_loss():
            net.eval()
            for _ in range(4):
                x, y = get_batch(); time.sleep(0.005); net(x)
            net.train()
        for i in range(21):
            x, y = get_batch()
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
            if i % 2 == 0: estimate_loss()
        """,
        found_by="optimizer",
        steps=20,
        roles=(),
        check=_evaluation_is_apart,
        loop="for i in range(",
    ),
    Shape(
        "validation_between_epochs",
        SGD
        + """
        train, val = DataLoader(Points(40), batch_size=4), DataLoader(Points(16), batch_size=8)
        for epoch in range(3):
            for x, y in train:
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
            with torch.no_grad():
                for x, y in val: net(x); time.sleep(0.1)
        """,
        steps=30,
        roles=("train", "eval"),
        check=_no_evaluation_in_a_step,
        loop="for x, y in train",
    ),
    Shape(
        "evaluation_first",
        SGD
        + """
        train, val = DataLoader(Points(40), batch_size=4), DataLoader(Points(16), batch_size=8)
        def validate():
            net.eval()
            with torch.no_grad():
                for x, y in val: net(x); time.sleep(0.05)
            net.train()
        validate()
        for epoch in range(2):
            for x, y in train:
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
            validate()
        """,
        steps=20,
        roles=("train", "eval"),
        check=_no_evaluation_in_a_step,
        loop="for x, y in train",
    ),
    Shape(
        "evaluation_on_the_training_loader",
        SGD
        + """
        train = DataLoader(Points(40), batch_size=4)
        for epoch in range(3):
            for x, y in train:
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
            net.eval()
            with torch.no_grad():
                for x, y in train: net(x); time.sleep(0.02)
            net.train()
        """,
        steps=30,
        check=_no_evaluation_in_a_step,
        loop="for x, y in train",
    ),
    Shape(
        "one_batch_of_validation_a_step",
        SGD
        + """
        val = DataLoader(Points(16), batch_size=4)
        it = iter(val)
        for i, (x, y) in enumerate(DataLoader(Points(), batch_size=4)):
            net.train(); opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
            net.eval()
            with torch.no_grad():
                try: u, v = next(it)
                except StopIteration: it = iter(val); u, v = next(it)
                net(u); time.sleep(0.005)
        """,
        steps=20,
        roles=("train", "eval"),
        loop="for i, (x, y) in enumerate(",
    ),
    Shape(
        "average_of_weights",
        SGD
        + """
        ema = torch.optim.swa_utils.AveragedModel(net)
        for i, (x, y) in enumerate(DataLoader(Points(), batch_size=4)):
            with torch.no_grad(): target = ema(x)
            opt.zero_grad(); (loss_of(net(x), y) + (net(x) - target).pow(2).mean()).backward(); opt.step()
            ema.update_parameters(net)
        """,
        steps=20,
        loop="for i, (x, y) in enumerate(",
    ),
    Shape(
        "sampling_between",
        SGD
        + """
        for i, (x, y) in enumerate(DataLoader(Points(), batch_size=4)):
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
            if i % 10 == 9:
                net.eval()
                with torch.no_grad():
                    z = torch.randn(1, 8)
                    for _ in range(5): z = net(z).repeat(1, 2); time.sleep(0.01)
                net.train()
        """,
        steps=20,
        check=_sampling_is_apart,
        loop="for i, (x, y) in enumerate(",
    ),
]
