"""Seeded trainings, one a name on the command line; each prints a hash of its losses, weights and random states."""

import copy
import hashlib
import io
import os
import pickle
import random
import sys
import threading

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset


class Points(Dataset):
    def __init__(self, n=64):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.full((8,), i / self.n), i % 4


class Drawn(Points):
    """Augments with all three generators."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + torch.rand(8) + random.random() + float(np.random.rand()), y


class Own(Points):
    """Has a generator of its own, and keeps count."""

    def __init__(self):
        super().__init__()
        self.generator, self.asked = torch.Generator().manual_seed(7), []

    def __getitem__(self, i):
        self.asked.append(i)
        return torch.rand(8, generator=self.generator), i % 4


class Batched(Points):
    def __getitems__(self, indices):
        return [(torch.full((8,), i / self.n) + torch.rand(8), i % 4) for i in indices]


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for i in range(0 if info is None else info.id, 64, 1 if info is None else info.num_workers):
            yield torch.rand(8) + i, i % 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))

    def forward(self, x):
        return self.body(x)


loss_of = nn.CrossEntropyLoss()
losses = []


def step(net, opt, x, y):
    opt.zero_grad()
    loss = loss_of(net(x), y)
    loss.backward()
    opt.step()
    losses.append(loss.item())


def over(make, epochs=2, **settings):
    """Train over a loader's batches; a new loader each epoch, as many scripts do."""
    net = Net()
    opt = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(epochs):
        for x, y in DataLoader(make(), batch_size=4, **settings):
            step(net, opt, x, y)
    return net


def map_style():
    return over(Drawn, shuffle=True)


def iterable():
    return over(Stream)


def all_at_once():
    return over(Batched, shuffle=True)


def fork():
    return over(Drawn, shuffle=True, num_workers=2)


def iterable_workers():
    return over(Stream, num_workers=2, persistent_workers=True)


def spawn():
    return over(Drawn, epochs=1, shuffle=True, num_workers=1, multiprocessing_context="spawn")


def forkserver():
    return over(Drawn, epochs=1, shuffle=True, num_workers=1, multiprocessing_context="forkserver")


def own_generator():
    data, sampling = Own(), torch.Generator().manual_seed(3)
    net = over(lambda: data, shuffle=True, generator=sampling)
    losses.extend(float(i) for i in data.asked)
    return net


def accumulation():
    net = Net()
    opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, 0.2, total_steps=20)
    for k, (x, y) in enumerate(DataLoader(Drawn(), batch_size=4, shuffle=True)):
        loss = loss_of(net(x), y) / 4
        loss.backward()
        losses.append(loss.item())
        if k % 4 == 3:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            scheduler.step()
            opt.zero_grad()
            losses.append(scheduler.get_last_lr()[0])
    return net


def gan():
    maker, judge = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    first, second = torch.optim.Adam(judge.parameters()), torch.optim.Adam(maker.parameters())
    judged = nn.BCEWithLogitsLoss()
    for x, _ in DataLoader(Drawn(), batch_size=8, shuffle=True, drop_last=True):
        made = maker(torch.randn(8, 4))
        first.zero_grad()
        loss = judged(judge(x), torch.ones(8, 1)) + judged(judge(made.detach()), torch.zeros(8, 1))
        loss.backward()
        first.step()
        second.zero_grad()
        fooled = judged(judge(made), torch.ones(8, 1))
        fooled.backward()
        second.step()
        losses.extend((loss.item(), fooled.item()))
    return nn.ModuleList([maker, judge])


def lbfgs():
    net = nn.Linear(8, 4)
    opt = torch.optim.LBFGS(net.parameters(), max_iter=4)
    for x, y in DataLoader(Drawn(32), batch_size=16, shuffle=True):

        def closure(x=x, y=y):
            opt.zero_grad()
            loss = loss_of(net(x), y)
            loss.backward()
            losses.append(loss.item())
            return loss

        losses.append(float(opt.step(closure)))
    return net


