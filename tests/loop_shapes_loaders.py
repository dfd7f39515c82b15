"""How a loader is asked: loops, generators and threads around it."""

from __future__ import annotations

from fasttrain_doctor.records import Kind
from tests.loop_shape import LEARN, SGD, Shape
from tests.watched import Seen


def _each_step_waits(seen: Seen) -> None:
    """The wait of 5 ms between the two requests is in every step, also where the second loader is begun anew."""
    assert min(s.seconds for s in seen.watched.steps.steps) > 0.0045
    assert sum(s.first_of_epoch for s in seen.watched.steps.steps) == 1


def _no_evaluation_in_a_step(seen: Seen) -> None:
    asked = [r.t0 for r in seen.watched.process.of(Kind.NEXT) if r.a in seen.watched.steps.eval_loaders]
    assert asked
    assert not any(s.start <= t < s.end for t in asked for s in seen.watched.steps.steps)


def _two_training_loaders(seen: Seen) -> None:
    assert len(seen.watched.steps.loaders) == 2


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
        loop="for i in range(",
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
        check=_two_training_loaders,
        loop="for (x, y), (u, v) in zip(",
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
        loop="for i, (x, y) in enumerate(",
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
        loop="while x is not None:",
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
        loop="for x, y in batches(",
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
        loop="while (batch := q.get()) is not None:",
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
        check=_two_training_loaders,
        loop="for (x, y), (u, _) in zip(",
    ),
    Shape(
        "iter_next_with_workers",
        SGD
        + """
        loader = DataLoader(Points(24), batch_size=4, num_workers=1)
        it = iter(loader)
        for i in range(15):
            try: x, y = next(it)
            except StopIteration: it = iter(loader); x, y = next(it)
            """
        + LEARN,
        steps=14,  # nothing follows the last
        loop="for i in range(",
    ),
    Shape(
        "endless_generator",
        SGD
        + """
        def endless(loader):
            while True: yield from loader
        batches = endless(DataLoader(Points(28), batch_size=4))
        for i in range(21):
            x, y = next(batches)
            """
        + LEARN,
        steps=20,
        loop="for i in range(",
    ),
    Shape(
        "own_meter_around_the_loader",
        SGD
        + """
        def log_every(loader, n):
            end = time.time()
            for i, batch in enumerate(loader):
                waited = time.time() - end
                yield batch
                if i % n == 0: print(i, waited, time.time() - end)
                end = time.time()
        def train_one_epoch(loader):
            for x, y in log_every(loader, 5):
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        for epoch in range(2): train_one_epoch(DataLoader(Points(), batch_size=4))
        """,
        steps=40,
        loop="for x, y in log_every(",
    ),
    Shape(
        "prefetcher_one_ahead",
        SGD
        + """
        class Prefetcher:
            def __init__(self, loader): self.it = iter(loader); self.preload()
            def preload(self):
                try: self.x, self.y = next(self.it)
                except StopIteration: self.x = self.y = None
            def next(self):
                x, y = self.x, self.y
                self.preload()
                return x, y
        for epoch in range(2):
            ahead = Prefetcher(DataLoader(Points(), batch_size=4))
            x, y = ahead.next()
            while x is not None:
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
                x, y = ahead.next()
        """,
        steps=38,  # the request that ends an epoch comes before its last two updates
        loop="while x is not None:",
    ),
    Shape(
        "one_iterator_for_all_epochs",
        SGD
        + """
        class Repeat:
            def __init__(self, sampler): self.sampler = sampler
            def __len__(self): return len(self.sampler)
            def __iter__(self):
                while True: yield from self.sampler
        class Infinite(DataLoader):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                object.__setattr__(self, "batch_sampler", Repeat(self.batch_sampler))
                self.iterator = super().__iter__()
            def __len__(self): return len(self.batch_sampler.sampler)
            def __iter__(self):
                for _ in range(len(self)): yield next(self.iterator)
        loader = Infinite(Points(40), batch_size=4)
        for epoch in range(3):
            for x, y in loader:
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        steps=29,  # nothing follows the last
        loop="for x, y in loader",
    ),
    Shape(
        "its_own_get_iterator",
        SGD
        + """
        class Own(DataLoader):
            def __iter__(self): return self._get_iterator()
        for epoch in range(2):
            for x, y in Own(Points(40), batch_size=4):
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        steps=20,
        loop="for x, y in Own(",
    ),
    Shape(
        "made_again_from_its_signature",
        SGD
        + """
        import inspect
        def prepare(loader):
            names = [n for n in inspect.signature(DataLoader.__init__).parameters if hasattr(loader, n)]
            kept = {n: getattr(loader, n) for n in names} | {"batch_size": 4}
            return type(loader)(**{n: v for n, v in kept.items() if n not in ("batch_sampler", "shuffle", "self")})
        for x, y in prepare(DataLoader(Points(), batch_size=2)):
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        steps=20,
        loop="for x, y in prepare(",
    ),
    Shape(
        "folds",
        """
        def fit(fold):
            net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1)
            train, val = DataLoader(Points(40), batch_size=4), DataLoader(Points(8), batch_size=4)
            for x, y in train:
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
            net.eval()
            with torch.no_grad():
                for x, y in val: net(x)
        for fold in range(3): fit(fold)
        """,
        steps=30,
        roles=("train", "eval"),
        loop="for x, y in train",
    ),
    Shape(
        "loader_of_another_make",
        SGD
        + """
        class Other:
            def __iter__(self):
                for i in range(21): time.sleep(0.002); yield torch.randn(4, 8), torch.arange(4)
        for x, y in Other():
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        found_by="optimizer",
        steps=20,
        roles=(),
        loop="for x, y in Other(",
    ),
    Shape(
        "buffer_in_a_thread",
        SGD
        + """
        import queue, threading
        class ThreadDataLoader(DataLoader):
            def __iter__(self):
                q = queue.Queue(1)
                def fill():
                    for batch in super(ThreadDataLoader, self).__iter__(): q.put(batch)
                    q.put(None)
                thread = threading.Thread(target=fill, daemon=True); thread.start()
                while (batch := q.get()) is not None: yield batch
                thread.join()
        for epoch in range(2):
            for x, y in ThreadDataLoader(Points(), batch_size=4):
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        found_by="optimizer",
        steps=39,  # nothing marks the end of an epoch
        loop="for x, y in ThreadDataLoader(",
    ),
    Shape(
        "second_loader_begins_anew",
        SGD
        + """
        labelled, unlabelled = DataLoader(Points(12), batch_size=4), DataLoader(Points(), batch_size=4)
        it = iter(labelled)
        for u, _ in unlabelled:
            time.sleep(0.005)
            try: x, y = next(it)
            except StopIteration: it = iter(labelled); x, y = next(it)
            opt.zero_grad(); (loss_of(net(x), y) + net(u).mean()).backward(); opt.step()
        """,
        steps=20,
        roles=("train", "train"),
        loop="for u, _ in unlabelled",
        check=_each_step_waits,
    ),
    Shape(
        "epochs_of_counted_batches",
        SGD
        + """
        train, val = DataLoader(Points(), batch_size=4), DataLoader(Points(8), batch_size=4)
        def validate():
            time.sleep(0.01); net.eval()
            with torch.no_grad():
                for x, y in val: net(x); time.sleep(0.05)
            net.train()
        for epoch in range(3):
            batches = iter(train)
            for i in range(len(train)):
                x, y = next(batches)
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
            validate()
        """,
        steps=59,  # nothing follows the last
        roles=("train", "eval"),
        loop="for i in range(len(train))",
        check=_no_evaluation_in_a_step,
    ),
    Shape(
        "one_iterator_and_an_evaluation",
        SGD
        + """
        class Repeat:
            def __init__(self, sampler): self.sampler = sampler
            def __len__(self): return len(self.sampler)
            def __iter__(self):
                while True: yield from self.sampler
        class Infinite(DataLoader):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                object.__setattr__(self, "batch_sampler", Repeat(self.batch_sampler))
                self.iterator = super().__iter__()
            def __iter__(self):
                for _ in range(len(self)): yield next(self.iterator)
        train, val = Infinite(Points(40), batch_size=4), DataLoader(Points(8), batch_size=4)
        for epoch in range(3):
            for x, y in train:
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
            net.eval()
            with torch.no_grad():
                for x, y in val: net(x); time.sleep(0.05)
            net.train()
        """,
        steps=29,  # nothing follows the last
        roles=("train", "eval"),
        loop="for x, y in train",
        check=_no_evaluation_in_a_step,
    ),
]
