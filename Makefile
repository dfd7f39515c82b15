# make demo: install, then diagnose the bundled training script.   make test: everything that must be green.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install

.PHONY: demo test lint types unit bench-truth bench-workers bench-fixes bench-overhead bench-same check-torch format clean

demo: .venv/.vision
	$(BIN)/fasttrain-doctor demo

test: lint types unit

lint: .venv/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/.test
	$(BIN)/python tests/link_tree.py build/tree
	$(BIN)/mypy

# Tests that measure time come last and run one at a time: beside another test they would measure that one.
unit: .venv/.test
	$(BIN)/pytest -n 2 --dist loadgroup -m "not alone"
	$(BIN)/pytest -m alone

# Programs that print what they measure; never part of the tests.
bench-truth: .venv/.test
	$(BIN)/python -m tests.truth

bench-workers: .venv/.test
	$(BIN)/python -m tests.bench_workers

bench-fixes: .venv/.test
	$(BIN)/python -m tests.measure_fixes workers
	$(BIN)/python -m tests.measure_fixes fused
	$(BIN)/python -m tests.measure_fixes amp

bench-overhead: .venv/.test
	$(BIN)/python -m tests.bench_overhead

bench-same: .venv/.test
	$(BIN)/python -m tests.same

check-torch: .venv/.test
	$(BIN)/python -m tests.check_torch_versions

format: .venv/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The stamps are written last, so that an interrupted install is done again.
.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.vision: pyproject.toml | .venv/bin/python
	test .venv/.test -nt pyproject.toml || $(PIP) --editable '.[vision]'
	touch $@

.venv/.test: pyproject.toml | .venv/bin/python
	$(PIP) --editable '.[test]'
	touch $@

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
