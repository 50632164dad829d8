# Every target does its own set-up: a virtual environment in .venv, with the versions of constraints.txt.
# The stamps in .venv make a second run quick; all targets share the environment.

PYTHON ?= python3
WORKERS ?= auto
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --maxprocesses 4
SPARSE := $(CURDIR)/.venv/with_sparse

.PHONY: run test test-sparse bench lint clean

run: .venv/examples
	$(BIN)/python -m examples.node_classification

# One torch thread per worker: the tests are many and small. What is compiled has a twin in torch, which is tested alone.
test: lint
	$(PYTEST)
	BASISCONV_KERNELS=torch $(PYTEST) tests/test_new_graphs.py tests/test_scored_kernels.py tests/test_backends.py

# The same with torch_scatter and torch_sparse, which `make test` is without: they are found in a folder of their own.
test-sparse: .venv/sparse
	PYTHONPATH=$(SPARSE) $(PYTEST)

bench: .venv/test
	$(BIN)/python -m benchmarks

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# torch comes first and by its exact version, so that nothing later in the list draws another build of it.
.venv/torch: constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch
	touch $@

# The compiled kernels are built with the package, where there is a compiler.
.venv/examples .venv/test: .venv/%: pyproject.toml setup.py constraints.txt $(wildcard csrc/*) | .venv/torch
	$(PIP) --editable '.[$*]'
	touch $@

# The extra `sparse`: compiled, in about ten minutes, against the torch that is there; no wheel of another time is taken.
# An import that fails PyG passes over with a warning, which is an error here.
.venv/sparse: constraints.txt | .venv/test
	$(PIP) ninja
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-cache-dir --no-build-isolation --no-deps --upgrade --target $(SPARSE) \
		torch_scatter torch_sparse
	PYTHONPATH=$(SPARSE) $(BIN)/python -W error::UserWarning -c 'import torch_geometric.typing'
	touch $@

clean:
	rm -rf .venv build results *.egg-info .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
