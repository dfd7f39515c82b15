"""Facts about the user's objects: plain values, read once, never the data itself."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

from fasttrain_doctor.probe.state import qualname, user_line


def initialized() -> bool:
    """Whether the script has put CUDA to use; asking does not initialise it."""
    import torch

    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _asked(obj: Any, name: str) -> Any:
    """Return an attribute of the user's; None where there is none, or where asking fails in whatever way."""
    try:
        return getattr(obj, name, None)
    except Exception:
        return None


def _length(obj: Any) -> int | None:
    try:
        return len(obj)
    except Exception:
        return None


def loader(obj: Any) -> dict[str, Any]:
    """Describe a DataLoader as it is configured now; ``file`` and ``line`` say where it is iterated or was made."""
    import torch

    dataset = getattr(obj, "dataset", None)
    iterable = isinstance(dataset, torch.utils.data.IterableDataset)
    sampler = getattr(obj, "batch_sampler", None)
    if sampler is None:  # not `or`: a sampler may have no length, and so no truth
        sampler = getattr(obj, "sampler", None)
    inner = _asked(sampler, "sampler")
    context = getattr(obj, "multiprocessing_context", None)
    at = user_line(2)
    # Asking an iterable loader for its length would make torch warn when the two disagree.
    length = None if iterable else _length(obj)
    return {
        "cls": qualname(obj),
        "num_workers": int(getattr(obj, "num_workers", 0) or 0),
        "prefetch_factor": getattr(obj, "prefetch_factor", None),
        "pin_memory": bool(getattr(obj, "pin_memory", False)),
        "persistent_workers": bool(getattr(obj, "persistent_workers", False)),
        "batch_size": getattr(obj, "batch_size", None) or _asked(sampler, "batch_size"),
        "length": length,
        "dataset": qualname(dataset),
        "dataset_length": None if iterable else _length(dataset),
        "iterable": iterable,
        "sampler": qualname(inner if inner is not None else sampler),
        "drop_last": bool(getattr(obj, "drop_last", False)),
        "start_method": context.get_start_method() if context is not None else None,
        "worker_init_fn": getattr(obj, "worker_init_fn", None) is not None,
        "collate": _function(getattr(obj, "collate_fn", None)),
        "transforms": transforms(dataset),
        "file": at[0] if at else None,
        "line": at[1] if at else None,
        "function": at[2] if at else None,
    }


def _function(obj: Any) -> str | None:
    name = _asked(obj, "__qualname__")
    return None if name is None else f"{_asked(obj, '__module__')}.{name}"


def transforms(dataset: Any) -> list[dict[str, Any]] | None:
    """Name the steps of a dataset's torchvision-style ``transform``, with mean and std where one normalises."""
    for _ in range(8):  # Subset and friends wrap the data set that has the transform
        transform = _asked(dataset, "transform")
        if transform is not None:
            break
        dataset = _asked(dataset, "dataset")
        if dataset is None:
            return None
    else:
        return None
    steps = _asked(transform, "transforms")
    if not isinstance(steps, (list, tuple)):
        steps = [transform]
    out = []
    for step in steps[:32]:
        entry: dict[str, Any] = {"name": qualname(step)}
        mean, std = _asked(step, "mean"), _asked(step, "std")
        if isinstance(mean, (list, tuple)) and isinstance(std, (list, tuple)):
            entry |= {"mean": [float(x) for x in mean], "std": [float(x) for x in std]}
        out.append(entry)
    return out


_DEEPEST = 4  # containers within containers of a batch
_MOST_LEAVES = 256  # of one container that are looked at; the others are taken to be like them
_MOST_LOOKS = 4096  # after which one of each container is


class _Leaves:
    """A batch's tensors, and how many of them and of other objects it holds in all."""

    def __init__(self, data: Any) -> None:
        self.seen: list[Any] = []  # the tensors looked at
        self.tensors = self.objects = self.bytes = 0.0
        self._looks = 0
        self._walk(data, 0, 1.0)

    def _walk(self, value: Any, depth: int, times: float) -> None:
        import torch

        self._looks += 1
        if isinstance(value, torch.Tensor):
            self.tensors += times
            self.bytes += times * value.numel() * value.element_size()
            self.seen.append(value)
        elif isinstance(value, dict):
            self._parts(list(value.values()), depth, times)
        elif isinstance(value, (list, tuple)):
            self._parts(value, depth, times)
        elif hasattr(value, "__dict__"):
            tensors, objects = self.tensors, self.objects
            self._parts(list(vars(value).values()), depth, times)
            if self.tensors == tensors:  # an object of its own, such as an image
                self.objects = objects + times
        elif value is not None:
            self.objects += times

    def _parts(self, parts: list[Any] | tuple[Any, ...], depth: int, times: float) -> None:
        if depth >= _DEEPEST or not parts:
            return
        looked_at = parts[: _MOST_LEAVES if self._looks < _MOST_LOOKS else 1]
        for part in looked_at:
            self._walk(part, depth + 1, times * len(parts) / len(looked_at))


