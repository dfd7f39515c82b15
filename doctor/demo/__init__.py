"""The bundled demo: a training script of the kind people really write, and photos for it to train on."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fasttrain_doctor.errors import UsageError

NEEDS = {"PIL": "pillow", "torchvision": "torchvision"}  # module -> distribution
SCRIPT = "train.py"
PHOTOS = "photos"


def prepare(folder: Path) -> str:
    """Put the script and its photos into ``folder``; return a line that says what is there.

    Raises:
        UsageError: ``demo-needs-vision``, the extra ``vision`` is not installed.
        OSError: the folder cannot be written to.
    """
    missing = [name for module, name in NEEDS.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise UsageError(
            "demo-needs-vision", f"the demo needs {' and '.join(missing)}: pip install 'fasttrain-doctor[vision]'"
        )
    from fasttrain_doctor.demo import make_images

    shutil.copyfile(Path(__file__).with_name(SCRIPT), folder / SCRIPT)
    made = make_images.make(folder / PHOTOS)
    return f"{made.files} photos ({made.bytes / 1e6:.0f} MB) and {SCRIPT} in {folder}"


@contextlib.contextmanager
def place(*, keep: bool) -> Iterator[str]:
    """Make the demo in a temporary folder and work there; yield a line that says what is there.

    The script gets one compute thread, as torchrun gives it, unless OMP_NUM_THREADS says otherwise: on a small machine
    a second one would fight with the loader's workers over the cores.

    Afterwards the photos go, unless ``keep``; the run and its report stay. Without a run all goes.

    Raises:
        UsageError: ``demo-needs-vision``.
        OSError: there is no room for it.
    """
    folder = Path(tempfile.mkdtemp(prefix="fasttrain-doctor-demo-"))
    try:
        said = prepare(folder)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        with contextlib.chdir(folder):
            yield f"{said}, OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}"
    finally:
        if not keep:
            shutil.rmtree(folder / PHOTOS, ignore_errors=True)
            if {entry.name for entry in folder.iterdir()} <= {SCRIPT}:
                shutil.rmtree(folder, ignore_errors=True)
