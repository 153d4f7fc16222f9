# Development commands; `make help` lists them.

comma := ,
space := $() $()

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# The CPU build is taken where pip is configured to find one.
TORCH := torch==2.13.0
# Longest first. Integration tests run on one Python, in torch; of those of other versions, what depends on them.
TOX_ENVS := torch,core-py313,plugins,lint,type,wheels
BACKENDS := sglang vllm verl trl
TOX_AGENTS := $(subst $(space),$(comma),$(patsubst plugins/%,%,$(wildcard plugins/agents_* plugins/sources_* plugins/loggers_*)) recipe_metagpt)
TOX_BACKENDS := sglang,verl,trl,vllm,pairs
TOX_NIGHTLY := sources_verifiers_legacy,pairs-verl,pairs-trl,pairs-torch,extras,resolver,gallery_advantage_pkpo,gallery_agents_strands,gallery_engine_endpoint,gallery_store_duckdb,gallery_trainer_log,tutorials_langchain,tutorials_autogen,tutorials_crewai
# mypy takes the tests of one plugin at a time: their modules have the same names.
TYPED_TESTS := backend_torch demo engine_sglang engine_vllm store_postgres
MYPY := $(BIN)/mypy
# pyenv's shims exist for versions that are not selected and fail when run, so tox is shown the
# interpreters themselves.
PYENV_PYTHONS = $(wildcard $(shell pyenv root 2>/dev/null)/versions/3.1[123].*/bin/python)
# So many environments of tox at a time; with 1 their output is shown as it comes, else that of those that fail.
JOBS := 2
TOX_RUN = $(if $(filter 1,$(JOBS)),run,run-parallel -p $(JOBS) --parallel-no-spinner)
DISCOVER = $(if $(PYENV_PYTHONS),--discover $(PYENV_PYTHONS))
# uv, which makes environments of agents and sources, looks in the path alone; it skips the shims.
empty :=
export PATH := $(PATH):$(subst $(empty) $(empty),:,$(patsubst %/python,%,$(PYENV_PYTHONS)))

# Tests are compiled once, not by each run.
unexport PYTHONDONTWRITEBYTECODE
# Of the unit tests; each runs in a process of its own.
PARTS := $(shell getconf _NPROCESSORS_ONLN)
# The environment core-py313 of tox has its own.
PYTHON := $(BIN)/python
UNIT := -m unit
# A quarter of the examples of property tests; with "", as in tox, all of them.
HYPOTHESIS_PROFILE ?= quick
TESTS := tests
# Unit tests keep their files in memory if there are 2 GB to spare: writing them to a disk can take
# longer than the tests.
MEMORY = $(shell test "$$(df -Pm /dev/shm 2>/dev/null | awk 'END {print $$4}')" -ge 2000 2>/dev/null && echo /dev/shm)

.DEFAULT_GOAL := help
.PHONY: help setup backends browser demo test unit test-all test-agents test-backends test-nightly
.PHONY: wheels docs lint generate type format clean

help:  ## List the commands
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(STAMP)  ## Make the development environment in .venv

$(STAMP): pyproject.toml requirements-dev.txt constraints/dev.txt plugins/backend_torch/pyproject.toml plugins/demo/pyproject.toml plugins/engine_sglang/pyproject.toml plugins/engine_vllm/pyproject.toml plugins/store_postgres/pyproject.toml
	@set -eu; \
	python=; \
	for candidate in python3.11 python3.12 python3.13 python3; do \
	  if $$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; \
	  then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "make setup: needs Python 3.11, 3.12 or 3.13 on PATH" >&2; exit 1; fi; \
	if ! $(BIN)/python -c '' 2>/dev/null; then \
	  echo "make setup: new environment $(VENV) with $$($$python --version)"; \
	  $$python -m venv --clear $(VENV); \
	fi
	@echo "make setup: installing $(TORCH)"
	@$(BIN)/python -m pip install --quiet -c constraints/dev.txt uv '$(TORCH)'
	@echo "make setup: installing agentjet, its plugins and the development tools"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements-dev.txt
	@touch $@
	@echo "make setup: ready; try: make demo"

backends: setup  ## Make the environments of the other backends in .venvs, for a CPU; those that are there stay
	@# pip works on one core.
	@$(MAKE) --no-print-directory -j 2 $(BACKENDS:%=.backend-%)

.backend-%:
	@$(BIN)/ajet env create $* --cpu

browser: setup  ## Fetch a browser for the tests of the page; a chromium of the system does as well
	$(BIN)/playwright install --only-shell chromium

demo: setup  ## Train a tiny model on this machine (options: ARGS="...")
	$(BIN)/ajet demo $(ARGS)

