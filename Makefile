# Each target sets itself up: a fresh clone needs Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# LOCK= installs the newest versions that pyproject.toml allows, instead of the locked
# ones in requirements/.
LOCK ?= yes

# Number of test processes. Tests wait for servers, browsers and timers half of the time,
# so there are two processes for each processor.
JOBS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) * 2)' \
	2>/dev/null || echo 2)
PARALLEL := -n $(JOBS) --dist loadgroup

# Container images often set this variable. Without bytecode files, every process of the
# tests would compile all modules again.
export PYTHONDONTWRITEBYTECODE =

# $(call timed,COMMAND): run the command, and print its duration.
timed = @began=$$(date +%s); $(1); ended=$$?; \
	echo "make $@ took $$(($$(date +%s) - began)) s"; exit $$ended

.PHONY: help install demo demo-apart test test-fast test-deep test-store coverage check format lock dist \
	bench chaos mutants screenshots docs typescript clean

help:
	@echo "make demo         start everything locally and print a link to the page (PORT=)"
	@echo "make demo-apart   gateway, bot and agent in three processes; play two approvals"
	@echo "make test-fast    run all but the slow tests"
	@echo "make test         run every test, in its short form"
	@echo "make test-deep    run every test in its full form: all cases, rounds and kills"
	@echo "make check        format, lint, types, import contracts, sizes, spelling, workflows"
	@echo "make coverage     see that tests take every branch of the core"
	@echo "make bench        measure every figure beside its target, into bench/results.md"
	@echo "make chaos        kill, pause and cut off processes for ten minutes (MINUTES=, SEED=)"
	@echo "make mutants      change the core in thousands of ways and list what no test notices"
	@echo "make screenshots  take the pictures of docs/img again"
	@echo "make docs         build the site of the documentation into build/site"
	@echo "make typescript   build the TypeScript client in clients/typescript"
	@echo "make format       format the code"
	@echo "make lock         fix the newest allowed versions in requirements/"

# With an older Python, pip reports only that a package has no such version.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

# pip compiles a package that has no wheel for a new Python yet. Without a compiler its
# error is long and names no remedy.
TOO_NEW := import sys; sys.exit(sys.version_info < (3, 15))
OR_SAY = || { $(BIN)/python -c '$(TOO_NEW)' && echo "Some packages may have no wheel for" \
	"this Python yet. Take Python 3.14 or older: make clean; make" \
	"$(or $(MAKECMDGOALS),demo) PYTHON=python3.14. Or install a C compiler and the header" \
	"files of this Python, and try again."; exit 1; }

# Packages to run the product.
$(VENV)/.run: pyproject.toml requirements/run.txt
	@$(PYTHON) -c '$(NEW_ENOUGH)' || { echo "$(PYTHON) is missing, or older than Python" \
		"3.11; name another one: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.12"; exit 1; }
	@if test -e $(VENV) && ! $(BIN)/python -c '$(NEW_ENOUGH)' 2>/dev/null; then \
		echo "$(VENV) has no Python 3.11 or newer; remove it first: make clean"; exit 1; fi
	@echo "Installing Keyturn into $(VENV) (once, about a minute) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifeq ($(LOCK),)
	@$(PIP) --upgrade --upgrade-strategy eager --editable '.[all]' $(OR_SAY)
else
	@$(PIP) --require-hashes --requirement requirements/run.txt $(OR_SAY)
	@$(PIP) --no-deps --no-build-isolation --editable .
endif
	@touch $@

# Packages to test and check it.
$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	@echo "Installing the tools for tests and checks into $(VENV) (once, about a minute) ..."
ifeq ($(LOCK),)
	@$(PIP) --upgrade --upgrade-strategy eager --editable '.[dev]' $(OR_SAY)
else
	@$(PIP) --require-hashes --requirement requirements/dev.txt $(OR_SAY)
endif
	@touch $@

install: $(VENV)/.dev

demo: $(VENV)/.run
	@$(BIN)/keyturn demo $(if $(PORT),--port $(PORT))

demo-apart: $(VENV)/.dev
	@$(BIN)/python -m tests.apart.three_processes

test: $(VENV)/.dev
	$(call timed,$(BIN)/python -m pytest $(PARALLEL) $(TESTS))

test-fast: $(VENV)/.dev
	$(call timed,$(BIN)/python -m pytest $(PARALLEL) --fast $(TESTS))

