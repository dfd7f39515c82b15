"""What is asked for: data sets, samplers, workers and batches of every kind."""

from __future__ import annotations

import pytest

from tests.loop_shape import LEARN, SGD, Shape
from tests.watched import Seen


def _samples_are_counted(seen: Seen) -> None:
    """No sampler says how many there are in a batch: they are counted."""
    assert seen.breakdown.samples_per_step == pytest.approx(3, abs=0.2)


SHAPES = [
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
        loop="for batch in DataLoader(",
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
        "batches_of_every_kind",
        SGD
        + """
        import collections, dataclasses
        from torch.nn.utils.rnn import pack_sequence
        @dataclasses.dataclass
        class Batch:
            packed: object; extra: dict
            def to(self, *a, **k): return Batch(self.packed.to(*a, **k), self.extra)
        class Slots:
            __slots__ = ("x", "y")
        Named = collections.namedtuple("Named", "x y")
        count = 0
        def collate(rows):
            global count
            count += 1
            x, y = torch.stack([r[0] for r in rows]), torch.tensor([r[1] for r in rows])
            slots = Slots(); slots.x, slots.y = x, y
            nested = torch.nested.nested_tensor([x[:1], x[1:]])
            return [Batch(pack_sequence(list(x.unsqueeze(-1))), {"x": x, "y": y}), [{"x": x}, {"y": y}], slots, Named(x, y),
                    (nested, x, y), {"deep": {"x": [x], "y": y}}][count % 6]
        for batch in DataLoader(Points(72), batch_size=4, collate_fn=lambda rows: collate(rows)):
            if isinstance(batch, Batch): x, y = batch.to("cpu").extra.values()
            elif isinstance(batch, list): x, y = batch[0]["x"], batch[1]["y"]
            elif isinstance(batch, dict): x, y = batch["deep"]["x"][0], batch["deep"]["y"]
            elif isinstance(batch, tuple) and len(batch) == 3: _, x, y = batch
            else: x, y = batch.x, batch.y
            """
        + LEARN,
        steps=18,
        loop="for batch in DataLoader(",
    ),
    Shape(
        "batch_sampler",
        SGD
        + """
        class Grouped:
            def __iter__(self):
                for i in range(20): yield [4 * i + k for k in range(4)] if i % 2 else [4 * i, 4 * i + 1]
            def __len__(self): return 20
        for x, y in DataLoader(Points(), batch_sampler=Grouped()):
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        steps=20,
        check=_samples_are_counted,
    ),
    Shape(
        "batches_made_by_the_dataset",
        SGD
        + """
        class Batches(Dataset):
            def __len__(self): return 20
            def __getitem__(self, i): return torch.full((4, 8), float(i)), torch.arange(4)
        for x, y in DataLoader(Batches(), batch_size=None, sampler=range(20)):
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        steps=20,
    ),
    Shape(
        "shards",
        SGD
        + """
        class Shards(IterableDataset):
            def __iter__(self):
                info = torch.utils.data.get_worker_info()
                for i in range(info.id, 80, info.num_workers): yield torch.full((8,), float(i)), i % 4
        for epoch in range(2):
            for x, y in DataLoader(Shards(), batch_size=4, num_workers=2, persistent_workers=True):
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        steps=40,
    ),
    Shape(
        "what_no_worker_could_be_sent",
        SGD
        + """
        import threading
        class Held(Points):
            def __init__(self): super().__init__(); self.file, self.lock = open(__file__, "rb"), threading.Lock()
            def __getitem__(self, i):
                with self.lock: self.file.seek(0); self.file.read(8)
                return super().__getitem__(i)
        for x, y in DataLoader(Held(), batch_size=4, collate_fn=lambda rows: torch.utils.data.default_collate(rows)):
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        steps=20,
    ),
    Shape(
        "more_workers_than_cores",
        SGD
        + """
        for x, y in DataLoader(Points(), batch_size=4, num_workers=6):
            opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        """,
        steps=20,
    ),
    Shape(
        "settings_by_exec",
        SGD
        + """
        import os, tempfile
        os.environ["OMP_NUM_THREADS"] = "1"; torch.set_num_threads(1); os.chdir(tempfile.mkdtemp())
        batch_size = 2
        exec("batch_size = 4")
        def train():
            for x, y in DataLoader(Points(), batch_size=batch_size):
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
        train()
        """,
        steps=20,
    ),
]