test: setup  ## Check style, types and the unit tests, in .venv: a minute or two
	@$(MAKE) --no-print-directory -j 2 -O lint type
	@# `lint` has run this file.
	@$(MAKE) --no-print-directory unit ARGS="--ignore tests/test_words.py"

unit: setup  ## Run the unit tests, in a process for each core (options: ARGS="...", TESTS="...")
	@$(MAKE) --no-print-directory -O -j $(PARTS) $(foreach part,$(shell seq $(PARTS)),.unit-$(part))

# A process that takes its own files collects no others, and has no reports to send.
.unit-%:
	@# Schemathesis is not theirs, and takes long to import.
	@# Where ARGS select no test of a part, pytest ends with 5.
	@$(if $(TMPDIR),,$(if $(MEMORY),TMPDIR=$(MEMORY) ))HYPOTHESIS_PROFILE=$(HYPOTHESIS_PROFILE) TEST_PART=$*/$(PARTS) $(PYTHON) -m pytest $(UNIT) -p no:xdist -p no:schemathesis -o cache_dir=.pytest_cache/unit-$* -o tmp_path_retention_policy=failed --durations 10 --durations-min 1 $(ARGS) $(TESTS) || [ $$? -eq 5 ]

test-all: setup  ## Run every check but those of agents and backends: lint, types, tests on each Python, packages
	$(BIN)/tox $(TOX_RUN) $(DISCOVER) -e $(TOX_ENVS)

wheels: setup  ## Build and check every package; the wheels are left in dist
	$(BIN)/python scripts/check_wheels.py dist

docs: setup  ## Build the documentation site in site/, without the network; any broken link fails
	$(BIN)/mkdocs build $(ARGS)

test-backends: backends  ## Run the tests with real backends: each trainer, each engine, pairs of them
	$(BIN)/tox $(TOX_RUN) $(DISCOVER) -e $(TOX_BACKENDS)

test-agents: setup  ## Run the tests of agent adapters and recipes, each with its framework (options: ARGS="...")
	$(BIN)/tox $(TOX_RUN) $(DISCOVER) -e $(TOX_AGENTS) $(if $(ARGS),-- $(ARGS))

test-nightly: backends  ## Run what takes minutes and of which the other commands run a part (options: ARGS="...")
	HYPOTHESIS_PROFILE=thorough AJET_SCHEMATHESIS_CASES=3000 $(BIN)/python -m pytest -o timeout=0 -m "nightly and not pairs" $(ARGS) tests
	$(BIN)/python -m pytest -o timeout=0 -m nightly plugins/demo/tests
	$(BIN)/python -m pytest -o timeout=0 -m nightly plugins/backend_torch/tests
	@# Continuous integration runs some of these, and not that programs learn.
	$(BIN)/tox $(TOX_RUN) $(DISCOVER) -e $(TOX_AGENTS)
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest $(ARGS) tests/security/test_hostile_tenants.py
	AJET_SCHEMATHESIS_CASES=3000 $(BIN)/python -m pytest -o timeout=0 -m "not nightly" $(ARGS) tests/security/test_schemathesis.py
	$(BIN)/tox $(TOX_RUN) $(DISCOVER) -e $(TOX_NIGHTLY)
	$(BIN)/tox $(TOX_RUN) $(DISCOVER) -e trl,verl,vllm,sglang -- -m "nightly or not nightly"

lint: setup  ## Check style, format and words, and that generated files are up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/unasync.py --check
	$(BIN)/python -m pytest -q tests/test_words.py

generate: setup  ## Generate the synchronous modules, docs/openapi.json, settings.md, catalogue.md, evidence.md and versions.html, and llms.txt
	$(BIN)/python scripts/unasync.py
	$(BIN)/python scripts/write_openapi.py
	$(BIN)/python scripts/write_settings.py
	$(BIN)/python scripts/write_catalogue.py
	$(BIN)/python benchmarks/evidence.py write
	@$(BIN)/ajet research history benchmarks/history/versions.jsonl --page docs/versions.html > /dev/null
	$(BIN)/python scripts/write_llms.py

type: setup  ## Check types
	$(MYPY)
	@set -e; for plugin in $(TYPED_TESTS); do \
	  echo "mypy plugins/$$plugin/tests"; $(MYPY) plugins/$$plugin/tests; \
	done

format: setup  ## Fix style and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove environments, caches and build results
	rm -rf $(VENV) .tox dist build site htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .hypothesis
	find . \( -name __pycache__ -o -name .pytest_cache \) -type d -prune -exec rm -rf {} +
