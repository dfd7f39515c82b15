"""Training under frameworks as their users write it, with a counter of the framework's own where it has one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Framework:
    """A script, begun with ``watched.HEAD``.

    ``steps`` are the whole steps of it that can be seen; ``updates`` what it prints as ``updates N``: the framework's own
    count. ``calls`` is what the line named as the loop begins with.
    """

    name: str
    needs: tuple[str, ...]
    script: str
    steps: int
    updates: int
    found_by: str = "loader"
    batches: float = 1.0
    roles: tuple[str, ...] = ("train",)
    calls: str = "trainer.fit("


FRAMEWORKS = [
    Framework(
        "lightning",
        ("lightning",),
        """
        import lightning as L
        class Lit(L.LightningModule):
            def __init__(self): super().__init__(); self.net = Net()
            def training_step(self, batch, i): return loss_of(self.net(batch[0]), batch[1])
            def validation_step(self, batch, i): time.sleep(0.02); self.log("val", loss_of(self.net(batch[0]), batch[1]))
            def configure_optimizers(self): return torch.optim.Adam(self.parameters())
        trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False)
        trainer.fit(Lit(), DataLoader(Points(), batch_size=4), DataLoader(Points(16), batch_size=4))
        print("updates", trainer.global_step)
        """,
        steps=59,  # nothing follows the last
        updates=60,
        roles=("train", "eval"),
    ),
    Framework(
        "lightning_gan",
        ("lightning",),
        """
        import lightning as L
        class Gan(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.automatic_optimization = False
                self.g, self.d = Net(8), Net(1)
            def training_step(self, batch, i):
                og, od = self.optimizers()
                self.toggle_optimizer(od); loss = (self.d(self.g(batch[0]).detach()) - self.d(batch[0])).mean()
                od.zero_grad(); self.manual_backward(loss); od.step(); self.untoggle_optimizer(od)
                if i % 2 == 0:
                    self.toggle_optimizer(og); loss = -self.d(self.g(batch[0])).mean()
                    og.zero_grad(); self.manual_backward(loss); og.step(); self.untoggle_optimizer(og)
            def configure_optimizers(self): return [torch.optim.Adam(m.parameters()) for m in (self.g, self.d)]
        trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False)
        trainer.fit(Gan(), DataLoader(Points(), batch_size=4))
        print("updates", trainer.global_step)
        """,
        steps=39,  # nothing follows the last
        updates=60,  # of both optimizers
        calls="od.zero_grad()",
    ),
    Framework(
        "transformers",
        ("transformers", "accelerate"),
        """
        from transformers import Trainer, TrainingArguments
        class Rows(Points):
            def __getitem__(self, i): return {"x": torch.full((8,), float(i)), "labels": i % 4}
        class Model(Net):
            def forward(self, x, labels): out = self.body(x); return {"loss": loss_of(out, labels), "logits": out}
        arguments = TrainingArguments("out", num_train_epochs=2, per_device_train_batch_size=4, use_cpu=True, report_to=[],
                                      gradient_accumulation_steps=2, save_strategy="no", eval_strategy="steps",
                                      eval_steps=8, disable_tqdm=True)
        trainer = Trainer(Model(), arguments, train_dataset=Rows(), eval_dataset=Rows(16))
        trainer.train()
        print("updates", trainer.state.global_step)
        """,
        steps=18,  # its loader looks one ahead: the last of an epoch comes after that epoch's end
        updates=20,
        batches=2,
        roles=("train", "eval"),
        calls="trainer.train(",
    ),
    Framework(
        "accelerate",
        ("accelerate",),
        """
        from accelerate import Accelerator
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        net = Net()
        net, opt, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters()), DataLoader(Points(), batch_size=4))
        updates = 0
        for epoch in range(2):
            for x, y in loader:
                with accelerator.accumulate(net):
                    accelerator.backward(loss_of(net(x), y))
                    if accelerator.sync_gradients: accelerator.clip_grad_norm_(net.parameters(), 1.0)
                    opt.step(); opt.zero_grad()
                    updates += accelerator.sync_gradients
        print("updates", updates)
        """,
        steps=18,  # its loader looks one ahead
        updates=20,
        batches=2,
        calls="for x, y in loader",
    ),
    Framework(
        "ignite",
        ("ignite",),
        """
        from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
        from ignite.metrics import Accuracy
        net = Net(); loader = DataLoader(Points(), batch_size=4); val = DataLoader(Points(16), batch_size=4)
        trainer = create_supervised_trainer(net, torch.optim.SGD(net.parameters(), 0.1), loss_of)
        evaluator = create_supervised_evaluator(net, {"acc": Accuracy()})
        @trainer.on(Events.EPOCH_COMPLETED)
        def _(engine): evaluator.run(val)
        trainer.run(loader, max_epochs=2)
        print("updates", trainer.state.iteration)
        """,
        steps=39,  # nothing follows the last
        updates=40,
        roles=("train", "eval"),
        calls="trainer.run(",
    ),
    Framework(
        "skorch",
        ("skorch",),
        """
        import numpy
        from skorch import NeuralNetClassifier
        from skorch.callbacks import Callback
        class Count(Callback):
            updates = 0
            def on_batch_end(self, net, training, **kwargs): Count.updates += training
        net = NeuralNetClassifier(Net, criterion=nn.CrossEntropyLoss, max_epochs=3, batch_size=4, callbacks=[Count()], verbose=0)
        net.fit(numpy.random.randn(80, 8).astype("float32"), numpy.arange(80) % 4)
        print("updates", Count.updates)
        """,
        steps=48,  # a fifth is for validation
        updates=48,
        roles=("train", "eval"),
        calls="net.fit(",
    ),
    Framework(
        "fastai",
        ("fastai",),
        """
        from fastai.callback.core import Callback
        from fastai.data.core import DataLoaders
        from fastai.data.load import DataLoader as Own
        from fastai.learner import Learner
        class Count(Callback):
            updates = 0
            def after_step(self): Count.updates += 1
        rows = [(torch.randn(8), torch.tensor(i % 4)) for i in range(80)]
        loaders = DataLoaders(Own(rows, bs=4, shuffle=True), Own(rows[:16], bs=4), device=torch.device("cpu"))
        learner = Learner(loaders, Net(), loss_func=loss_of, cbs=[Count()])
        with learner.no_logging(): learner.fit(2)
        print("updates", Count.updates)
        """,
        steps=40,
        updates=40,
        roles=("train", "eval"),
        calls="with learner",
    ),
    Framework(
        "torch_geometric",
        ("torch_geometric",),
        """
        from torch_geometric.data import Data
        from torch_geometric.loader import DataLoader as Graphs
        from torch_geometric.nn import GCNConv, global_mean_pool
        class G(nn.Module):
            def __init__(self): super().__init__(); self.a, self.b = GCNConv(8, 16), nn.Linear(16, 4)
            def forward(self, d): return self.b(global_mean_pool(self.a(d.x, d.edge_index).relu(), d.batch))
        ring = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])
        graphs = [Data(x=torch.randn(6, 8), edge_index=ring, y=torch.tensor([i % 4])) for i in range(80)]
        net = G(); opt = torch.optim.Adam(net.parameters()); updates = 0
        for epoch in range(2):
            for d in Graphs(graphs, batch_size=4, shuffle=True):
                opt.zero_grad(); loss_of(net(d.to("cpu")), d.y).backward(); opt.step(); updates += 1
        print("updates", updates)
        """,
        steps=40,
        updates=40,
        calls="for d in Graphs(",
    ),
    Framework(
        "timm",
        ("timm",),
        """
        import numpy, timm
        from timm.data import Mixup, create_loader
        from timm.optim import create_optimizer_v2
        from timm.utils import ModelEmaV3, NativeScaler
        from PIL import Image
        class Images(Points):
            transform = None
            def __getitem__(self, i):
                image = Image.fromarray(numpy.full((40, 40, 3), i % 256, dtype="uint8"))
                return self.transform(image), i % 4
        loader, val = (create_loader(Images(n), (3, 32, 32), batch_size=4, is_training=t, num_workers=0, use_prefetcher=False,
                                     persistent_workers=False, pin_memory=False, device=torch.device("cpu"))
                       for n, t in ((40, True), (8, False)))
        net = timm.create_model("test_resnet", num_classes=4); opt = create_optimizer_v2(net, "adamw"); ema = ModelEmaV3(net)
        updates = 0
        for epoch in range(2):
            net.train()
            for x, y in loader:
                opt.zero_grad(); loss_of(net(x), y).backward(); opt.step(); ema.update(net); updates += 1
            net.eval()
            with torch.no_grad():
                for x, y in val: ema.module(x)
        print("updates", updates)
        """,
        steps=20,
        updates=20,
        roles=("train", "eval"),
        calls="for x, y in loader",
    ),
    Framework(
        "ultralytics",
        ("ultralytics",),
        """
        import os, numpy
        from PIL import Image
        for part, n in (("train", 24), ("val", 8)):
            os.makedirs(f"data/images/{part}"); os.makedirs(f"data/labels/{part}")
            for i in range(n):
                noise = numpy.random.default_rng(i).integers(0, 255, (64, 64, 3), dtype="uint8")
                Image.fromarray(noise).save(f"data/images/{part}/{i}.jpg")
                open(f"data/labels/{part}/{i}.txt", "w").write("0 0.5 0.5 0.4 0.4\\n")
        open("data.yaml", "w").write(f"path: {os.getcwd()}/data\\ntrain: images/train\\nval: images/val\\nnames: [thing]\\n")
        os.environ["YOLO_CONFIG_DIR"] = os.getcwd()
        from ultralytics import YOLO
        model = YOLO("yolov8n.yaml")
        updates = 0
        def stepped(trainer):
            global updates
            updates += 1
        model.add_callback("on_train_batch_end", stepped)
        model.train(data="data.yaml", epochs=2, imgsz=64, batch=4, nbs=4, workers=0, device="cpu", plots=False, verbose=False,
                    save=False, amp=False, warmup_epochs=0, project=os.getcwd())
        print("updates", updates)
        """,
        steps=11,  # nothing follows the last
        updates=12,
        roles=("train", "eval"),
        calls="model.train(",
    ),
    Framework(
        "monai",
        ("monai",),
        """
        from monai.data import Dataset as Rows, DataLoader as Own, MetaTensor
        rows = Rows([{"x": MetaTensor(torch.randn(8)), "y": i % 4} for i in range(80)])
        net = Net(); opt = torch.optim.Adam(net.parameters()); updates = 0
        for epoch in range(2):
            for batch in Own(rows, batch_size=4, shuffle=True):
                opt.zero_grad(); loss_of(net(batch["x"]), batch["y"]).backward(); opt.step(); updates += 1
        print("updates", updates)
        """,
        steps=40,
        updates=40,
        calls="for batch in Own(",
    ),
    Framework(
        "monai_thread",
        ("monai",),
        """
        from monai.data import Dataset as Rows, ThreadDataLoader
        rows = Rows([{"x": torch.randn(8), "y": i % 4} for i in range(80)])
        net = Net(); opt = torch.optim.Adam(net.parameters()); updates = 0
        for epoch in range(2):
            for batch in ThreadDataLoader(rows, batch_size=4, num_workers=0):
                opt.zero_grad(); loss_of(net(batch["x"]), batch["y"]).backward(); opt.step(); updates += 1
        print("updates", updates)
        """,
        steps=39,  # nothing marks the end of an epoch
        updates=40,
        found_by="optimizer",
        calls="for batch in ThreadDataLoader(",
    ),
    Framework(
        "webdataset",
        ("webdataset",),
        """
        import io, tarfile, numpy, webdataset
        with tarfile.open("rows.tar", "w") as tar:
            for i in range(80):
                for name, value in ((f"{i:04}.x.npy", numpy.full(8, i, "float32")), (f"{i:04}.cls", None)):
                    into = io.BytesIO()
                    numpy.save(into, value) if value is not None else into.write(str(i % 4).encode())
                    info = tarfile.TarInfo(name); info.size = len(into.getvalue()); into.seek(0); tar.addfile(info, into)
        rows = webdataset.WebDataset("rows.tar", shardshuffle=False).decode().to_tuple("x.npy", "cls").batched(4)
        net = Net(); opt = torch.optim.Adam(net.parameters()); updates = 0
        for epoch in range(2):
            for x, y in webdataset.WebLoader(rows, batch_size=None):
                opt.zero_grad(); loss_of(net(torch.as_tensor(x)), torch.as_tensor(y)).backward(); opt.step(); updates += 1
        print("updates", updates)
        """,
        steps=40,
        updates=40,
        calls="for x, y in webdataset",
    ),
]
