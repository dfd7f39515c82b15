"""Start-up, ends of epochs and threads of a real run, against waits that the script plants."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrain_doctor.epochs import epoch_cost, startup_of
from fasttrain_doctor.window_facts import batch_of, debug_of, queued_of, threads_of, worker_threads_of
from tests.watched import HEAD, watch

SCRIPT = (
    HEAD
    + """
import io, logging

class Slow(io.BytesIO):
    first = True
    def write(self, data):
        if self.first: time.sleep(0.15); self.first = False
        return super().write(data)

class Handler(logging.Handler):
    def emit(self, record): time.sleep(0.1)
logging.getLogger().addHandler(Handler())

class Named(Points):
    def __getitem__(self, i): return *super().__getitem__(i), "name"

class Held(Points):
    def __getitem__(self, i): time.sleep(0.02); return super().__getitem__(i)

class Lazy(Net):
    ready = False
    def forward(self, x):
        if not self.ready: time.sleep(0.4); self.ready = True
        return super().forward(x)

def start(number):
    torch.set_num_threads(3)
    time.sleep(0.2)

def main():
    torch.set_num_threads(2)
    time.sleep(0.5)
    train = DataLoader(Named(24), batch_size=4, num_workers=1, worker_init_fn=start)
    held = DataLoader(Held(10), batch_size=5)
    net = Lazy()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    print(time.monotonic(), flush=True)
    for epoch in range(100):
        for x, y, _ in train:
            with torch.autograd.detect_anomaly():
                loss = loss_of(net(x), y)
                opt.zero_grad(); loss.backward(); opt.step()
        with torch.no_grad():
            for x, y in held: net(x)
        torch.save(net.state_dict(), Slow())
        logging.getLogger().warning("epoch %d", epoch)
        time.sleep(0.05)

if __name__ == "__main__":
    main()
"""
)


@pytest.mark.alone
def test_what_a_script_plants_outside_its_steps_is_found(tmp_path: Path):
    seen = watch(SCRIPT, tmp_path, steps=20)
    watched = seen.watched
    imported = next(float(f["clock"]) for f in watched.process.facts_of("process")) / 1e9
    startup = startup_of(watched, imported - 1.5)
    assert startup.imports == pytest.approx(1.5)
    assert startup.setup == pytest.approx(float(seen.stdout) - imported, abs=0.2)
    assert 0.2 <= (startup.first_batch or 0) + (startup.workers or 0) < 1.2
    assert 0.4 <= (startup.first_step or 0) < 1.0
    cost = epoch_cost(watched)
    assert cost.batches == 6
    assert 0.2 <= (cost.start or 0) < 0.6
    assert 0.2 <= (cost.eval or 0) < 0.4
    assert 0.15 <= (cost.checkpoint or 0) < 0.3
    assert 0.1 <= (cost.logging or 0) < 0.2
    assert 0.05 <= (cost.other or 0) < 0.15
    assert (threads_of(watched.process), worker_threads_of(watched.workers)) == (2, 3)
    assert batch_of(watched.process, watched.loader_fact) == (2, 4)
    assert [mode.name for mode in debug_of(watched.process) or ()] == ["anomaly detection"]
    assert 0 <= (queued_of(watched.process) or 0) < 1
