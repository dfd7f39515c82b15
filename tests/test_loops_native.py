"""Threads that no Python started: those that decode for a fetch are told from those that compute for the training."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrain_doctor.evidence import Phase
from tests.watched import HEAD, assert_sums, watch

# A thread of the C library's own, which counts the bytes of a long string while Python waits for it.
NATIVE = """
import ctypes
libc = ctypes.CDLL(None)
ready = ctypes.create_string_buffer(b"x" * 40_000_000)
start = ctypes.cast(libc.strlen, ctypes.c_void_p)
class Decoded(Points):
    def __getitem__(self, i):
        thread = ctypes.c_ulong()
        for _ in range(3):
            libc.pthread_create(ctypes.byref(thread), None, start, ready); libc.pthread_join(thread, None)
        return super().__getitem__(i)
"""

SLEEPS = """
class Decoded(Points):
    def __getitem__(self, i): time.sleep(0.004); return super().__getitem__(i)
"""

TRAINS = """
torch.set_num_threads(2)
net = nn.Sequential(nn.Linear(8, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 4))
opt = torch.optim.SGD(net.parameters(), 0.01)
for x, y in DataLoader(Decoded(60), batch_size=2):
    x = x.repeat(64, 1); y = y.repeat(64)
    opt.zero_grad(); loss_of(net(x), y).backward(); opt.step()
"""


@pytest.mark.alone
def test_a_decoders_own_thread_prepares_from_its_first_moment_on(tmp_path: Path) -> None:
    seen = watch(HEAD + NATIVE + TRAINS, tmp_path, env={"OMP_NUM_THREADS": "2"})
    assert seen.steps == 30
    assert seen.phase(Phase.PREPARE) > 2 * seen.phase(Phase.IO)
    assert_sums(seen.breakdown)


@pytest.mark.alone
def test_threads_of_the_training_that_spin_on_decode_nothing(tmp_path: Path) -> None:
    seen = watch(HEAD + SLEEPS + TRAINS, tmp_path, env={"OMP_NUM_THREADS": "2"})
    assert seen.steps == 30
    assert (
        seen.phase(Phase.IO) > 0.005
    )  # two waits of 4 ms, less what the threads could have decoded until they are known
    assert_sums(seen.breakdown)
