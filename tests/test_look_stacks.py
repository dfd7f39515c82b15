"""What sampled stacks say, on stacks made by hand; innermost frame first."""

from __future__ import annotations

import contextlib
import dis
import functools
import os
import sys
import threading
import warnings
import zlib

import pytest

from fasttrain_doctor.probe.looking_code import Reader
from fasttrain_doctor.probe.looking_facts import Clocked, in_fetches, weights
from fasttrain_doctor.probe.looking_files import Counter
from fasttrain_doctor.probe.looking_sampler import Kernel, Sample, Sampler
from fasttrain_doctor.probe.looking_stacks import Frame, State, Wait, in_loop, outside, place, stage, waits_for

FETCH = Frame("fetch.py", 54, "fetch", "torch.utils.data._utils.fetch")
COLLATING = Frame("fetch.py", 56, "fetch", "torch.utils.data._utils.fetch", call="self.collate_fn")
ITEM = Frame("/train.py", 7, "__getitem__", "__main__", user=True)
TIMER = Frame("looking_transforms.py", 50, "_timed", "fasttrain_doctor.probe.looking_transforms", timed=True)


def calling(call: str, callee: str = "", **more) -> Frame:
    """The user's ``__getitem__`` while it calls something made in C."""
    return Frame("/train.py", 9, "__getitem__", "__main__", user=True, call=call, callee=callee, **more)


def library(module: str, function: str, call: str = "") -> Frame:
    return Frame(module.replace(".", "/") + ".py", 1, function, module, call=call)


STAGES = {
    "computing in its own code": ([ITEM, FETCH], State.RUNNING, "item"),
    "asleep or reading": ([calling("time.sleep", "time"), FETCH], State.BLOCKED, "read"),
    "opening, also from the page cache": ([calling("open", "_io"), FETCH], State.RUNNING, "read"),
    "something else that is called open": ([calling("box.open"), FETCH], State.RUNNING, "item"),
    "a library's own frame": ([library("PIL.Image", "convert"), ITEM, FETCH], State.RUNNING, "decode"),
    "a decoder made in C": ([calling("zlib.decompress", "zlib"), FETCH], State.RUNNING, "decode"),
    "read by a decoder": ([library("PIL.ImageFile", "load"), ITEM, FETCH], State.BLOCKED, "read"),
    "an image's operation in a transform": (
        [library("PIL.Image", "resize"), TIMER, ITEM, FETCH], State.RUNNING, "transform"),
    "an image read late, in a transform": (
        [library("PIL.ImageFile", "load"), library("PIL.Image", "resize"), TIMER, ITEM], State.RUNNING, "decode"),
    "cv2 reading in a transform": ([calling("cv2.imread", "cv2"), TIMER, ITEM], State.RUNNING, "decode"),
    "cv2 resizing in a transform": ([calling("cv2.resize", "cv2"), TIMER, ITEM], State.RUNNING, "transform"),
    "cv2 resizing elsewhere": ([calling("cv2.resize", "cv2"), FETCH], State.RUNNING, "decode"),
    "a user's transform": ([library("scipy.ndimage", "zoom"), TIMER, ITEM, FETCH], State.INTERPRETER, "transform"),
    "collating": ([library("torch.utils.data._utils.collate", "collate"), COLLATING], State.RUNNING, "collate"),
    "collating, blocked": ([calling("time.sleep"), COLLATING], State.BLOCKED, "collate"),
}  # fmt: skip


@pytest.mark.parametrize(("stack", "state", "expected"), STAGES.values(), ids=STAGES)
def test_a_stack_inside_a_fetch_is_in_one_stage(stack, state, expected):
    assert stage(stack, state) == expected


