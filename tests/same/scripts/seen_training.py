"""What a script can see of torch and of its own objects while it trains."""

import copy
import inspect
import io
import json
import logging
import pickle
import pickletools
import traceback
import warnings

from seen_process import modules
from telling import digest, fact, frames, say


def training():
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    say("defaults", (torch.get_num_threads(), torch.get_num_interop_threads(), torch.is_grad_enabled()))
    say("torch", digest(json.dumps(sorted(dir(torch))).encode()))

    class Refused(Exception):
        pass

    class Points(Dataset):
        bad = None

        def __len__(self):
            return 32

        def __getitem__(self, i):
            if i == self.bad:
                raise Refused(i)
            if i == 5:
                warnings.warn("of the sample's asker", stacklevel=2)
            return torch.full((8,), i / 32), i % 4

    class Stepped(nn.Module):
        """Goes its own way to the call, as some frameworks' bases do."""

        def __call__(self, *args, **kwargs):
            calls.append("before")
            return super().__call__(*args, **kwargs)

    class Net(Stepped):
        bad = False

        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

        def forward(self, x):
            if self.bad:
                raise Refused("forward")
            return self.body(x)

    class Loader(DataLoader):
        def __iter__(self):
            calls.append("iter")
            yield from super().__iter__()

    class Optimizer(torch.optim.SGD):
        bad = False

        def step(self, closure=None):
            calls.append("step")
            if self.bad:
                raise Refused("step")
            return super().step(closure)

        def zero_grad(self, set_to_none=True):
            calls.append("zero")
            return super().zero_grad(set_to_none)

    class Hurt(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise Refused("backward")

    calls = []
    torch.manual_seed(0)
    net = Net()
    plain = nn.Linear(8, 4)
    opt = Optimizer(net.parameters(), 0.1)
    data = Points()
    loader = Loader(data, batch_size=4, shuffle=True)

    def train():
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
            nn.functional.cross_entropy(plain(x), y).backward()
        return x

    def raised(call):
        """How an exception that passes by a hook looks, to a script that prints it, logs it or goes through its frames."""
        try:
            call()
        except BaseException as error:
            held = io.StringIO()
            handler = logging.StreamHandler(held)
            log = logging.getLogger("mine")
            log.addHandler(handler)
            log.propagate = False
            log.exception("failed")
            log.removeHandler(handler)
            caused = error.__cause__ or error.__context__
            text = held.getvalue()
            return (
                frames(error.__traceback__),
                type(error),
                repr(caused),
                digest(text.encode()),
                traceback.format_exc() in text,
            )
        return None

    def exceptions(when):
        def backward(_):
            Hurt.apply(torch.ones(2, requires_grad=True)).sum().backward()

        def grad(_):
            x = torch.ones(2, requires_grad=True)
            torch.autograd.grad(Hurt.apply(x).sum(), [x])

        def closure(_):
            def refuse():
                raise Refused("closure")

            torch.optim.SGD(plain.parameters(), 0.1).step(refuse)

        def forward(_):
            net.bad = True
            try:
                net(torch.zeros(2, 8))
            finally:
                net.bad = False

        def step(_):
            opt.bad = True
            try:
                opt.step()
            finally:
                opt.bad = False

        def sample(_):
            data.bad = 7
            try:
                for _ in loader:
                    pass
            finally:
                data.bad = None

        def stopped(_):
            it = iter(DataLoader(data, batch_size=32))
            next(it)
            next(it)

        def shape(_):
            plain(torch.zeros(2, 3))

        def saved(_):
            torch.save(lambda: 0, io.BytesIO())

        def logged(_):
            class Bad(logging.Handler):
                def emit(self, record):
                    raise Refused("handler")

            log = logging.Logger("x")
            log.addHandler(Bad())
            log.warning("hello")

        def printed(_):
            class Bad:
                def __str__(self):
                    raise Refused("print")

            print(Bad())

        def zero(_):
            torch.optim.SGD(plain.parameters(), 0.1).zero_grad(1, 2, 3)

        for call in (backward, grad, closure, forward, step, sample, stopped, shape, saved, logged, printed, zero):
            say(f"raised {when} {call.__name__}", raised(lambda call=call: call(0)))

    exceptions("before training")
    modules("before training")
    x = train()
    say("calls", (len(calls), digest(repr(calls).encode())))
    exceptions("after training")
    modules("after training")

    signatures = (
        DataLoader.__init__, DataLoader.__iter__, DataLoader, torch.optim.SGD.step, torch.optim.Optimizer.zero_grad,
        torch.autograd.backward, torch.autograd.grad, nn.Module.__call__, nn.Linear.__call__, Net.__call__, Net.forward,
        nn.Module.forward, torch.save, torch.Tensor.backward, torch.Tensor.to, logging.Logger.handle, print,
        torch.utils.data._utils.fetch._MapDatasetFetcher.fetch, torch.amp.GradScaler.step,
        torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
    )  # fmt: skip
    for function in signatures:
        names = (
            getattr(function, "__name__", ""),
            getattr(function, "__qualname__", ""),
            getattr(function, "__module__", ""),
        )
        try:
            signature = inspect.signature(function)
        except ValueError as error:
            signature = str(error)
        say(f"signature {names[1]}", (signature, names, function.__doc__ and digest(function.__doc__.encode())))

    @fact
    def classes():
        kinds = (Net, Stepped, type(plain), nn.Module, Loader, Optimizer)
        # A hooked root's class has a call of its own in its dictionary: known, and the only trace of ours on a class.
        return [(k.__name__, sorted({*vars(k)} - {"__call__"}), [c.__name__ for c in k.__mro__]) for k in kinds]

    @fact
    def own():
        return sorted(vars(net)), sorted(vars(opt)), sorted(vars(loader)), sorted(vars(data)), net._forward_hooks

    @fact
    def global_hooks():
        import torch.nn.modules.module as module

        return (
            len(module._global_forward_hooks),
            len(module._global_forward_pre_hooks),
            len(opt._optimizer_step_pre_hooks),
        )

    @fact
    def pickled():
        objects = (plain, nn.Sequential(nn.Linear(2, 2)), torch.optim.SGD(plain.parameters(), 0.1), DataLoader([1, 2]))
        names = [
            [(op.name, arg) for op, arg, _ in pickletools.genops(pickle.dumps(o)) if isinstance(arg, str)]
            for o in objects
        ]
        return [digest(repr(each).encode()) for each in names], [type(copy.deepcopy(o)) for o in objects]

    @fact
    def saved():
        held = io.BytesIO()
        torch.save({"net": plain, "x": x}, held)
        return digest(held.getvalue())

    @fact
    def functions_pickled():
        return [digest(pickle.dumps(f)) for f in (torch.save, torch.autograd.backward, nn.Module.__call__, print)]

    @fact
    def traced():
        from torch.fx import symbolic_trace

        class Around(nn.Module):
            def __init__(self):
                super().__init__()
                self.plain, self.body = plain, net.body

            def forward(self, x):
                return self.plain(x) + self.body(x)

        graphs = symbolic_trace(Around()), symbolic_trace(net.body), symbolic_trace(plain)
        return [str(g.graph) for g in graphs]

    @fact
    def scripted():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.jit.script(net.body).code, torch.jit.script(plain).code, torch.jit.trace(net.body, x).code

    @fact
    def exported():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [str(torch.export.export(m, (x,)).graph) for m in (net.body, plain)]

    @fact
    def patched_after_us():
        original, seen = nn.Module.__call__, []

        def patched(self, *args, **kwargs):
            seen.append(type(self).__name__)
            return original(self, *args, **kwargs)

        nn.Module.__call__ = patched
        try:
            plain(x), net(x), net.body(x)
        finally:
            nn.Module.__call__ = original
        return seen

    @fact
    def flops():
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            net(x)
            plain(x)
        return {k: {str(op): n for op, n in v.items()} for k, v in counter.get_flop_counts().items()}

    @fact
    def random_states():
        return digest(repr(torch.get_rng_state().tolist()).encode())