def amp():
    net = Net()
    opt = torch.optim.AdamW(net.parameters())
    for x, y in DataLoader(Drawn(), batch_size=8, shuffle=True):
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(net(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return net


def by_hand():
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    for x, y in DataLoader(Drawn(), batch_size=8, shuffle=True):
        loss = loss_of(net(x), y)
        grads = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for p, g in zip(net.parameters(), grads, strict=True):
                p -= 0.1 * g
        losses.append(loss.item())
    return net


def no_loader():
    net = Net()
    opt = torch.optim.SGD(net.parameters(), 0.1)
    xs, ys = torch.rand(64, 8), torch.arange(64) % 4
    for _ in range(20):
        at = torch.randint(0, 64, (8,))
        step(net, opt, xs[at], ys[at])
    return net


def copied():
    """Copies, pickles and saves everything in the middle, and goes on with the copies."""
    net = Net()
    opt = torch.optim.Adam(net.parameters())
    loader = DataLoader(Drawn(), batch_size=4, shuffle=True)
    for k, (x, y) in enumerate(loader):
        step(net, opt, x, y)
        if k % 5 == 4:
            held = io.BytesIO()
            torch.save({"net": net, "opt": opt.state_dict()}, held)
            losses.append(float(len(held.getvalue())))
            held.seek(0)
            loaded = torch.load(held, weights_only=False)
            net = pickle.loads(pickle.dumps(copy.deepcopy(loaded["net"])))
            opt = torch.optim.Adam(net.parameters())
            opt.load_state_dict(loaded["opt"])
            copy.deepcopy(opt).step()
            pickle.loads(pickle.dumps(loader))
    return net


def evaluated():
    net = Net()
    opt = torch.optim.SGD(net.parameters(), 0.1)
    train, held_out = DataLoader(Drawn(), batch_size=8, shuffle=True), DataLoader(Drawn(32), batch_size=8)
    for _ in range(2):
        net.train()
        for x, y in train:
            step(net, opt, x, y)
        net.eval()
        with torch.no_grad():
            losses.extend(loss_of(net(x), y).item() for x, y in held_out)
    return net


def in_a_thread():
    done = []

    def work():
        done.append(map_style())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return done[0]


def checkpointed():
    from torch.utils.checkpoint import checkpoint

    net = Net()
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader(TensorDataset(torch.rand(64, 8), torch.arange(64) % 4), batch_size=8, shuffle=True):
        opt.zero_grad()
        loss = loss_of(checkpoint(net, x.requires_grad_(), use_reentrant=True), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return net


def compiled():
    """Compiled with the eager backend, which takes the graphs but needs no C++ compiler; counts graphs and breaks."""
    import torch._dynamo.utils as told

    net = Net()
    fast = torch.compile(net, backend="eager")
    opt = torch.optim.SGD(net.parameters(), 0.1)

    @torch.compile(backend="eager")
    def talking(x):
        x = x + 1
        print("in a compiled function")
        return net.body(x) * 2

    for k, (x, y) in enumerate(DataLoader(Drawn(), batch_size=8, shuffle=True)):
        step(fast, opt, x, y)
        if k > 4:
            losses.append(float(talking(x).sum()))
    print({name: dict(counts) for name, counts in sorted(told.counters.items()) if name in _COUNTED})
    return net


_COUNTED = ("stats", "graph_break", "recompiles", "recompile_limit", "unimplemented", "resumes")


def distributed():
    """Two processes by torchrun."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    net = nn.parallel.DistributedDataParallel(Net())
    opt = torch.optim.SGD(net.parameters(), 0.1)
    data = Drawn()
    sampler = torch.utils.data.DistributedSampler(data)
    for x, y in DataLoader(data, batch_size=4, sampler=sampler):
        step(net, opt, x, y)
    dist.destroy_process_group()
    return net


def main(names):
    for name in names:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        losses.clear()
        net = globals()[name]()
        weights = b"".join(p.detach().numpy().tobytes() for p in net.state_dict().values())
        states = repr((torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()))
        parts = np.array(losses).tobytes(), weights, states.encode()
        rank = os.environ.get("RANK", "")
        line = " ".join([name + rank, str(len(losses)), *(hashlib.sha256(part).hexdigest()[:16] for part in parts)])
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