WAITS = {
    "a lock entered by with": ([calling("", enters=True)], State.FUTEX, Wait.LOCK),
    "a lock acquired": ([calling("self.lock.acquire")], State.FUTEX, Wait.LOCK),
    "a condition's lock": ([library("threading", "__enter__"), ITEM], State.FUTEX, Wait.LOCK),
    "a semaphore": (
        [library("threading", "wait", "waiter.acquire"), library("threading", "acquire"), ITEM], State.FUTEX, Wait.LOCK),
    "a lock of multiprocessing": ([library("multiprocessing.synchronize", "__enter__"), ITEM], State.FUTEX, Wait.LOCK),
    "a locked file": ([calling("fcntl.flock", "fcntl")], State.FILE_LOCK, Wait.LOCK),
    "a future's result": (
        [library("threading", "wait", "waiter.acquire"), library("concurrent.futures._base", "result"), ITEM],
        State.FUTEX, Wait.POOL),
    "a pool's map": (
        [library("threading", "wait"), library("multiprocessing.pool", "get"), ITEM], State.FUTEX, Wait.POOL),
    "a queue": ([library("threading", "wait"), library("queue", "get"), ITEM], State.FUTEX, Wait.POOL),
    "an event": ([library("threading", "wait", "waiter.acquire"), ITEM], State.FUTEX, Wait.POOL),
    "a native pool of what is called": ([calling("torch.mm", "torch")], State.FUTEX, Wait.NOTHING),
    "the interpreter": ([calling("", enters=True)], State.INTERPRETER, Wait.NOTHING),
    "a read": ([calling("f.read")], State.BLOCKED, Wait.IO),
    "nothing": ([ITEM], State.RUNNING, Wait.NOTHING),
    "nothing that is known": ([calling("", enters=True)], State.UNKNOWN, Wait.NOTHING),
}  # fmt: skip


@pytest.mark.parametrize(("stack", "state", "expected"), WAITS.values(), ids=WAITS)
def test_what_a_blocked_thread_waits_for_is_what_its_code_calls_it(stack, state, expected):
    assert waits_for(stack, state) is expected


LOADER = "torch.utils.data.dataloader"
TAKING = library(LOADER, "_try_get_data")
OUTSIDE = {
    "drawing indices": ([library("random", "shuffle"), library(LOADER, "_next_index")], State.RUNNING, "sampler"),
    "waiting for a batch": ([library("select", "poll"), library("multiprocessing.queues", "get"), TAKING],
                            State.BLOCKED, None),
    "unpickling a batch": ([library("multiprocessing.queues", "get"), TAKING], State.RUNNING, "transfer"),
    "asking for a tensor's memory": (
        [library("multiprocessing.resource_sharer", "get_connection"), library("multiprocessing.queues", "get"), TAKING],
        State.BLOCKED, "transfer"),
    "waiting for the pinning thread": ([library("threading", "wait"), library("queue", "get"), TAKING],
                                       State.FUTEX, None),
    "pickling": ([library("multiprocessing.queues", "_feed")], State.RUNNING, "transfer"),
    "pinning": ([library("torch.utils.data._utils.pin_memory", "pin_memory")], State.RUNNING, "pin"),
    "a worker without work": ([library("multiprocessing.queues", "get"),
                               library("torch.utils.data._utils.worker", "_worker_loop")], State.BLOCKED, None),
    "the user's loop": ([ITEM], State.RUNNING, None),
}  # fmt: skip


@pytest.mark.parametrize(("stack", "state", "expected"), OUTSIDE.values(), ids=OUTSIDE)
def test_around_fetches_only_work_counts_not_waiting(stack, state, expected):
    assert outside(stack, state) == expected


def test_the_loops_own_python_is_in_no_hooked_call_and_in_no_optimizer():
    assert in_loop([library("numpy", "mean"), ITEM])
    assert not in_loop(
        [library("torch.nn.functional", "linear"), library("fasttrain_doctor.probe.training", "__call__")]
    )
    assert not in_loop([library("torch.optim.sgd", "step"), library("torch.optim.lr_scheduler", "wrapper"), ITEM])
    assert in_loop([library("torch.optim.lr_scheduler", "step"), ITEM]), "a schedule is no update"
    closing = [ITEM, library("fasttrain_doctor.probe.training", "closure"), library("torch.optim.lbfgs", "step")]
    assert in_loop(closing), "what an optimizer calls back is the loop's"


