"""Who makes the update, and where: optimizers of every make, in closures and hooks, and none at all."""

from __future__ import annotations

from fasttrain_doctor.evidence import Phase
from fasttrain_doctor.records import Kind
from tests.loop_shape import LEARN, SGD, Shape
from tests.watched import Seen


def _forward_is_seen(seen: Seen) -> None:
    assert seen.phase(Phase.FORWARD) > 0
    assert seen.phase(Phase.BACKWARD) > 0


def _optimizer_is_seen(seen: Seen) -> None:
    assert seen.phase(Phase.OPTIMIZER) > 0


def _update_by_hand(seen: Seen) -> None:
    """Seen by its changes in place, it is not what else comes after the backward."""
    assert 0 < seen.phase(Phase.OPTIMIZER) < seen.phase(Phase.OTHER)
    assert seen.phase(Phase.OTHER) > 0.0015
    assert seen.breakdown.inferred == ()


def _update_inferred(seen: Seen) -> None:
    """What comes after the backward is taken for the update, which changes no parameter in place."""
    assert seen.phase(Phase.OPTIMIZER) > 0
    assert seen.breakdown.inferred == ("optimizer",)


def _clipping_is_the_optimizers(seen: Seen) -> None:
    """Clearing and clipping, by either way of naming it: two records a step beside the step itself."""
    assert len(seen.watched.process.of(Kind.GRADIENTS)) == 40


def _frameworks_own(seen: Seen) -> None:
    """One millisecond before the step and one within its closure, after the backward: neither is the optimizer's."""
    assert seen.phase(Phase.OPTIMIZER) < 0.5 * seen.phase(Phase.OTHER)


SHAPES = [
    Shape(
        "clipped",
        SGD
        + """
        from torch.nn.utils import clip_grad_norm_
        for i, (x, y) in enumerate(DataLoader(Points(), batch_size=4)):
            opt.zero_grad()
            loss_of(net(x), y).backward()
            (clip_grad_norm_ if i % 2 else nn.utils.clip_grad_norm_)(parameters=net.parameters(), max_norm=1.0)
            opt.step()
        """,
        steps=20,
        check=_clipping_is_the_optimizers,
        loop="for i, (x, y) in enumerate(",
    ),
    Shape(
        "lbfgs_closure",
        """
        net = Net(); opt = torch.optim.LBFGS(net.parameters(), max_iter=3)
        for x, y in DataLoader(Points(), batch_size=4):
            def closure():
                opt.zero_grad(); loss = loss_of(net(x), y); loss.backward(); return loss
            opt.step(closure)
        """,
        steps=20,
        check=_forward_is_seen,
    ),
    Shape(
        "closure_of_a_framework",
        SGD
        + """
        def fit(batches):
            for batch in batches:
                def training_step():
                    loss = loss_of(net(batch[0]), batch[1])
                    opt.zero_grad()
                    loss.backward()
                    time.sleep(0.001)
                    return loss
                time.sleep(0.001)
                opt.step(closure=lambda: training_step())
        fit(DataLoader(Points(), batch_size=4))
        """,
        steps=20,
        check=_frameworks_own,
        loop="for batch in batches",
    ),
    Shape(
        "no_optimizer",
        """
        net = Net()
        for x, y in DataLoader(Points(), batch_size=4):
            net.zero_grad(); loss_of(net(x), y).backward()
            time.sleep(0.002)
            with torch.no_grad():
                for p in net.parameters(): p.data.add_(p.grad, alpha=-0.1)
        """,
        found_by="backward",
        steps=20,
        check=_update_by_hand,
    ),
    Shape(
        "autograd_grad",
        """
        net = Net(); weights = list(net.parameters())
        for x, y in DataLoader(Points(), batch_size=4):
            for p, g in zip(weights, torch.autograd.grad(loss_of(net(x), y), weights)):
                p.data.sub_(0.1 * g)
        """,
        found_by="backward",
        steps=20,
        check=_forward_is_seen,
    ),
    Shape(
        "optimizer_in_backward",
        """
        net = Net()
        each = {p: torch.optim.Adam([p], foreach=False) for p in net.parameters()}
        def hook(p): each[p].step(); each[p].zero_grad(); time.sleep(0.001)
        for p in net.parameters(): p.register_post_accumulate_grad_hook(hook)
        for x, y in DataLoader(Points(), batch_size=4): loss_of(net(x), y).backward()
        """,
        steps=20,
        check=_optimizer_is_seen,
    ),
    Shape(
        "optimizer_in_backward_without_loader",
        """
        net = Net()
        each = {p: torch.optim.Adam([p], foreach=False) for p in net.parameters()}
        def hook(p): each[p].step(); each[p].zero_grad()
        for p in net.parameters(): p.register_post_accumulate_grad_hook(hook)
        for i in range(21): loss_of(net(torch.randn(4, 8)), torch.arange(4)).backward()
        """,
        found_by="optimizer",
        steps=20,
        roles=(),
        check=_optimizer_is_seen,
        loop="for i in range(",
    ),
    Shape(
        "backward_in_another_thread",
        """
        import threading
        net = Net()
        each = {p: torch.optim.Adam([p], foreach=False) for p in net.parameters()}
        def work(p): each[p].step(); each[p].zero_grad(); time.sleep(0.001)
        def hook(p):  # a device's own thread runs the hooks
            t = threading.Thread(target=work, args=(p,)); t.start(); t.join()
        for p in net.parameters(): p.register_post_accumulate_grad_hook(hook)
        for x, y in DataLoader(Points(), batch_size=4): loss_of(net(x), y).backward()
        """,
        steps=20,
        check=_optimizer_is_seen,
    ),
    Shape(
        "optimizer_of_another_make",
        """
        net = Net()
        class Sgd:
            def __init__(self, params): self.params = list(params)
            def zero_grad(self):
                for p in self.params: p.grad = None
            @torch.no_grad()
            def step(self):
                for p in self.params: p.data = p - 0.1 * p.grad
        opt = Sgd(net.parameters())
        for x, y in DataLoader(Points(), batch_size=4):
            """
        + LEARN,
        found_by="backward",
        steps=20,
        check=_update_inferred,
    ),
    Shape(
        "scheduled_optimizer",
        """
        class Scheduled:
            def __init__(self, inner): self.inner = inner; self.n = 0
            def zero_grad(self): self.inner.zero_grad()
            def step(self):
                self.n += 1
                for group in self.inner.param_groups: group["lr"] = 0.1 / self.n
                self.inner.step()
        net = Net(); opt = Scheduled(torch.optim.Adam(net.parameters()))
        for x, y in DataLoader(Points(), batch_size=4):
            """
        + LEARN,
        steps=20,
        check=_optimizer_is_seen,
    ),
]
