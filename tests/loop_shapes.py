"""Training loops as people write them, each with what is to be found in it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

SGD = "net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)\n"


@dataclass(frozen=True)
class Shape:
    """A loop and what is to be found in it: ``steps`` is the exact number of whole steps."""

    name: str
    body: str
    steps: int
    found_by: str = "loader"
    batches: float = 1.0
    roles: tuple[str, ...] = ("train",)

    @property
    def script(self) -> str:
        shared, rest = (SGD, self.body.removeprefix(SGD)) if self.body.startswith(SGD) else ("", self.body)
        return shared + textwrap.dedent(rest)


SHAPES = [
    Shape(
        "plain",
        SGD
        + """
        for epoch in range(2):
            for x, y in DataLoader(Points(), batch_size=4, shuffle=True):
                opt.zero_grad()
                loss = loss_of(net(x), y)
                loss.backward()
                opt.step()
                print(loss.item())
        """,
        steps=40,
    ),
    Shape(
        "iter_next",
        SGD
        + """
        loader = DataLoader(Points(40), batch_size=4)
        it = iter(loader)
        for i in range(31):
            try:
                x, y = next(it)
            except StopIteration:
                it = iter(loader)
                x, y = next(it)
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        steps=30,  # nothing follows the last
    ),
    Shape(
        "dict_batches",
        SGD
        + """
        class Dicts(Points):
            def __getitem__(self, i): return {"x": torch.ones(8), "y": {"label": i % 4}}
        for batch in DataLoader(Dicts(), batch_size=4):
            batch = dict(batch)
            opt.zero_grad(); loss_of(net(batch.pop("x")), batch["y"]["label"]).backward(); opt.step()
        """,
        steps=20,
    ),
    Shape(
        "iterable_dataset",
        SGD
        + """
        class Stream(IterableDataset):
            def __iter__(self):
                for i in range(80): yield torch.full((8,), float(i)), i % 4
        for epoch in range(2):
            for x, y in DataLoader(Stream(), batch_size=4):
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        steps=40,
    ),
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
    ),
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
    ),
    Shape(
        "no_optimizer",
        """
        net = Net()
        for x, y in DataLoader(Points(), batch_size=4):
            net.zero_grad(); loss_of(net(x), y).backward()
            with torch.no_grad():
                for p in net.parameters(): p.data.add_(p.grad, alpha=-0.1)
        """,
        found_by="backward",
        steps=20,
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
        "zip_of_two",
        SGD
        + """
        a, b = DataLoader(Points(80), batch_size=4), DataLoader(Points(100), batch_size=5)
        for (x, y), (u, v) in zip(a, b):
            opt.zero_grad(); (loss_of(net(x), y) + loss_of(net(u), v)).backward(); opt.step()
        """,
        steps=20,
    ),
    Shape(
        "cycle",
        SGD
        + """
        import itertools
        for i, (x, y) in enumerate(itertools.cycle(DataLoader(Points(32), batch_size=4))):
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
            if i == 39: break
        """,
        found_by="optimizer",  # from the second pass on no loader is asked
        steps=39,
    ),
    Shape(
        "fetched_before_backward",
        SGD
        + """
        batches = iter(DataLoader(Points(80), batch_size=4))
        x, y = next(batches)
        while x is not None:
            loss = loss_of(net(x), y)
            x, y = next(batches, (None, None))
            opt.zero_grad(); loss.backward(); opt.step()
        """,
        steps=19,  # the last stays open
    ),
    Shape(
        "loader_made_anew",
        SGD
        + """
        def batches(): yield from DataLoader(Points(20), batch_size=4, shuffle=True)
        for epoch in range(4):
            for x, y in batches():
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        steps=20,
    ),
    Shape(
        "forward_called_directly",
        SGD
        + """
        for x, y in DataLoader(Points(), batch_size=4):
            opt.zero_grad(); loss_of(net.forward(x), y).backward(); opt.step()
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
        "modules_as_transforms",
        SGD
        + """
        class Scale(nn.Module):
            def forward(self, x): return x / 2
        class Scaled(Points):
            transform = nn.Sequential(Scale(), Scale())
            def __getitem__(self, i): return self.transform(torch.ones(8)), i % 4
        for x, y in DataLoader(Scaled(), batch_size=4):
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        steps=20,
    ),
    Shape(
        "two_workers",
        SGD
        + """
        for epoch in range(2):
            for x, y in DataLoader(Points(), batch_size=4, num_workers=2):
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        steps=40,
    ),
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
    ),
    Shape(
        "teacher_beside_two_loaders",
        SGD
        + """
        teacher = Net().eval()
        for p in teacher.parameters(): p.requires_grad = False
        for (x, y), (u, _) in zip(DataLoader(Points(), batch_size=4), DataLoader(Points(100), batch_size=4)):
            with torch.no_grad(): hint = teacher(u)
            opt.zero_grad(); (loss_of(net(x), y) + (net(u) - hint).pow(2).mean()).backward(); opt.step()
        """,
        steps=20,
    ),
    Shape(
        "background_thread",
        SGD
        + """
        import queue, threading
        def fetch(loader, into):
            for batch in loader: into.put(batch)
            into.put(None)
        for epoch in range(2):
            q = queue.Queue(4)
            threading.Thread(target=fetch, args=(DataLoader(Points(), batch_size=4), q), daemon=True).start()
            while (batch := q.get()) is not None:
                opt.zero_grad(); loss_of(net(batch[0]), batch[1]).backward(); opt.step()
        """,
        found_by="optimizer",
        steps=39,  # nothing marks the end of an epoch
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
    ),
]