def test_the_line_named_is_the_innermost_of_the_users_own():
    assert place([library("json", "loads"), ITEM, calling("x")]) == ITEM
    assert place([library("json", "loads")]) is None


# -- from code to frames ------------------------------------------------------------------------------------------

lock = threading.Lock()


def compressed(data):
    return len(
        zlib.compress(data),
    )


def entering():
    with lock:
        return 1


def offset_of(function, name: str) -> int:
    """The offset of the first instruction of a kind."""
    return next(i.offset for i in dis.get_instructions(function) if i.opname == name)


def frame_of(function, name: str) -> Frame:
    code = function.__code__
    reader = Reader({id(code): (code, function.__globals__)}, frozenset())
    return reader.stack((id(code), offset_of(function, name)))[0]


def test_the_call_under_way_is_read_from_the_source_with_the_module_it_leads_to():
    frame = frame_of(compressed, "CALL")
    assert (frame.call, frame.callee) == ("zlib.compress", "zlib")
    assert frame.function == "compressed"
    assert frame.line == compressed.__code__.co_firstlineno + 2
    assert frame.user


def made(source: str, file, **space):
    """A function ``made`` of source that says it is from a file."""
    exec(compile(source, str(file), "exec"), space)
    return space["made"]


def test_a_form_feed_begins_no_line_and_an_escape_without_meaning_warns_nobody(tmp_path):
    source = "import zlib\n\f\ndef made(x):\n    return zlib.compress(x, '\\d')\n"
    file = tmp_path / "fed.py"
    file.write_text(source)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        function = made(source, file)
        of_python = len(told)
        assert frame_of(function, "CALL").call == "zlib.compress"
    assert len(told) == of_python


