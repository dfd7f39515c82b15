"""Loops without a loader: batches are made where they are needed."""

from __future__ import annotations

from fasttrain_doctor.evidence import Phase
from tests.loop_shape import SGD, Shape
from tests.watched import Seen


def _made_in_the_loop(seen: Seen) -> None:
    assert seen.breakdown.inferred == ("io", "prepare")
    assert seen.phase(Phase.IO) > 0.0015


def _prepared_in_the_loop(seen: Seen) -> None:
    """Counting three times is preparation, and neither the loss nor anything else."""
    assert seen.phase(Phase.PREPARE) > 0.25 * seen.breakdown.mean


def _gap_is_data(seen: Seen) -> None:
    """Acting in an environment is where the batches come from."""
    assert (seen.breakdown.data or 0.0) > 0.0015


def _closure_is_training(seen: Seen) -> None:
    assert seen.phase(Phase.FORWARD) > 0
    assert seen.phase(Phase.BACKWARD) > 0
    assert seen.phase(Phase.OPTIMIZER) > 0


def _forward_and_backward(seen: Seen) -> None:
    assert seen.phase(Phase.FORWARD) > 0
    assert seen.phase(Phase.BACKWARD) > 0


def _by_hand(seen: Seen) -> None:
    """The wait of 2 ms comes after the update, and is where the batch comes from."""
    assert 0 < seen.phase(Phase.OPTIMIZER) < 0.001
    assert seen.phase(Phase.IO) > 0.0015
    assert seen.breakdown.inferred == ("io", "prepare")


