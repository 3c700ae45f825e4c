PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 4
export SOAK_MINUTES ?= 20
# Distributions of their own, which are tested beside pparallel; the template is tested from a wheel.
PLUGINS := plugins/pparallel-ray plugins/pparallel-redis
# The tests start hundreds of interpreters, of which each would compile the project again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-plugins soak check bench docs clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP)  ## train the digits example on the embedded backends and print its accuracy
	$(BIN)/pparallel run examples/digits/embedded.yaml

test: $(STAMP)  ## run the test suite in JOBS=4 processes
	$(BIN)/python tests/gate.py --jobs $(JOBS) tests

test-plugins: $(STAMP)  ## run the tests of the plugins that have servers
	$(BIN)/python tests/gate.py --jobs 2 $(PLUGINS:%=%/tests)

soak: $(STAMP)  ## run random and long tests for SOAK_MINUTES=20; SOAK=pools picks a folder, SOAK_SEED a seed
	$(BIN)/python -m pytest -n 2 --dist worksteal -o faulthandler_timeout=3600 tests/soak/$(SOAK)

check: $(STAMP)  ## lint, formatting, types, import contracts, docs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict
	set -e; for each in $(wildcard plugins/*); do (cd $$each && "$(CURDIR)/$(BIN)/mypy"); done
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict --quiet --site-dir site

bench: $(STAMP)  ## measure beside the peers, into bench.json and bench.md; BENCH=pool_start picks
	$(BIN)/python -m benchmarks $(BENCH) --json bench.json --markdown bench.md

docs: $(STAMP)  ## write the generated pages of docs/ and build the site in site/
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --strict --quiet --site-dir site

clean:  ## remove the virtual environment and whatever was built
	rm -rf $(VENV) site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The build backend is pinned too: without isolation pip takes the one that constraints.txt names.
$(STAMP): pyproject.toml constraints.txt $(PLUGINS:%=%/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "pparallel needs Python 3.11 or newer, and $(PYTHON) is older or not there:" \
	    "name another, as in 'make PYTHON=python3.12 demo'" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt hatchling editables
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e ".[dev]" $(PLUGINS:%=-e %)
	@touch $@
