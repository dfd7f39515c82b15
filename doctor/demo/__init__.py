"""The bundled demo: a training script of the kind people really write, and photos for it to train on."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from fasttrain_doctor.errors import UsageError

NEEDS = {"PIL": "pillow", "torchvision": "torchvision"}  # module -> distribution


def prepare(folder: Path) -> tuple[Path, int, int]:
    """Put ``train.py`` and its photos into ``folder``; return the script, the number of photos and their bytes.

    Raises:
        UsageError: the extra ``vision`` is not installed.
        OSError: the folder cannot be written to.
    """
    missing = [name for module, name in NEEDS.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise UsageError(
            "demo-needs-vision",
            f"the demo needs {' and '.join(missing)}: pip install 'fasttrain-doctor[vision]'",
        )
    from fasttrain_doctor.demo import make_images

    script = Path(shutil.copyfile(Path(__file__).with_name("train.py"), folder / "train.py"))
    photos = folder / "photos"
    size = make_images.make(photos)
    return script, sum(1 for _ in photos.rglob("*.jpg")), size
