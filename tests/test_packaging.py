"""What is built can be installed and works, also where the user's own folders have our folders' names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from .link_tree import ROOT, package_folders

pytestmark = pytest.mark.xdist_group("packaging")  # one build serves all
FOLDERS = package_folders()
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
SCRATCH = shutil.ignore_patterns("__pycache__")


def shipped() -> set[str]:
    """Every file below our folders, under the name it has when installed."""
    return {
        (Path(*package.split(".")) / path.relative_to(folder)).as_posix()
        for package, folder in FOLDERS.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the sdist and the wheel that was built from it."""
    place = tmp_path_factory.mktemp("source")
    for folder in FOLDERS.values():
        shutil.copytree(folder, place / folder.name, ignore=SCRATCH)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", "."]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "dist"


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The ``bin`` of an environment that holds the wheel and sees this one's dependencies, but not the sources."""
    place = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel)],
        check=True,
    )
    # A folder named in a .pth file joins sys.path, but its own .pth files (the editable install's) are not read.
    site = next((place / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    return place / "bin"


@pytest.fixture
def hostile(tmp_path) -> Path:
    """A project whose own folders have the names of ours, and which would notice being imported."""
    for folder in FOLDERS.values():
        (tmp_path / folder.name).mkdir()
        (tmp_path / folder.name / "__init__.py").write_text("raise RuntimeError('the wrong package was imported')\n")
    return tmp_path


def run(*command: str | Path, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_folder_with_code_is_a_listed_package():
    folders = {
        ".".join([package, *path.parent.relative_to(folder).parts])
        for package, folder in FOLDERS.items()
        for path in folder.rglob("__init__.py")
    }
    assert set(SETUP["packages"]) == folders


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == shipped()
    assert {"fasttrain_doctor/py.typed", "fasttrain_doctor/probe/inject/sitecustomize.py"} <= held


def test_the_licence_travels_with_wheel_and_sdist(built, wheel):
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in archive.namelist())
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        assert any(name.count("/") == 1 and name.endswith("/LICENSE") for name in archive.getnames())


def test_the_wheel_declares_the_dependencies_and_the_command(installed):
    code = (
        "from importlib.metadata import distribution as d; f = d('fasttrain-doctor');"
        "print(f.version, len(f.requires), [e.value for e in f.entry_points])"
    )
    version, _, rest = run(installed / "python", "-c", code, cwd=installed).partition(" ")
    assert version == run(installed / "fasttrain-doctor", "--version", cwd=installed).split()[-1]
    assert "'fasttrain_doctor.cli:main'" in rest


def test_the_installed_command_works_in_a_project_with_folders_of_our_names(installed, hostile):
    assert "diagnose" in run(installed / "fasttrain-doctor", "--help", cwd=hostile)
    page = run(installed / "fasttrain-doctor", "explain", "input-wait-io", cwd=hostile)
    assert page.startswith("# input-wait-io")


def test_the_package_imports_where_the_project_comes_first_on_the_path(installed, hostile):
    code = (
        "import sys, fasttrain_doctor, fasttrain_doctor.kernels, fasttrain_doctor.reports, fasttrain_doctor.tuners;"
        "assert sys.path[0] == ''; print(fasttrain_doctor.__file__)"
    )
    assert str(installed.parent) in run(installed / "python", "-c", code, cwd=hostile)


TRAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(4096, 8), torch.randn(4096, 1)), batch_size=16)
for epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""


def test_the_installed_command_diagnoses_a_script_in_such_a_project(installed, hostile):
    (hostile / "train.py").write_text(TRAIN)
    said = json.loads(run(installed / "fasttrain-doctor", "diagnose", "--no-trials", "--json", "train.py", cwd=hostile))
    assert said["status"] == "complete", said["degraded"]
    assert said["steps"]["measured"] > 0
    assert said["machine"]["torch"]


@pytest.mark.parametrize("what", ["import fasttrain_doctor", "from fasttrain_doctor.cli import main; main(['--help'])"])
def test_nothing_heavy_is_imported_before_it_is_needed(what):
    code = f"import sys; {what}; print('HEAVY', *({{*sys.modules}} & {{'torch', 'optuna', 'pandas', 'plotly', 'numpy', 'rich'}}))"
    assert run(sys.executable, "-c", code, cwd=ROOT / "tests").splitlines()[-1] == "HEAVY"
