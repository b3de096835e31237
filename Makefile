# `make demo` and `make test` need only python3 (3.11 or newer) with its venv module.
VENV ?= .venv
PYTHON ?= python3

# `make test TORCH=2.15.0` tests with another torch, in an environment of its own. The
# other packages are the newest that go with it.
ifdef TORCH
VENV := .venv-$(TORCH)
PINS := torch==$(TORCH)
else
PINS := -c constraints.txt
endif

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_ARGS ?= -n 2 --dist worksteal
EXTRAS ?= dev

.PHONY: help demo test test-slow test-integrations lint types style imports docs bench clean

help:
	@echo "make demo       install, then train a small model with and without a budget"
	@echo "make test       install, then lint, types, import contracts and tests"
	@echo "make test TORCH=2.15.0  with another torch, in an environment of its own"
	@echo "make test-slow  the tests that take minutes"
	@echo "make test-integrations  with TRL, timm and diffusers, in its own environment"
	@echo "make lint       lint, types, import contracts and documentation only"
	@echo "make docs       the documentation, into build/site"
	@echo "make bench      compare with other methods on this machine"
	@echo "make clean      remove the virtual environment and caches"

demo: $(STAMP)
	$(BIN)/lowtide demo

# Without chromium the report cannot be opened; everything else is tested all the same.
BROWSER := $(shell command -v chromium)
MARKERS := not slow$(if $(BROWSER),, and not browser)

test: lint
	@$(if $(BROWSER),,echo "chromium not found: the report's browser tests are left out")
	$(BIN)/pytest -m "$(MARKERS)" $(PYTEST_ARGS)

test-slow: $(STAMP)
	$(BIN)/pytest -m slow $(PYTEST_ARGS)

# The libraries that are too heavy for everyday work, beside all others.
test-integrations:
	$(MAKE) --no-print-directory VENV=$(VENV)-integrations EXTRAS=dev,integrations \
	    $(VENV)-integrations/.installed
	$(VENV)-integrations/bin/pytest tests/integrations $(PYTEST_ARGS)

# Two at a time: types and documentation take most of it. What each says stays together.
lint: $(STAMP)
	@$(MAKE) --no-print-directory -j2 -O types docs style imports

types: $(STAMP)
	$(BIN)/pyright --pythonpath $(BIN)/python

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell src tests docs Makefile *.md *.yml

imports: $(STAMP)
	$(BIN)/lint-imports --no-logo

# A broken link, a missing anchor or an unknown name fails it (with --quiet it would not:
# warnings that are not shown are not counted). The variable silences a notice of the
# theme's that is no warning.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

# Installed once, and again when what it depends on changes. The build backend comes
# first so that it, too, is the pinned one.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    "lowtide needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q $(PINS) hatchling editables
	$(BIN)/python -m pip install -q $(PINS) --no-build-isolation -e '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-* build .pytest_cache .ruff_cache .import_linter_cache .hypothesis
