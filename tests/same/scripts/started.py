"""Prints how it was started and on what, trains two steps, and prints it again: no more than most small scripts do."""

import os
import sys
import termios


def told():
    size = os.get_terminal_size(1) if os.isatty(1) else None
    return [os.isatty(fd) for fd in (0, 1, 2)], size, sys.stdout.isatty(), sys.stdout.line_buffering


def terminal():
    if not os.isatty(0):
        return None
    modes = termios.tcgetattr(0)
    # Not its echo: what is typed has been shown by the real terminal already.
    return (
        modes[0],
        modes[3] & ~termios.ECHO,
        os.tcgetpgrp(0) == os.getpgrp(),
        os.ttyname(0) == os.ttyname(1),
        os.ctermid(),
    )


print(
    sys.argv,
    sys.orig_argv[1:],
    __name__,
    __spec__ and __spec__.name,
    sys.path[:2] and [p for p in sys.path if "site" not in p],
)
print(sys.flags, sys.warnoptions, sys._xoptions, __debug__)
print(told(), terminal())
for name in ("kernels", "doctor", "records", "state", "tuners", "user_site", "welcome"):
    try:
        print(name, getattr(__import__(name), "MINE", None))
    except ImportError as error:
        print(error)

import torch  # noqa: E402
from torch import nn  # noqa: E402

torch.manual_seed(0)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for k in range(8):
    opt.zero_grad()
    loss = net(torch.rand(4, 4)).mean()
    loss.backward()
    opt.step()
    print(f"\r{k} {loss.item().hex()}", end="", file=sys.stderr, flush=True)
print(file=sys.stderr)
print(told(), terminal())
if "--fail" in sys.argv:
    net(torch.rand(3))