def batch(data: Any) -> dict[str, Any]:
    """Describe a batch: bytes of its tensors, tensors and other objects in it; of the largest dtype, shape, pinning."""
    leaves = _Leaves(data)
    counts = {"batch_tensors": round(leaves.tensors), "batch_objects": round(leaves.objects)}
    tensors = leaves.seen
    if not tensors:
        return {"batch_bytes": None, **counts}
    largest = max(tensors, key=lambda t: t.numel() * t.element_size())
    _largest.append(weakref.ref(largest))
    del _largest[:-2]  # a loop that fetches one ahead copies the one before
    return {
        **counts,
        "batch_bytes": round(leaves.bytes),
        "batch_dtype": str(largest.dtype).removeprefix("torch."),
        "batch_shape": None if largest.is_nested else list(largest.shape),
        "batch_pinned": bool(largest.device.type == "cpu" and initialized() and largest.is_pinned()),
    }


_largest: list[weakref.ref[Any]] = []


def is_largest(tensor: Any) -> bool:
    """Whether this is the largest tensor of a batch described lately."""
    return any(ref() is tensor for ref in _largest)


def optimizer(obj: Any) -> dict[str, Any]:
    """Describe an optimizer by its first group's flags and its parameters' sizes."""
    groups = getattr(obj, "param_groups", None) or [{}]
    tensors = [p for g in groups for p in g.get("params", ()) if hasattr(p, "numel")]
    first = groups[0]
    at = user_line(2)
    return {
        "cls": qualname(obj),
        "parameters": len(tensors),
        "elements": sum(p.numel() for p in tensors),
        "foreach": first.get("foreach"),
        "fused": first.get("fused"),
        "capturable": first.get("capturable"),
        "differentiable": first.get("differentiable"),
        "device": tensors[0].device.type if tensors else "cpu",
        "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in tensors}),
        "file": at[0] if at else None,
        "line": at[1] if at else None,
    }


def model(obj: Any) -> dict[str, Any]:
    """Describe the root module of a training forward."""
    import torch

    parameters = list(obj.parameters())
    kinds = [type(m) for m in obj.modules()]
    convs = [m for m in obj.modules() if isinstance(m, torch.nn.modules.conv._ConvNd)]
    largest = max(parameters, key=lambda p: p.numel(), default=None)
    device = largest.device.type if largest is not None else "cpu"
    return {
        "cls": qualname(obj),
        "anomaly": torch.is_anomaly_enabled(),  # also where it is on for the computing alone, and off at a step's border
        "parameters": len(parameters),
        "elements": sum(p.numel() for p in parameters),
        "dtype": str(largest.dtype).removeprefix("torch.") if largest is not None else "float32",
        "device": device,
        "autocast": _autocast(device),
        "compiled": any(k.__name__ == "OptimizedModule" for k in kinds),
        "tf32": torch.backends.cuda.matmul.allow_tf32 if device == "cuda" else None,
        "modules": len(kinds),
        "conv_elements": sum(p.numel() for m in convs for p in m.parameters(recurse=False)),
        "batch_norms": sum(issubclass(k, torch.nn.modules.batchnorm._BatchNorm) for k in kinds),
    }


def _autocast(device: str) -> str | None:
    """Return the type that autocast computes with now on a device; None where it is off."""
    import torch

    if device not in ("cpu", "cuda"):
        return None
    if hasattr(torch, "get_autocast_dtype"):  # from torch 2.4 on
        on, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    elif device == "cpu":
        on, dtype = torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()
    else:
        on, dtype = torch._C.is_autocast_enabled(), torch.get_autocast_gpu_dtype()
    return str(dtype).removeprefix("torch.") if on else None


def threads() -> dict[str, Any]:
    """Return how many threads torch and OpenCV, where it is imported, compute one call with in this process."""
    import torch

    cv2 = sys.modules.get("cv2")
    return {
        "threads": int(torch.get_num_threads()),
        "cv2_threads": int(cv2.getNumThreads()) if cv2 is not None and hasattr(cv2, "getNumThreads") else None,
    }


_FRAMEWORKS = ("lightning", "pytorch_lightning", "transformers", "accelerate", "ignite", "fastai", "composer", "skorch")


def framework() -> str | None:
    """Name the training framework whose code is on the stack, if any."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if top in _FRAMEWORKS:
            return "lightning" if top == "pytorch_lightning" else top
        frame = frame.f_back
    return None
