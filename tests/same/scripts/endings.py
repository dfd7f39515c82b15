"""Trains a little, then ends in every way a script can: each in a fork, whose status and last words are printed."""

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def refuse(x):
    raise ValueError("at sample")


class Bad(nn.Module):
    def forward(self, x):
        return refuse(x)


def status_3():
    sys.exit(3)


def text():
    sys.exit("no more data")


def nothing():
    sys.exit(None)


def error():
    Bad()(torch.zeros(1))


def chained():
    try:
        Bad()(torch.zeros(1))
    except ValueError as first:
        raise RuntimeError("while training") from first


def at_once():
    os._exit(7)


def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)


def terminated():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def aborted():
    os.abort()


def catches_everything():
    try:
        sys.exit(5)
    except BaseException as caught:
        print("caught", repr(caught), flush=True)
    os.close(1)


def a_thread_fails():
    thread = threading.Thread(target=error, name="mine")
    thread.start()
    thread.join()


def logged():
    try:
        error()
    except ValueError:
        logging.exception("went wrong")
        traceback.print_exc()


def too_deep():
    def down(x):
        return nn.Sequential(nn.Linear(2, 2))(down(x))

    try:
        down(torch.zeros(1, 2))
    except RecursionError as caught:
        print(caught, flush=True)


def own_hook():
    sys.excepthook = lambda kind, value, trace: print(
        "hooked", [f.name for f in traceback.extract_tb(trace)], flush=True
    )
    error()


def followed():
    seen = []

    def trace(frame, event, arg):
        seen.append((event, frame.f_code.co_name))
        return

    sys.settrace(trace)
    refuse_quietly()
    sys.settrace(None)
    sys.setprofile(lambda *_: None)
    refuse_quietly()
    print(seen, sys.getprofile() is not None, flush=True)


def refuse_quietly():
    return 1


def patched():
    """Replaces what a hook might rely on, and goes on training."""
    import builtins
    import json

    for name in ("perf_counter", "perf_counter_ns", "time", "time_ns", "monotonic", "thread_time_ns"):
        setattr(time, name, lambda: 1)
    json.dumps = lambda *a, **k: b"bytes"
    json.loads = builtins.open = os.getpid = None
    threading.get_ident = lambda: 5
    train()
    print("trained", flush=True)
    os._exit(0)


def in_a_loop_of_events():
    import asyncio

    async def work():
        train()
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    print(asyncio.run(work()), flush=True)


def warned():
    warnings.simplefilter("error")
    try:
        warnings.warn("as an error", stacklevel=1)
    except UserWarning as caught:
        print(repr(caught), flush=True)
    train()


def fault_handler():
    faulthandler.enable()
    print(faulthandler.is_enabled(), flush=True)


ENDINGS = (
    status_3, text, nothing, error, chained, at_once, interrupted, terminated, killed, aborted, catches_everything,
    a_thread_fails, logged, too_deep, own_hook, followed, patched, in_a_loop_of_events, warned, fault_handler,
)  # fmt: skip


def train():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for (x,) in DataLoader(TensorDataset(torch.rand(24, 4)), batch_size=4):
        opt.zero_grad()
        loss = net(x).mean()
        loss.backward()
        opt.step()
    print("loss", loss.item().hex(), flush=True)


def fork(ending):
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        status = os.waitpid(pid, 0)[1]
        print(f"{ending.__name__}: {os.waitstatus_to_exitcode(status)}", flush=True)
    return pid


if __name__ == "__main__":
    train()
    for chosen in ENDINGS:
        if not fork(chosen):
            chosen()
            break
    else:
        print("and the script itself", flush=True)
        sys.exit(int(sys.argv[1]))
