"""Prints what a script can see of its process, its libraries and its own objects: one line a fact."""

import builtins
import copy
import gc
import hashlib
import inspect
import io
import json
import logging
import os
import pickle
import pickletools
import resource
import signal
import subprocess
import sys
import threading
import traceback
import warnings

_OURS = ("fasttrain", "FASTTRAIN_DOCTOR")
# Of the standard library, imported before the script's first line; torch imports each of them as well.
_EARLY = {
    "_ctypes",
    "_json",
    "_struct",
    "_typing",
    "_weakrefset",
    "collections.abc",
    "ctypes",
    "ctypes._endian",
    "fcntl",
    "json",
    "json.decoder",
    "json.encoder",
    "json.scanner",
    "signal",
    "struct",
    "threading",
    "typing",
    "typing.io",
    "typing.re",
    "weakref",
    "math",
    "socket",
    "_socket",
}


def say(name, value):
    sys.stdout.write(f"{name}: {value}\n")


def fact(function):
    try:
        say(function.__name__, function())
    except BaseException as error:
        say(function.__name__, f"{type(error).__name__}: {error}")
    return function


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def status_lines(*names):
    with open("/proc/self/status") as lines:
        return [line.split() for line in lines if line.startswith(names)]


def process():
    """Everything that needs no torch."""

    @fact
    def path():
        return sys.path, sys.argv, sys.orig_argv, os.getcwd(), __name__, sorted(sys.modules["__main__"].__dict__)

    @fact
    def flags():
        return sys.flags, sys.warnoptions, sys.dont_write_bytecode, sys._xoptions, sys.pycache_prefix

    @fact
    def environment():
        known = (
            "PYTHONPATH",
            "WANDB_MODE",
            "NEPTUNE_MODE",
            "COMET_START_ONLINE",
            "CLEARML_OFFLINE_MODE",
            "SWANLAB_MODE",
        )
        return sorted((k, v) for k, v in os.environ.items() if not k.startswith(_OURS) and k not in known)

    @fact
    def signals():
        kinds = [(s.name, signal.getsignal(s)) for s in signal.valid_signals() if isinstance(s, signal.Signals)]
        return sorted(map(str, kinds)), signal.pthread_sigmask(signal.SIG_BLOCK, []), status_lines("Sig", "Shd")[1:]

    @fact
    def threads():
        return (
            [t.name for t in threading.enumerate()],
            threading.active_count(),
            threading.gettrace(),
            threading.getprofile(),
        )

    @fact
    def collector():
        return gc.get_threshold(), gc.isenabled(), gc.get_debug(), gc.get_freeze_count()

    @fact
    def interpreter():
        hooks = sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook, sys.breakpointhook
        return (
            sys.getswitchinterval(),
            sys.getrecursionlimit(),
            sys.gettrace(),
            sys.getprofile(),
            list(map(repr, hooks)),
        )

    @fact
    def recursion():
        def down(n):
            try:
                return down(n + 1)
            except RecursionError:
                return n

        return down(0)

    @fact
    def limits():
        names = sorted(n for n in dir(resource) if n.startswith("RLIMIT_"))
        return [resource.getrlimit(getattr(resource, n)) for n in names], os.umask(0o022), os.nice(0)

    @fact
    def group():
        return os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()

    @fact
    def descriptors_of_a_child():
        words = [sys.executable, "-I", "-S", "-c", "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"]
        return subprocess.run(words, close_fds=False, capture_output=True, text=True).stdout

    @fact
    def descriptors_of_a_fork():
        pid, _got = os.fork(), None
        if pid == 0:
            os._exit(len([fd for fd in range(64) if _inheritable(fd)]))
        return os.waitpid(pid, 0)[1]

    @fact
    def next_descriptor():
        return [os.fstat(fd).st_mode for fd in (0, 1, 2)]

    @fact
    def a_child_with_a_clean_environment():
        words = [sys.executable, "-c", "import sys, os; print(sys.path[1:], sorted(os.environ), sorted(sys.modules))"]
        return subprocess.run(words, env={}, capture_output=True, text=True).stdout

    @fact
    def a_child():
        code = f"import sys; print(sorted(m for m in sys.modules if 'fasttrain' not in m and m not in {_EARLY}), sys.path[1:])"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout

    @fact
    def streams():
        return [(s.name, s.encoding, s.errors, s.line_buffering, s.write_through) for s in (sys.stdout, sys.stderr)]

    @fact
    def shown_warnings():
        return warnings.filters, warnings.showwarning.__module__, logging.getLogger().handlers, logging.root.level

    @fact
    def built_in():
        class Class:
            log = print

        held = io.StringIO()
        stdout, sys.stdout = sys.stdout, held
        try:
            Class().log("from a class")
        finally:
            sys.stdout = stdout
        same = copy.deepcopy(print) is print and pickle.loads(pickle.dumps(print)) is print
        return sorted(dir(builtins)), held.getvalue(), same, print.__name__, print.__module__, print.__self__.__class__

    @fact
    def opened():
        return open is io.open, open.__module__, os.open.__module__, type(open).__name__


def _inheritable(fd):
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def modules(when):
    @fact
    def loaded():
        return when, sorted(m for m in sys.modules if not m.startswith(_OURS) and m not in _EARLY)

    @fact
    def finders():
        others = [
            type(f).__name__ for f in sys.meta_path if not type(f).__module__.startswith((*_OURS, "sitecustomize"))
        ]
        return when, others, len(sys.path_hooks)


def frames(trace):
    return [(os.path.basename(f.filename), f.name) for f in traceback.extract_tb(trace)]


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


if __name__ == "__main__":
    process()
    modules("at first")
    training()
    process()
    sys.stdout.flush()
