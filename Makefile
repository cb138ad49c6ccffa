# Each target sets itself up: a fresh clone needs Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help install demo test check format bench chaos mutants screenshots clean

help:
	@echo "make demo         start everything locally and print a link to the page"
	@echo "make test         run every test"
	@echo "make check        format, lint, types, import contracts, sizes, spelling"
	@echo "make bench        measure the figures of the README, as ratios"
	@echo "make chaos        kill, pause and cut off processes for ten minutes (MINUTES=, SEED=)"
	@echo "make mutants      break the core in every listed way; a test must notice each"
	@echo "make screenshots  take the pictures of docs/img again"
	@echo "make format       format the code"

# What runs the product.
$(VENV)/.run: pyproject.toml
	@echo "Installing Twokey into $(VENV) (once, about a minute) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all]'
	@touch $@

# What tests and checks it.
$(VENV)/.dev: $(VENV)/.run
	@echo "Installing the tools for tests and checks into $(VENV) (once, about a minute) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

install: $(VENV)/.dev

demo: $(VENV)/.run
	@$(BIN)/twokey demo

test: $(VENV)/.dev
	@$(BIN)/python -m pytest

check: $(VENV)/.dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/loq check
	@$(BIN)/codespell
	@$(BIN)/interrogate --quiet bot gateway
	@$(BIN)/mypy
	@$(BIN)/pyright

format: $(VENV)/.dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.dev
	@$(BIN)/python -m bench

chaos: $(VENV)/.dev
	@$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

screenshots: $(VENV)/.dev
	@$(BIN)/python -m pytest -q tests/browser/test_screenshots.py --screenshots docs/img

mutants: $(VENV)/.dev
	@$(BIN)/python -m tests.mutants

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