def test_code_that_says_it_is_from_a_pipe_is_not_read_there(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert frame_of(made("def made(x): return x.load()", tmp_path / "pipe"), "CALL").call == ""


def test_a_name_that_stands_for_nothing_yet_is_not_asked(tmp_path):
    class Unbound:
        @property
        def __class__(self):
            raise RuntimeError("there is nothing that this stands for")

    source = "def made(): return current.load()\n"
    (tmp_path / "app.py").write_text(source)
    frame = frame_of(made(source, tmp_path / "app.py", current=Unbound()), "CALL")
    assert (frame.call, frame.callee) == ("current.load", "")


def test_entering_a_with_is_told_from_calling_something_in_its_line():
    enters = "BEFORE_WITH" if "BEFORE_WITH" in dis.opmap else "CALL"
    assert frame_of(entering, enters).enters
    assert not frame_of(compressed, "CALL").enters


# -- weights ------------------------------------------------------------------------------------------------------

sample = functools.partial(Sample, (), wall=1000, cpu=0)


def test_samples_divide_what_the_fetches_own_accounting_says_was_blocked():
    samples = [sample(state=State.BLOCKED)] * 3 + [sample(state=State.RUNNING)] * 7
    waiting, other = weights(samples, 20_000, 8_000)
    assert waiting * 3_000 == pytest.approx(8_000)
    assert other * 7_000 == pytest.approx(12_000)


def test_blocked_time_is_at_most_twice_what_samples_say():
    samples = [sample(state=State.BLOCKED)] + [sample(state=State.RUNNING)] * 9
    waiting, other = weights(samples, 10_000, 9_000)
    assert waiting * 1_000 == pytest.approx(2_000)
    assert other * 9_000 == pytest.approx(8_000)


@pytest.mark.parametrize(
    ("states", "blocked"), [([State.RUNNING], 500), ([State.BLOCKED], 500), ([State.RUNNING], None)]
)
def test_where_samples_show_but_one_side_they_stand_for_the_whole(states, blocked):
    waiting, other = weights([sample(state=state) for state in states], 2_000, blocked)
    assert waiting == other == 2.0


def test_no_sample_stands_for_nothing():
    assert weights([], 2_000, 0) == (0.0, 0.0)


def test_waiting_for_the_interpreter_while_others_compute_is_waiting_for_a_lock():
    hog = [sample(state=State.INTERPRETER, queued=900)] * 6
    sums = in_fetches(hog, Clocked(6_000), 5_400, Reader({}, frozenset()))
    assert sums.lock == pytest.approx(5_400, rel=0.01)
    assert sums.stages["item"] == pytest.approx(600, abs=10)


def test_waiting_for_a_pool_is_what_its_threads_do():
    code = compressed.__code__
    key = (id(code), offset_of(compressed, "CALL"))
    waited = wait_for_event.__code__
    own = (id(waited), offset_of(wait_for_event, "CALL"))
    reader = Reader({id(c): (c, f.__globals__) for c, f in ((code, compressed), (waited, wait_for_event))}, frozenset())
    busy = Sample(own, State.FUTEX, wall=1000, cpu=0, helpers=((key, State.RUNNING),))
    sums = in_fetches([busy] * 5, Clocked(5_000), 5_000, reader)
    assert +sums.stages == {"decode": 5_000}
    assert sums.waits == {"io": 0, "lock": 0, "pool": 5_000}
    assert [frame.function for frame in sums.lines] == ["compressed"]


def test_one_that_has_just_been_given_a_pools_result_waited_for_the_pool_and_for_no_lock():
    """The sampler is let in when the pool's thread is done, and finds the fetch about to go on."""
    own = (id(wait_for_event.__code__), offset_of(wait_for_event, "CALL"))
    reader = Reader({own[0]: (wait_for_event.__code__, wait_for_event.__globals__)}, frozenset())
    given = Sample(own, State.INTERPRETER, wall=1000, cpu=0, queued=900)
    sums = in_fetches([given] * 5, Clocked(5_000), 4_500, reader)
    assert sums.lock == 0
    assert sums.waits["pool"] == pytest.approx(4_500, abs=10)
    assert sums.stages["decode"] == pytest.approx(4_500, abs=10)


def test_what_collation_and_transforms_take_is_told_by_the_clock_however_rarely_samples_meet_them():
    """A thread in Python's own code gives way late: a short transform is met by none, what follows it by most."""
    sums = in_fetches([sample(state=State.RUNNING)] * 4, Clocked(10_000, 1_000, 6_000), 0, Reader({}, frozenset()))
    assert sums.stages == {"collate": 1_000, "transform": 6_000, "item": 3_000}


def test_transforms_that_run_in_other_threads_take_no_wait_from_the_fetch():
    waits = [sample(state=State.BLOCKED)] * 8 + [sample(state=State.RUNNING)] * 2
    sums = in_fetches(waits, Clocked(10_000, 0, 50_000), 8_000, Reader({}, frozenset()))
    assert sums.stages["read"] == pytest.approx(8_000, abs=10)
    assert sums.stages["transform"] == pytest.approx(2_000, abs=10)


def wait_for_event(future):
    return future.result()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_threads_that_are_gone_keep_no_descriptors_and_one_that_fetches_is_among_many():
    own = threading.get_ident()
    sampler = Sampler(Kernel(), own_code, {}, {own: threading.get_native_id()}, bool, int, bool)
    counter = Counter()
    counter.begin()
    sampler._sample(0, 1_000_000, 0)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with threads_that_wait(4):
            counter.begin()
            sampler._sample(0, 1_000_000, 0)
        counter.begin()
        sampler._sample(0, 1_000_000, 0)
    assert len(os.listdir("/proc/self/fd")) == before
    with threads_that_wait(60) as many:
        sampler.inside[many[-1].ident] = []
        assert many[-1].ident in sampler._threads(0)
    sampler._threads(0)
    for known in sampler._known.values():
        known.close()
    counter.close()


own_code = offset_of.__code__


@contextlib.contextmanager
def threads_that_wait(count: int):
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        done.set()
        for thread in threads:
            thread.join()
