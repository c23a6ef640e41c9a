# Needs make and Python 3.11 or later with its venv module; everything else goes into .venv.
#
#   make demo     the bundled portrait speaks the bundled sentence: out/demo.mp4
#   make test     the whole test suite, without what takes long

# The first of these that is new enough; `make PYTHON=/path/to/python3.12 demo` chooses another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST := $(BIN)/python -m pytest
PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))

# Newest first in .venv: a stamp is remade when pyproject.toml changed.
VENV_STAMP := $(VENV)/.stamp-venv
PACKAGE_STAMP := $(VENV)/.stamp-package
DEV_STAMP := $(VENV)/.stamp-dev

.PHONY: help setup demo test test-slow check lint types bench docs clean
.DEFAULT_GOAL := help

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(DEV_STAMP) ## make .venv with everything that tests, docs and benchmarks need

demo: $(PACKAGE_STAMP) ## render the bundled portrait speaking: out/demo.mp4
	$(BIN)/talking-avatar demo --output out/demo.mp4

test: $(DEV_STAMP) ## run the tests, without those that take long
	$(PYTEST) -m "not slow"

test-slow: $(DEV_STAMP) ## run the tests that take long
	$(PYTEST) -m slow --timeout 1800

check: lint types test docs ## lint, types, tests and docs: what a change must pass

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_STAMP)
	$(BIN)/mypy
	@for plugin in $(PLUGINS); do echo "$(BIN)/mypy $$plugin/src" && $(BIN)/mypy $$plugin/src || exit 1; done

bench: $(DEV_STAMP) ## measure on this machine: import time, rendering, live sessions
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/talking-avatar bench

docs: $(DEV_STAMP) ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## remove what was made here, .venv included
	rm -rf $(VENV) out site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV_STAMP):
	@test -n "$(PYTHON)" || { \
		echo "No Python 3.11 or later was found: install one, or make PYTHON=/path/to/it" >&2; \
		exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(PACKAGE_STAMP): pyproject.toml $(VENV_STAMP)
	$(PIP) install --editable .
	@touch $@

# torch apart and first, at one version: then no extra brings another build of it.
$(DEV_STAMP): pyproject.toml $(PLUGINS:%=%/pyproject.toml) $(PACKAGE_STAMP)
	$(PIP) install torch==2.13.0
	$(PIP) install --editable '.[diffusion,dev,docs]'
	@for plugin in $(PLUGINS); do \
		echo "install $$plugin" && $(PIP) install --editable "./$$plugin[dev]" || exit 1; done
	@touch $@
