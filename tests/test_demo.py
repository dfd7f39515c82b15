"""The bundled demo: real photos, a script that learns from them, and a clean end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fasttrain_doctor import cli


def test_the_demo_says_what_to_install(monkeypatch, capsys):
    from fasttrain_doctor import demo

    monkeypatch.setattr(demo, "NEEDS", {"no_such_module": "torchvision"})
    assert cli.main(["demo"]) == 2
    error = capsys.readouterr().err
    assert "error[demo-needs-vision]" in error
    assert "pip install 'fasttrain-doctor[vision]'" in error


def test_the_demos_photos_are_real_jpeg_files_and_the_same_every_time(tmp_path):
    from PIL import Image

    from fasttrain_doctor.demo import make_images

    made = make_images.make(tmp_path / "a", count=8)
    assert made.files == 8
    make_images.make(tmp_path / "b", count=8)
    files = sorted((tmp_path / "a").rglob("*.jpg"))
    assert sum(file.stat().st_size for file in files) == made.bytes
    for file in files:
        with Image.open(file) as image:
            image.load()
            assert image.format == "JPEG"
            assert image.size in make_images.SIZES
        assert file.read_bytes() == (tmp_path / "b" / file.relative_to(tmp_path / "a")).read_bytes()


def test_the_demos_script_trains_and_learns(tmp_path, monkeypatch):
    from fasttrain_doctor import demo

    monkeypatch.setattr("fasttrain_doctor.demo.make_images.SCENE", (1100, 800))
    demo.prepare(tmp_path)
    done = subprocess.run(
        [sys.executable, "train.py", "--epochs", "2", "--image-size", "32"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "480 photos of 4 kinds, training on cpu" or "cuda" in lines[0]
    assert float(lines[-1].rpartition(" ")[2]) > 0.4  # four kinds: chance is 0.25
    assert (tmp_path / "checkpoint.pt").exists()


@pytest.mark.parametrize("keep", [True, False])
def test_the_demo_leaves_the_run_and_takes_its_photos_along(monkeypatch, keep):
    from fasttrain_doctor import demo

    monkeypatch.setattr(demo, "prepare", lambda folder: (folder / demo.PHOTOS).mkdir())
    before = Path.cwd()
    with demo.place(keep=keep):
        folder = Path.cwd()
        (folder / ".fasttrain-doctor").mkdir()
    assert Path.cwd() == before
    assert (folder / ".fasttrain-doctor").is_dir()
    assert (folder / demo.PHOTOS).is_dir() == keep