SHAPES = [
    Shape(
        "no_loader",
        SGD
        + """
        data = torch.randn(100, 8)
        def get_batch():
            time.sleep(0.002)
            at = torch.randint(100, (4,))
            return data[at], at % 4
        for i in range(25):
            x, y = get_batch()
            opt.zero_grad(set_to_none=True); loss_of(net(x), y).backward(); opt.step()
        """,
        found_by="optimizer",
        steps=24,
        roles=(),
        check=_made_in_the_loop,
        loop="for i in range(",
    ),
    Shape(
        "gan_without_loader",
        """
        g, d = Net(8), Net(1)
        og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
        for i in range(12):
            for _ in range(3):
                x = torch.randn(4, 8)
                od.zero_grad(); (d(g(torch.randn(4, 8)).detach()).mean() - d(x).mean()).backward(); od.step()
            og.zero_grad(); (-d(g(torch.randn(4, 8))).mean()).backward(); og.step()
        """,
        found_by="optimizer",
        steps=11,  # from the end of one cycle to the end of the next
        roles=(),
        loop="for i in range(",
    ),
    Shape(
        "neither_loader_nor_optimizer",
        """
        w = torch.zeros(8, 4, requires_grad=True)
        for i in range(20):
            loss_of(torch.randn(4, 8) @ w, torch.arange(4)).backward()
            w.data.add_(w.grad, alpha=-0.1); w.grad.zero_()
        """,
        found_by="update",
        steps=19,
        roles=(),
        loop="for i in range(",
    ),
    Shape(
        "made_between_forward_and_backward",
        SGD
        + """
        data = torch.randn(100, 8)
        def get_batch():
            time.sleep(0.004)
            at = torch.randint(100, (4,))
            return data[at], at % 4
        x, y = get_batch()
        for i in range(25):
            loss = loss_of(net(x), y)
            x, y = get_batch()
            loss.backward(); opt.step(); opt.zero_grad(set_to_none=True)
        """,
        found_by="optimizer",
        steps=24,
        roles=(),
        check=_made_in_the_loop,
        loop="for i in range(",
    ),
    Shape(
        "made_between_forward_and_backward_accumulating",
        """
        class Gpt(Net):
            def forward(self, x, y): return self.body(x), loss_of(self.body(x), y)
        net = Gpt(); opt = torch.optim.SGD(net.parameters(), 0.1)
        data = torch.randn(4096, 8).numpy()
        def get_batch(split):
            n = 0
            for _ in range(20000): n += 1
            at = torch.randint(100, (4,))
            return torch.stack([torch.from_numpy(data[i]) for i in at.tolist()]), at % 4
        x, y = get_batch("train")
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        for i in range(21):
            for micro in range(3):
                logits, loss = net(x, y)
                loss = loss / 3
                x, y = get_batch("train")
                scaler.scale(loss).backward()
            scaler.step(opt); scaler.update(); opt.zero_grad(set_to_none=True)
        """,
        found_by="optimizer",
        steps=20,
        roles=(),
        check=_prepared_in_the_loop,
        loop="for i in range(",
    ),
    Shape(
        "rollouts",
        """
        class Agent(Net):
            def get_value(self, x): return self.body(x).mean(1)
            def get_action_and_value(self, x): return self.body(x), self.get_value(x)
        net = Agent(); opt = torch.optim.Adam(net.parameters())
        for iteration in range(6):
            seen = []
            for _ in range(8):
                with torch.no_grad(): action, value = net.get_action_and_value(torch.randn(4, 8))
                time.sleep(0.002)
                seen.append(torch.randn(4, 8))
            for epoch in range(2):
                for k in range(4):
                    logits, value = net.get_action_and_value(seen[k])
                    opt.zero_grad(); (loss_of(logits, torch.arange(4)) + value.mean()).backward()
                    opt.step()
        """,
        found_by="optimizer",
        steps=47,
        roles=(),
        check=_gap_is_data,
        loop="for k in range(",
    ),
    Shape(
        "replay_buffer",
        """
        net, target = Net(), Net(); opt = torch.optim.Adam(net.parameters()); buffer = []
        for i in range(60):
            with torch.no_grad(): action = net(torch.randn(1, 8)).argmax()
            time.sleep(0.001); buffer.append(torch.randn(8))
            if i >= 20 and i % 2 == 0:
                x = torch.stack([buffer[j] for j in torch.randint(len(buffer), (4,)).tolist()])
                with torch.no_grad(): wanted = target(x)
                opt.zero_grad(); (net(x) - wanted).pow(2).mean().backward(); opt.step()
        """,
        found_by="optimizer",
        steps=19,
        roles=(),
        check=_gap_is_data,
        loop="for i in range(",
    ),
    Shape(
        "whole_graph",
        SGD
        + """
        x, y = torch.randn(64, 8), torch.arange(64) % 4
        def train():
            net.train(); opt.zero_grad(); loss = loss_of(net(x)[::2], y[::2]); loss.backward(); opt.step()
            return float(loss)
        @torch.no_grad()
        def test(): net.eval(); return float((net(x).argmax(1) == y).float().mean())
        for epoch in range(21): train(); test()
        """,
        found_by="optimizer",
        steps=20,
        roles=(),
        loop="for epoch in range(",
    ),
    Shape(
        "closure_without_loader",
        """
        net = Net(); opt = torch.optim.LBFGS(net.parameters(), max_iter=4)
        x, y = torch.randn(64, 8), torch.arange(64) % 4
        def closure():
            opt.zero_grad(); loss = loss_of(net(x), y); loss.backward(); return loss
        for i in range(9): opt.step(closure)
        """,
        found_by="optimizer",
        steps=8,
        roles=(),
        check=_closure_is_training,
        loop="for i in range(",
    ),
    Shape(
        "update_by_hand",
        """
        net = Net()
        for i in range(21):
            time.sleep(0.002); x, y = torch.randn(4, 8), torch.arange(4)
            net.zero_grad(); loss_of(net(x), y).backward()
            with torch.no_grad():
                for p in net.parameters(): p -= 0.1 * p.grad
        """,
        found_by="update",
        steps=20,
        roles=(),
        check=_by_hand,
        loop="for i in range(",
    ),
    Shape(
        "functional",
        """
        from torch.func import functional_call, grad, stack_module_state, vmap
        nets = [Net() for _ in range(3)]
        p, b = stack_module_state(nets)
        def loss(p, b, x, y): return loss_of(functional_call(nets[0], (p, b), (x,)), y)
        step = vmap(grad(loss), in_dims=(0, 0, None, None))
        for i in range(21):
            g = step(p, b, torch.randn(4, 8), torch.arange(4))
            p = {k: (v - 0.1 * g[k]).detach() for k, v in p.items()}
        """,
        found_by="update",
        steps=20,
        roles=(),
        loop="for i in range(21)",
        check=_forward_and_backward,
    ),
]
