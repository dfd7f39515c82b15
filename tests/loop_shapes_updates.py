"""What makes a step: backwards and updates of every kind, batches from a plain loader."""

from __future__ import annotations

import pytest

from fasttrain_doctor.evidence import Phase
from fasttrain_doctor.records import Kind
from tests.loop_shape import SGD, Shape
from tests.watched import Seen


def _forward_is_seen(seen: Seen) -> None:
    assert seen.phase(Phase.FORWARD) > 0
    assert seen.phase(Phase.BACKWARD) > 0


def _no_step_of_two(seen: Seen) -> None:
    assert {s.batches for s in seen.watched.steps.steps} == {1}


def _one_backward_a_step(seen: Seen) -> None:
    assert len(seen.watched.process.of(Kind.BACKWARD)) == 20


SHAPES = [
    Shape(
        "accumulation",
        SGD
        + """
        for epoch in range(2):
            for i, (x, y) in enumerate(DataLoader(Points(), batch_size=2)):
                (loss_of(net(x), y) / 4).backward()
                if (i + 1) % 4 == 0:
                    opt.step(); opt.zero_grad()
        """,
        steps=20,
        batches=4,
        loop="for i, (x, y) in enumerate(",
    ),
    Shape(
        "gan",
        """
        g, d = Net(8), Net(1)
        og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
        for x, _ in DataLoader(Points(), batch_size=4):
            fake = g(torch.randn(4, 8))
            od.zero_grad(); (d(fake.detach()).mean() - d(x).mean()).backward(); od.step()
            og.zero_grad(); (-d(g(torch.randn(4, 8))).mean()).backward(); og.step()
        """,
        steps=20,
        loop="for x, _ in DataLoader(",
    ),
    Shape(
        "gan_critic_three_times",
        """
        g, d = Net(8), Net(1)
        og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
        for i, (x, _) in enumerate(DataLoader(Points(), batch_size=4)):
            od.zero_grad(); (d(g(torch.randn(4, 8)).detach()).mean() - d(x).mean()).backward(); od.step()
            if i % 3 == 2:
                og.zero_grad(); (-d(g(torch.randn(4, 8))).mean()).backward(); og.step()
        """,
        steps=20,
        loop="for i, (x, _) in enumerate(",
    ),
    Shape(
        "forward_called_directly",
        SGD
        + """
        for x, y in DataLoader(Points(), batch_size=4):
            opt.zero_grad(); loss_of(net.forward(x), y).backward(); opt.step()
        """,
        steps=20,
        check=_forward_is_seen,
    ),
    Shape(
        "bare_except",
        SGD
        + """
        while True:
            try:
                for x, y in DataLoader(Points(), batch_size=4):
                    try:
                        opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
                    except: pass
                break
            except: pass
        """,
        steps=20,
    ),
    Shape(
        "os_exit",
        SGD
        + """
        import os
        for x, y in DataLoader(Points(), batch_size=4):
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        os._exit(3)
        """,
        steps=20,
        code=3,
    ),
    Shape(
        "last_group_is_short",
        SGD
        + """
        loader = DataLoader(Points(40), batch_size=4)
        for epoch in range(4):
            for i, (x, y) in enumerate(loader):
                (loss_of(net(x), y) / 4).backward()
                if (i + 1) % 4 == 0 or i + 1 == len(loader):
                    opt.step(); opt.zero_grad()
        """,
        steps=12,
        # 4, 4 and 2; the first of an epoch is not measured, nor what a busy machine makes look like a warm-up.
        batches=pytest.approx(3, abs=0.5),
        loop="for i, (x, y) in enumerate(",
    ),
    Shape(
        "siamese",
        SGD
        + """
        for x, y in DataLoader(Points(), batch_size=4):
            a, b, c = net(x), net(x.flip(0)), net(x * 2)
            opt.zero_grad(); nn.functional.triplet_margin_loss(a, b, c).backward(); opt.step()
        """,
        steps=20,
        check=_forward_is_seen,
    ),
    Shape(
        "loss_inside_forward",
        """
        class Detector(Net):
            def forward(self, x, y): return {"cls": loss_of(self.body(x), y), "box": self.body(x).pow(2).mean()}
        net = Detector(); opt = torch.optim.SGD(net.parameters(), 0.1)
        for x, y in DataLoader(Points(), batch_size=4):
            losses = net(x, y)
            opt.zero_grad(); sum(losses.values()).backward(); opt.step()
        """,
        steps=20,
        check=_forward_is_seen,
    ),
    Shape(
        "loss_scaled",
        SGD
        + """
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for i, (x, y) in enumerate(DataLoader(Points(), batch_size=4)):
            opt.zero_grad()
            loss = loss_of(net(x), y) * (float("inf") if i % 5 == 4 else 1)
            scaler.scale(loss).backward()
            scaler.unscale_(opt); nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt); scaler.update()
        """,
        steps=20,  # also those whose update was skipped
        check=_no_step_of_two,
        loop="for i, (x, y) in enumerate(",
    ),
    Shape(
        "only_finite_losses",
        SGD
        + """
        for i, (x, y) in enumerate(DataLoader(Points(), batch_size=4)):
            loss = loss_of(net(x), y)
            if i % 5 == 2: continue
            opt.zero_grad(); loss.backward(); opt.step()
        """,
        steps=16,
        batches=pytest.approx(1.25, abs=0.1),
        loop="for i, (x, y) in enumerate(",
    ),
    Shape(
        "double_backward",
        """
        g, d = Net(8), Net(1)
        og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
        for i, (x, _) in enumerate(DataLoader(Points(), batch_size=4)):
            real = x.requires_grad_()
            score = d(real)
            penalty = torch.autograd.grad(score.sum(), real, create_graph=True)[0].norm(2, 1).sub(1).pow(2).mean()
            od.zero_grad(); (score.mean() - d(g(torch.randn(4, 8)).detach()).mean() + penalty).backward(retain_graph=True); od.step()
            if i % 5 == 4:
                og.zero_grad(); (-d(g(torch.randn(4, 8))).mean()).backward(); og.step()
        """,
        steps=20,
        check=_forward_is_seen,
        loop="for i, (x, _) in enumerate(",
    ),
    Shape(
        "tensor_subclass",
        SGD
        + """
        class Meta(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                return super().__torch_function__(func, types, args, kwargs or {})
        for x, y in DataLoader(Points(), batch_size=4):
            x = x.as_subclass(Meta)
            loss = loss_of(net(x), y)
            assert isinstance(loss, Meta)
            opt.zero_grad(); loss.backward(); opt.step()
        """,
        steps=20,
        check=_one_backward_a_step,
    ),
    Shape(
        "fails_in_the_end",
        SGD
        + """
        for x, y in DataLoader(Points(), batch_size=4):
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        raise RuntimeError("after the training")
        """,
        steps=20,
        code=1,
    ),
    Shape(
        "own_profiler",
        SGD
        + """
        with torch.autograd.profiler.profile() as prof:
            for x, y in DataLoader(Points(), batch_size=4):
                with torch.autograd.profiler.record_function("step"):
                    opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        steps=20,
    ),
    Shape(
        "ends_in_stop_iteration",
        SGD
        + """
        it = iter(DataLoader(Points(), batch_size=4))
        while True:
            try: batches = [next(it), next(it)]
            except StopIteration: break
            opt.zero_grad()
            for x, y in batches: loss_of(net(x), y).backward()
            opt.step()
        """,
        steps=10,
        batches=2,
        loop="while True:",
    ),
]
