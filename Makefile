# Everything a contributor needs. `make help` lists the targets; each one sets up `.venv` first if it has to.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
REPORT := .cache/test-report.xml

# A test file runs whole in one process, so that fixtures of a module are shared.
PYTEST_FLAGS ?= -n 4 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 --session-timeout=2400
# Of the soak: how much of the full numbers, from which seed on, which promises (all), kills at random moments.
SCALE ?= 1
SEED ?= 1
ONLY ?=
KILLS ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

.PHONY: help setup demo demo-team demo-plugins test lint bench soak frameworks gpu docs format clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## Make .venv with everything below in it (repeatable)

demo: setup ## Run the two example jobs through the real program, in a throw-away state folder
	@$(BIN)/python examples/demo.py

demo-team: setup ## A server, a worker behind a router and a laptop become a team; needs root, Linux and nftables
	@$(BIN)/python examples/demo_team.py

demo-plugins: setup ## Sixteen misbehaving plugins in a throw-away environment, and the quickstart runs unharmed
	@$(BIN)/python examples/demo_plugins.py

test: setup ## Run all tests except the soak runs
	@mkdir -p $(dir $(REPORT))
	@rm -f $(REPORT)
	@$(BIN)/python -m pytest $(PYTEST_FLAGS) -q -o junit_family=xunit1 --junitxml=$(REPORT) || \
	{ code=$$?; [ $$code != 1 ] || $(BIN)/python .ci/second_look.py $(REPORT) || true; exit $$code; }

lint: setup ## Style, types, import contracts, changelog fragments
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy --no-error-summary
	@mkdir -p .cache
	@$(BIN)/lint-imports --no-logo --no-cache > .cache/lint-imports.txt || { cat .cache/lint-imports.txt; exit 1; }
	@$(BIN)/python .ci/check_changelog.py changelog.d
	@echo "lint: clean"

bench: setup ## Measure us and our peers side by side; results go to benchmarks/results/
	@$(BIN)/python -m benchmarks.core
	@$(BIN)/python -m benchmarks.edges
	@$(BIN)/python -m benchmarks.plugins
	@$(BIN)/python -m benchmarks.machines
	@$(BIN)/python -m benchmarks.placement
	@$(BIN)/python -m benchmarks.reliability

soak: setup ## The proofs of all promises, in one table (hours); SCALE=0.01 for a hundredth, ONLY=3,9,rest, SEED=N
	@GPULAYER_SOAK_KILLS=$(KILLS) $(BIN)/python -m tests.soak --scale $(SCALE) --seed $(SEED) --only "$(ONLY)"

frameworks: setup ## The framework checks over the real packages, in throw-away environments (gigabytes); ONLY="torch jax"
	@$(BIN)/python -m tests.frameworks $(ONLY)

gpu: setup ## What is found on a machine with a GPU, against the vendor's own words
	@$(BIN)/python -m pytest -q -s -m gpu tests/gpu

docs: setup ## Build the documentation site into site/; warnings fail
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "docs: site/index.html"

format: setup ## Let ruff rewrite what it can
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format --quiet

clean: ## Remove what the targets above made
	rm -rf $(VENV) .cache site .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(STAMP): pyproject.toml gpulayer-core/pyproject.toml requirements/dev.txt requirements/constraints.txt .ci/find-python
	@python="$$(.ci/find-python)"; \
	if [ -x $(BIN)/python ] && ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then rm -rf $(VENV); fi; \
	if [ ! -x $(BIN)/python ]; then echo "setup: $(VENV) with $$($$python --version)"; $$python -m venv $(VENV); fi
	@echo "setup: development requirements"
	@$(PIP) install -r requirements/dev.txt -c requirements/constraints.txt
	@echo "setup: requirements of gpulayer-core"
	@$(BIN)/python .ci/core_requirements.py gpulayer-core/pyproject.toml > $(VENV)/core-requirements.txt
	@$(PIP) install -r $(VENV)/core-requirements.txt -c requirements/constraints.txt
	@echo "setup: gpulayer and gpulayer-core, editable"
	@$(PIP) install --no-build-isolation --no-deps -e gpulayer-core -e .
	@mkdir -p .cache
	@touch $@
