"""Build a tree of links with the shape of the installed package, for tools that do not follow the editable install.

``python tests/link_tree.py build/tree`` reads the package table of ``pyproject.toml``: one source of truth.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def package_folders() -> dict[str, Path]:
    """Return each top-level part of the import package and its folder, outermost first."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    return {name: ROOT / folder for name, folder in sorted(table.items())}


def build(tree: Path) -> None:
    """Make ``tree`` hold links to the sources, under their import names; whatever it held goes."""
    shutil.rmtree(tree, ignore_errors=True)
    for name, folder in package_folders().items():
        place = tree.joinpath(*name.split("."))
        place.mkdir(parents=True)
        for source in folder.iterdir():
            if source.name != "__pycache__":
                (place / source.name).symlink_to(source)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
