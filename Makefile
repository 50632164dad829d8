# Every target does its own set-up: a virtual environment in .venv, with the versions of constraints.txt.
# The stamps in .venv make a second run quick; `make run` and `make test` share the environment.

PYTHON ?= python3
WORKERS ?= auto
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: run test bench lint clean

run: .venv/examples
	$(BIN)/python -m examples.node_classification

# One torch thread per worker: the tests are many and small.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --maxprocesses 4

bench: .venv/test
	$(BIN)/python -m benchmarks

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# torch comes first and by its exact version, so that nothing later in the list draws another build of it.
.venv/torch: constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch
	touch $@

.venv/examples .venv/test: .venv/%: pyproject.toml constraints.txt | .venv/torch
	$(PIP) --editable '.[$*]'
	touch $@

clean:
	rm -rf .venv build results *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