test-deep: $(VENV)/.dev
	$(call timed,$(BIN)/python -m pytest $(PARALLEL) --deep $(TESTS))

# Tests of the store, on the server that KEYTURN_TEST_REDIS names. They empty this server.
test-store: $(VENV)/.dev
	$(call timed,$(BIN)/python -m pytest tests/store tests/service tests/races \
		tests/cli/test_verify.py)

# pyproject.toml lists the modules to cover; these tests suffice. Property tests are left
# out, because their random examples cover a line on some days only.
coverage: $(VENV)/.dev
	$(call timed,$(BIN)/python -m pytest $(PARALLEL) --fast -m "not hypothesis" \
		tests/approvals tests/protocol tests/policy tests/store tests/service --cov)

check: $(VENV)/.dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/loq check
	@$(BIN)/python -m tests.sizes
	@$(BIN)/codespell
	@$(BIN)/interrogate --quiet agent bot cli connect gateway receipts sandbox src testing
	@$(BIN)/mypy
	@$(BIN)/pyright
	@$(BIN)/zizmor --offline --quiet --no-progress .github action.yml

format: $(VENV)/.dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Extras are kept: see tests/packaging/test_locked_versions.py.
# The first resolution decides; those for the product and for releases follow it.
COMPILE := $(BIN)/uv pip compile --quiet --upgrade --universal --no-strip-extras \
	--generate-hashes --annotation-style line --custom-compile-command "make lock"
lock: $(VENV)/.dev
	@$(COMPILE) --extra dev -o requirements/dev.txt pyproject.toml requirements/build.in
	@$(COMPILE) --extra all -o requirements/run.txt -c requirements/dev.txt \
		pyproject.toml requirements/build.in
	@$(COMPILE) --extra agent -o requirements/agent-server.txt \
		pyproject.toml requirements/agent-server.in
	@$(COMPILE) -o requirements/mutants.txt -c requirements/dev.txt requirements/mutants.in
	@$(COMPILE) -o requirements/docs.txt requirements/docs.in
	@$(COMPILE) -o requirements/mcp1.txt requirements/mcp1.in
	@$(COMPILE) --python-version 3.11 -o requirements/release.txt -c requirements/dev.txt \
		requirements/build.in requirements/release.in

# Wheel, sdist, and a list of all packages of a full installation.
dist:
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes --requirement requirements/release.txt
	@rm -rf dist && $(BIN)/hatchling build --directory dist
	@mkdir -p build && $(BIN)/cyclonedx-py requirements --pyproject pyproject.toml \
		--output-reproducible -o build/sbom.cdx.json requirements/run.txt

bench: $(VENV)/.dev
	@$(BIN)/python -m bench --results bench/results.md $(FIGURES)

chaos: $(VENV)/.dev
	@$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

screenshots: $(VENV)/.dev
	@$(BIN)/python -m pytest -q tests/browser/test_screenshots.py --deep \
		--screenshots docs/img

# MUTANTS= names some, such as "keyturn.gateway.approvals.quorum*".
mutants: $(VENV)/.dev requirements/mutants.txt
	@$(PIP) --require-hashes --requirement requirements/mutants.txt
	@rm -rf mutants
	$(call timed,$(BIN)/mutmut run $(if $(MUTANTS),"$(MUTANTS)") && $(BIN)/mutmut results)

# The site's generator has an environment of its own: it shares no package with the product.
docs: $(VENV)/.run requirements/docs.txt
	@test -x $(VENV)/docs/bin/zensical || $(PYTHON) -m venv $(VENV)/docs
	@$(VENV)/docs/bin/python -m pip install --quiet --disable-pip-version-check \
		--require-hashes --requirement requirements/docs.txt
	@$(BIN)/python docs/site/pages.py collect
	@$(VENV)/docs/bin/zensical build --clean --strict --config-file build/zensical.toml
	@$(BIN)/python docs/site/pages.py finish
	@echo "The site is at build/site/index.html."

typescript: $(VENV)/.run
	@$(BIN)/python -c 'from keyturn.gateway.api import operations; import pathlib; \
		pathlib.Path("clients/typescript/openapi.json").write_bytes(operations.document())'
	@cd clients/typescript && npm ci --no-audit --no-fund

clean:
	rm -rf $(VENV) mutants .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
