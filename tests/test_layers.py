"""What the parts may not do, so that each can be read, moved and trusted by itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from fasttrain_doctor.run import Run

from .link_tree import ROOT, build, package_folders

TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = sorted(package_folders().items(), key=lambda entry: -len(entry[0]))
SOURCES = sorted(path for _, folder in FOLDERS for path in folder.rglob("*.py"))
IN_USER_PROCESS = ("doctor/records.py", "doctor/evidence.py", "doctor/probe/", "tuners/fixes/", "kernels/")
MODULES = {"nvidia-ml-py": "pynvml", "pillow": "PIL"}  # distribution -> module, where they differ


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    package, folder = next(entry for entry in FOLDERS if path.is_relative_to(entry[1]))
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join([package, *(part for part in parts if part != "__init__")])


def runs_in_user_process(path: Path) -> bool:
    return shown(path).startswith(IN_USER_PROCESS)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> set[str]:
    """Every module imported anywhere in a file, those for type checkers alone left out."""
    found: set[str] = set()
    pending: list[ast.AST] = [tree(path)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        pending += ast.iter_child_nodes(node)
    return found


def top(name: str) -> str:
    return name.partition(".")[0]


def constants(path: Path) -> Iterator[str]:
    """The strings of a file's code; a string that stands alone is a docstring."""
    alone = {id(node.value) for node in ast.walk(tree(path)) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def test_every_source_file_belongs_to_the_import_package():
    assert all(module_name(path).startswith("fasttrain_doctor") for path in SOURCES)
    assert len(SOURCES) > 20


def needs() -> set[str]:
    """The modules that fixes declare as needed in the user's interpreter."""
    words = [ast.unparse(node.value) for path in SOURCES if shown(path).startswith("tuners/fixes/")
             for node in ast.walk(tree(path)) if isinstance(node, ast.keyword) and node.arg == "needs"]  # fmt: skip
    return {name for word in words for name in ast.literal_eval(word)}


@pytest.mark.parametrize("path", filter(runs_in_user_process, SOURCES), ids=shown)
def test_what_runs_in_the_users_process_imports_nothing_of_ours_but_its_own_kind(path):
    own = {module_name(source) for source in SOURCES if runs_in_user_process(source)}
    allowed = {"torch", "triton"} | sys.stdlib_module_names
    allowed |= needs() if shown(path).startswith("tuners/fixes/") else set()
    for name in imports(path):
        ours = name in own or name.rpartition(".")[0] in own or name == "fasttrain_doctor.__version__"
        assert top(name) in allowed or ours, f"imports {name}"


LOADED = "import sys, importlib; [importlib.import_module(name) for name in sys.argv[1:]]"
REFUSED = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name in {names}:
            raise ModuleNotFoundError(f"refused: {{name}}", name=name)
sys.meta_path.insert(0, Refused())
"""


@pytest.fixture(scope="module")
def linked(tmp_path_factory):
    place = tmp_path_factory.mktemp("tree")
    build(place)
    return place


def test_records_evidence_and_fixes_load_with_the_standard_library_alone(linked):
    without_torch = [path for path in SOURCES if shown(path).startswith((*IN_USER_PROCESS[:2], "tuners/fixes/"))]
    code = f"import sys; sys.path.insert(0, {str(linked)!r}); {LOADED}"
    names = [module_name(path) for path in without_torch]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_probe_and_the_kernels_load_without_our_dependencies(linked):
    ours = {"click", "jinja2", "msgspec", "optuna", "pandas", "plotly", "psutil", "pynvml", "rich"}
    names = [module_name(path) for path in SOURCES if runs_in_user_process(path) and "inject" not in path.parts]
    code = REFUSED.format(names=ours) + f"sys.path.insert(0, {str(linked)!r})\n" + LOADED
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def dependencies() -> list[tuple[str, list[str]]]:
    """Each dependency's module and the places its comment in pyproject.toml names."""
    block = (ROOT / "pyproject.toml").read_text().partition("\ndependencies = [\n")[2].partition("\n]")[0]
    lines = re.findall(r'^ +"([\w-]+)[^"]*",\s*# (.*)$', block, re.MULTILINE)
    assert len(lines) == len(TABLE["project"]["dependencies"])
    return [(MODULES.get(name, name), places.split(", ")) for name, places in lines]


def users(module: str) -> set[str]:
    """The files that import a module; the demo's script is somebody else's."""
    found = {shown(path) for path in SOURCES if module in map(top, imports(path))}
    return found - {"doctor/demo/train.py"}


@pytest.mark.parametrize(("module", "places"), dependencies(), ids=[name for name, _ in dependencies()])
def test_a_dependency_is_used_where_its_comment_says_and_nowhere_else(module, places):
    named = {place: {shown(path) for path in (*ROOT.glob(place), *ROOT.glob(f"{place}/**/*.py"))} for place in places}
    for place, files in named.items():
        assert users(module) & files, f"{place} does not import {module}"
    assert users(module) <= set().union(*named.values())


def test_heavy_dependencies_have_one_door():
    assert users("optuna") == {"tuners/search.py"}
    assert users("plotly") == {"reports/html.py"}
    assert all(user.startswith("doctor/cli") for user in users("click"))
    assert all(user.startswith("reports/") for user in users("rich") | users("jinja2"))


@pytest.mark.parametrize("path", [p for p in SOURCES if shown(p).startswith("doctor/rules/")], ids=shown)
def test_rules_read_no_file_and_no_clock_and_print_nothing(path):
    package = path.name == "__init__.py"  # it finds its modules, which is no reading of the user's machine
    allowed = {"__future__", "collections", "dataclasses", "fasttrain_doctor", "functools", "math", "typing"}
    allowed |= {"importlib", "pkgutil"} if package else set()
    assert {top(name) for name in imports(path)} <= allowed
    calls = {
        node.func.id for node in ast.walk(tree(path)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"print", "open", "input", "eval", "exec", "__import__"}


def test_only_run_knows_the_names_of_files_in_a_run_directory():
    run = Run(Path("somewhere"))
    places = (getattr(run, name) for name, value in vars(Run).items() if isinstance(value, property))
    names = {place.name for place in places if isinstance(place, Path) and place.suffix} | {run.trace().name}
    assert {"run.json", "diagnosis.json", "report.html"} <= names
    told = {
        f"{shown(path)}: {text!r}"
        for path in SOURCES
        if shown(path) != "doctor/run.py" and not runs_in_user_process(path)  # there run.py cannot be imported
        for text in constants(path)
        if text.rpartition("/")[2] in names
    }
    assert not told


@pytest.mark.parametrize("path", [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))], ids=shown)
def test_a_file_is_short_enough_to_be_read_at_one_sitting(path):
    lines = path.read_text().count("\n")
    assert lines <= 400
