"""What a sampled stack says: which stage of a sample it is in, and what a blocked thread waits for. Pure.

Stacks are innermost frame first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class State(IntEnum):
    """What the kernel says of a thread."""

    UNKNOWN = 0  # it keeps no such record, or its numbers are not known for this processor
    RUNNING = 1
    INTERPRETER = 2  # waits for the interpreter's lock, if only because the sampler has just taken it
    FUTEX = 3  # waits for another thread: a lock, a condition, a native pool
    FILE_LOCK = 4
    BLOCKED = 5  # in any other call, or in a page fault: reads, opens, sockets, sleeps


class Wait(IntEnum):
    """What a blocked thread waits for."""

    NOTHING = 0
    IO = 1
    LOCK = 2
    POOL = 3  # the work of another thread


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. ``module`` is its ``__name__``; the rest is looked up for some frames only.

    ``call`` is the dotted text of what the frame is calling, ``callee`` the module that belongs to, ``enters`` whether
    it is entering a ``with``.
    """

    file: str
    line: int
    function: str
    module: str
    user: bool = False  # the user's own code
    call: str = ""
    callee: str = ""
    enters: bool = False
    timed: bool = False  # the timer around one transform


Stack = Sequence[Frame]

# Waiting in these is waiting for what another thread or process is asked to do.
_POOLS = ("concurrent.futures", "multiprocessing.pool", "multiprocessing.queues", "multiprocessing.connection",
          "queue", "asyncio", "joblib", "loky", "trio")  # fmt: skip

# What decodes wherever it is called from; of the others (images' own operations) only outside a transform.
_DECODERS = ("torchvision.io", "torchcodec", "torchaudio", "imageio", "soundfile", "librosa", "audioread", "av",
             "decord", "turbojpeg", "simplejpeg", "pyvips", "rawpy", "tifffile", "rasterio", "pydicom", "nibabel",
             "SimpleITK", "skimage.io", "zlib", "gzip", "bz2", "lzma", "zipfile", "tarfile", "lz4", "zstd", "zstandard",
             "blosc", "blosc2", "snappy", "brotli", "h5py", "zarr", "numcodecs", "tables", "pyarrow",
             "PIL.ImageFile", "nvidia.dali")  # fmt: skip
_IMAGING = ("PIL", "cv2", "skimage")
_DECODING_CALLS = ("imread", "imdecode", "imreadmulti", "imdecodemulti")  # of cv2

_FETCH = "torch.utils.data._utils.fetch"
_LOADER = "torch.utils.data.dataloader"
_PIN = "torch.utils.data._utils.pin_memory"
_PASSING = ("torch.multiprocessing", "multiprocessing.reduction", "multiprocessing.resource_sharer")
_TAKING = ("get", "recv_bytes", "_recv_bytes", "_recv")
_OPENERS = ("io", "_io", "posix", "builtins")
_OPTIMIZERS, _SCHEDULER = ("torch.optim",), "torch.optim.lr_scheduler"
_OURS = "fasttrain_doctor"


def _of(module: str, families: Sequence[str]) -> bool:
    return any(module == family or module.startswith(family + ".") for family in families)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def waits_for(stack: Stack, state: State) -> Wait:
    """Return what a thread in this state waits for.

    A futex alone says little: native thread pools wait on them as well, for work that is the caller's own. A lock is
    only what the code calls one.
    """
    if state is State.FILE_LOCK:
        return Wait.LOCK
    if state is State.BLOCKED:
        return Wait.IO
    if state is not State.FUTEX or not stack:
        return Wait.NOTHING
    library = []  # from the innermost frame to the first of the user's
    for frame in stack:
        if frame.user:
            break
        library.append(frame)
    if any(_of(frame.module, _POOLS) for frame in library):
        return Wait.POOL
    threads = [f.function for f in library if f.module in ("threading", "multiprocessing.synchronize")]
    if threads:
        return Wait.LOCK if {"acquire", "__enter__"} & set(threads) else Wait.POOL
    leaf = stack[0]
    if leaf.enters or _last(leaf.call) in ("acquire", "__enter__"):
        return Wait.LOCK
    return Wait.POOL if _last(leaf.call) in ("get", "join", "result") else Wait.NOTHING


def pooled(stack: Stack) -> bool:
    """Whether a thread is a pool's, at work."""
    return any(_of(frame.module, _POOLS) for frame in stack)


def collates(stack: Stack) -> bool:
    """Whether a stack inside a fetch is past the samples, in the collate function."""
    return any(f.module == _FETCH and _last(f.call) == "collate_fn" for f in stack)


def stage(stack: Stack, state: State) -> str:
    """Return the stage of a stack inside a fetch (``evidence.STAGES``); waits for others are not its business."""
    if collates(stack):
        return "collate"
    if state is State.BLOCKED:
        return "read"
    if stack and stack[0].callee in _OPENERS and _last(stack[0].call) == "open":
        return "read"
    transformed = any(frame.timed for frame in stack)
    if _decodes(stack, transformed):
        return "decode"
    return "transform" if transformed else "item"


def _decodes(stack: Stack, transformed: bool) -> bool:
    for frame in stack:
        names = (frame.module, frame.callee)
        if any(_of(name, _DECODERS) for name in names if name):
            return True
        if frame.module.startswith("PIL.") and (frame.module.endswith("ImagePlugin") or frame.function == "open"):
            return True
        if frame.callee == "cv2" and _last(frame.call) in _DECODING_CALLS:
            return True
        if not transformed and any(_of(name, _IMAGING) for name in names if name):
            return True
    return False


def outside(stack: Stack, state: State) -> str | None:
    """Return the stage of a stack outside any fetch: what the loader does around it; None for anything else."""
    for i, frame in enumerate(stack):
        module, function = frame.module, frame.function
        if module == _LOADER and function == "_next_index":
            return "sampler"
        if module == _PIN and function.startswith("pin_memory"):
            return None if waits_for(stack, state) is Wait.LOCK else "pin"
        if (module == _LOADER and function == "_try_get_data") or (module == _PIN and function == "do_one_step"):
            return "transfer" if _takes(stack[:i], state) else None
        if module == "multiprocessing.queues" and function == "_feed":
            return "transfer"
    return None


def _takes(inner: Stack, state: State) -> bool:
    """Whether a batch is being taken out of the queue, not waited for."""
    if any(_of(f.module, _PASSING) for f in inner):
        return True  # rebuilding a tensor, also where its memory is asked for over a socket
    busy = state in (State.RUNNING, State.INTERPRETER)
    return busy and bool(inner) and inner[0].function in _TAKING and inner[0].module != "queue"


def in_loop(stack: Stack) -> bool:
    """Whether the training thread is in the loop's own Python: in no hooked call and in no optimizer.

    What an optimizer calls back, its closure, is the loop's again.
    """
    for frame in stack:
        if frame.module.startswith(_OURS):
            return frame.function == "closure"
        if _of(frame.module, _OPTIMIZERS) and frame.module != _SCHEDULER:
            return False
    return True


def place(stack: Stack) -> Frame | None:
    """Return the innermost frame of the user's own code."""
    return next((f for f in stack if f.user), None)
