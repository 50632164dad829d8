# Every target does its own set-up: a virtual environment in .venv, with the versions of constraints.txt.
# The stamps in .venv make a second run quick; all targets share the environment.

PYTHON ?= python3
WORKERS ?= auto
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --maxprocesses 4
QUICK := -m "not slow" --hypothesis-profile=quick
SPARSE := $(CURDIR)/.venv/with_sparse
TRITON := $(CURDIR)/.venv/with_triton

SANITIZED := $(CURDIR)/build/sanitized

# Two things at a time: the compiler beside pip, the linters beside the tests. Python compiles what it imports, once.
MAKEFLAGS += --jobs=2
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-all tests tests-all test-sparse test-sanitized test-triton bench docs lint wheel clean

run: .venv/examples
	$(BIN)/python -m examples.node_classification

# Without what is marked slow, and with it.
test: lint tests
test-all: lint tests-all

# One torch thread per worker: the tests are many and small. What is compiled has a twin in torch, which is tested alone.
tests: .venv/test
	$(PYTEST) $(QUICK)
tests-all: .venv/test
	$(PYTEST)
	BASISCONV_KERNELS=torch $(PYTEST) tests/test_new_graphs.py tests/kernels/test_scored.py tests/test_backend.py

# What they concern, with torch_scatter and torch_sparse, which `make test` is without: they are found in a folder of
# their own. Files that name them say so, or it comes from a file that tests share: of those, what is not slow.
NAMING = $(shell grep -rlE 'SparseTensor|torch_sparse|TORCH_SPARSE|PYG_LIB' tests --include="test_*.py")
SHARING = $(wildcard tests/convert/test_*.py) tests/bases/test_contract.py tests/fuzz/test_fuzz.py
test-sparse: .venv/sparse
	PYTHONPATH=$(SPARSE) $(PYTEST) $(NAMING)
	PYTHONPATH=$(SPARSE) $(PYTEST) $(QUICK) $(filter-out $(NAMING),$(SHARING))
	# By themselves: PyG takes the code that it wrote for a class for all later layers of it, whatever their options.
	PYTHONPATH=$(SPARSE) $(PYTEST) $(QUICK) tests/benchmarks/test_benchmarks.py

# The compiled kernels, every access of theirs checked: in a copy of the package that the others do not see.
test-sanitized: .venv/test
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	cp -R pyg_basisconv tests pyproject.toml setup.py csrc README.md $(SANITIZED)
	rm -f $(SANITIZED)/pyg_basisconv/_kernels*.so
	cd $(SANITIZED) && CFLAGS='-g -fsanitize=address,undefined -fno-sanitize-recover=undefined' \
		LDFLAGS='-fsanitize=address,undefined' $(CURDIR)/$(BIN)/python setup.py --quiet build_ext --inplace
	cd $(SANITIZED) && ASAN_OPTIONS=detect_leaks=0 BASISCONV_KERNELS=compiled OMP_NUM_THREADS=1 \
		LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
		$(CURDIR)/$(BIN)/python -m pytest -q -p no:cacheprovider tests/kernels/test_compiled_*.py

# The kernels for GPUs, without one: interpreted in numpy, and compiled for several GPUs but not run. What there is one for
# is in `make test` where torch finds it. Triton, a part of torch's builds for CUDA, is found in a folder of its own.
test-triton: .venv/triton
	PYTHONPATH=$(TRITON) TRITON_INTERPRET=1 BASISCONV_KERNELS=triton $(PYTEST) $(QUICK) tests/kernels/test_triton.py tests/kernels/test_triton_bind.py tests/kernels/test_triton_operations.py tests/kernels/test_triton_typed.py
	PYTHONPATH=$(TRITON) $(PYTEST) $(QUICK) tests/kernels/test_triton_compiles.py

# A wheel with the compiled kernels, and the README's blocks with what it installs in an empty environment.
wheel: .venv/test
	rm -rf dist build/wheel && $(BIN)/python -m pip --quiet wheel --no-deps --wheel-dir dist .
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip --quiet --disable-pip-version-check install --constraint constraints.txt torch
	build/wheel/bin/python -m pip --quiet --disable-pip-version-check install --constraint constraints.txt dist/*.whl pytest
	mkdir build/wheel/tests && cp -R README.md CHANGELOG.md CONTRIBUTING.md CITATION.cff docs datasets examples benchmarks build/wheel && cp tests/test_readme.py build/wheel/tests
	cd build/wheel && BASISCONV_KERNELS=compiled bin/python -m pytest -q -c /dev/null --rootdir . tests

bench: .venv/test
	$(BIN)/python -m benchmarks

# The site, in build/site. It makes no request to another host; a broken link or an unknown name is an error.
docs: .venv/packages-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

lint: .venv/packages-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/new:
	$(PYTHON) -m venv .venv
	$(PIP) 'setuptools>=77'
	touch $@

# torch comes first and by its exact version, so that nothing later in the list draws another build of it.
.venv/torch: constraints.txt | .venv/new
	$(PIP) torch
	touch $@

# The compiled kernels, where there is a compiler; they read nothing of torch. That pip would compile them once more.
.venv/kernels: setup.py $(wildcard csrc/*) | .venv/new
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

# The compiler works beside pip, so that a set-up takes as long as the slower of the two.
.venv/examples .venv/test: .venv/%: .venv/packages-% .venv/kernels
	touch $@
.venv/packages-docs .venv/packages-examples .venv/packages-test: .venv/packages-%: pyproject.toml constraints.txt | .venv/torch
	BASISCONV_KERNELS=torch $(PIP) --no-build-isolation --editable '.[$*]'
	touch $@

# The extra `sparse`: compiled, in about ten minutes, against the torch that is there; no wheel of another time is taken.
# Symbols for a debugger, which Python's own flags ask for, would take half as long again.
# An import that fails PyG passes over with a warning, which is an error here.
.venv/sparse: constraints.txt | .venv/test
	$(PIP) ninja
	CFLAGS=-g0 CXXFLAGS=-g0 PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-cache-dir --no-build-isolation --no-deps \
		--upgrade --target $(SPARSE) torch_scatter torch_sparse
	PYTHONPATH=$(SPARSE) $(BIN)/python -W error::UserWarning -c 'import torch_geometric.typing'
	touch $@

.venv/triton: constraints.txt | .venv/test
	$(PIP) --no-deps --upgrade --target $(TRITON) triton
	touch $@

clean:
	rm -rf .venv build results *.egg-info .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
