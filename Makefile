# Two commands: `make demo` and `make test`. Each does all the set-up it needs on a fresh machine.
.PHONY: help setup demo up docs chaos rehearse soak test test-all test-unit screens mutation test-infra test-sdk check lint names types contracts workflows format bench bench-peers weight dist clean
SHELL := /bin/bash
VENV := .venv
# Tests start hundreds of processes. Without bytecode on disk each of them compiles every module.
unexport PYTHONDONTWRITEBYTECODE
PY := $(VENV)/bin/python
ORDERS ?= 830
CHAOS = $(if $(filter file,$(origin ORDERS)),,--orders $(ORDERS)) \
	$(foreach name,FAULTS SEED MINUTES,$(if $($(name)),--$(shell echo $(name) | tr A-Z a-z) $($(name))))
# The command; -P: no module of the current directory is imported.
SAS = printf '\#!/bin/sh\nexec "$$(dirname "$$(readlink -f "$$0")")/python" -P -m sas.cli "$$@"\n' > $(VENV)/bin/sas && chmod +x $(VENV)/bin/sas
# Most tests wait for something most of the time: more processes than cores.
TEST_PROCESSES ?= 6
PYTEST := $(PY) -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

setup: devstack/azurite/node_modules/.ready tools/pyright/node_modules/.ready $(VENV)/bin/sas ## .venv with pinned packages; Azurite and pyright from npm

$(VENV)/.ready: requirements-dev.txt tools/find-python.sh
	@python=$$(tools/find-python.sh) || exit 1; \
	echo "setting up $(VENV) with $$($$python --version) (a minute or two, once)"; \
	rm -rf $(VENV) && "$$python" -m venv $(VENV)
	@$(PY) -m pip install -qq --disable-pip-version-check --require-hashes -r requirements-dev.txt || \
		{ echo "pip could not install what requirements-dev.txt pins: is the network there?"; exit 1; }
	@pwd > "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/sas-project.pth"
	@$(SAS)
	@touch $@

$(VENV)/bin/sas: Makefile | $(VENV)/.ready
	@$(SAS)

devstack/azurite/node_modules/.ready: devstack/azurite/package-lock.json
	@command -v npm >/dev/null || { echo "npm was not found: install Node 20 or newer (Azurite needs it)"; exit 1; }
	@node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' || { echo "Node $$(node -v) is too old: install Node 20 or newer"; exit 1; }
	@echo "installing Azurite from npm (a minute, once)"
	@npm ci --prefix devstack/azurite --no-fund --no-audit --loglevel=error
	@touch $@

tools/pyright/node_modules/.ready: tools/pyright/package-lock.json devstack/azurite/node_modules/.ready
	@npm ci --prefix tools/pyright --no-fund --no-audit --loglevel=error
	@touch $@

demo: setup ## 830 real orders through the whole pattern, with faults (ORDERS=20: a quick look; KEEP=1: to operate them)
	@$(PY) -m samples.demo --orders $(ORDERS) $(if $(KEEP),--keep)

up: setup ## Azure on this machine, the sample's services and the desk (DATA=DIR: remember for the next start)
	@exec $(PY) -m samples.up $(if $(DATA),--data '$(DATA)') $(UP)

docs: build/docs/.ready ## the documentation as a site, in build/docs/site: links checked, diagrams drawn
	@build/docs/venv/bin/python -m tools.docs_site

build/docs/.ready: requirements-docs.txt docs/site/package-lock.json tools/find-python.sh
	@python=$$(tools/find-python.sh) || exit 1; echo "installing MkDocs (a minute, once)"; \
	rm -rf build/docs/venv && "$$python" -m venv build/docs/venv
	@build/docs/venv/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements-docs.txt
	@npm ci --prefix docs/site --no-fund --no-audit --loglevel=error
	@touch $@

# Tools of workflows and of the mutation tester, in environments of their own.
build/ci/.ready build/checkov/.ready build/mutation/.ready: build/%/.ready: requirements-%.txt tools/find-python.sh
	@python=$$(tools/find-python.sh) || exit 1; rm -rf build/$* && "$$python" -m venv build/$*
	@build/$*/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r $<
	@touch $@

chaos: setup ## 2,000 orders and 100 faults over real processes (ORDERS=100 FAULTS=8 for a quick look)
	@$(PY) -m lab.chaos $(CHAOS)

rehearse: setup ## a deployment rehearsed here: the zip, Microsoft's worker core, identity, a Recreate (three minutes)
	@$(PY) -m lab.rehearsal

soak: setup ## memory and sockets of one worker over 20,000 orders with outages (MINUTES=10: for so long)
	@$(PY) -m lab.chaos --soak $(CHAOS)

# On a fresh clone each of the processes would compile every module, all at the same time.
$(VENV)/.compiled: $(VENV)/.ready
	@$(PY) -m pytest -qq --collect-only > /dev/null || true
	@touch $@

# What is deployed, unpacked: a test of the worker needs its packages, and makes it by this.
build/package/.ready: requirements.txt .funcignore sas/deploy/package.py $(VENV)/.ready
	@rm -rf build/package && $(PY) -m sas.cli azd package build/package/app.zip
	@$(PY) -m zipfile -e build/package/app.zip build/package/app && touch $@

test: setup $(VENV)/.compiled ## every layer of tests, without the long ones (under four minutes on two cores)
	$(PYTEST)

test-all: setup ## what `make test` leaves out: kills, fuzz, more seeds, larger models (13 minutes)
	$(PYTEST) -m "long or hypothesis" --hypothesis-profile=long

test-unit: setup ## the unit tests alone, in half a minute
	$(PY) -m pytest -n 2 --dist loadfile -q tests/unit

screens: setup ## draw the golden screens of the command again (tests/unit/screens)
	SAS_SCREENS=1 $(PY) -m pytest -q tests/unit/test_screens.py

test-infra: setup ## names in Bicep against the code, queues, access, azd (CI runs bicep lint and checkov)
	$(PY) -m pytest tests/infra

test-sdk: setup ## Microsoft's own tests of azure-servicebus against our broker (about 15 minutes)
	$(PY) -m devstack.tests.sdk --report devstack/tests/sdk/RESULTS.md

dist: setup ## both packages as wheel and sdist, in build/dist
	@$(PY) -m tools.dist

check: lint names types contracts workflows ## lint, names, types, import contracts, weaknesses of workflows

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

names: setup
	$(PY) -m tools.names

types: setup
	$(PY) -m mypy
	$(PY) -m mypy function_app.py

contracts: setup
	$(VENV)/bin/lint-imports

workflows: setup
	$(VENV)/bin/zizmor --offline --quiet .github template/.github

format: setup ## rewrite the source as `make check` wants it
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: setup ## orders a second, latency, requests per order
	$(PY) -m lab.benchmarks.orders

bench-peers: setup ## the same saga on Restate, DBOS, Temporal and Celery, in turns (10 minutes; QUICK=1, ROUNDS=3)
	@$(PY) -m lab.benchmarks.peers $(if $(QUICK),--quick) $(if $(ROUNDS),--rounds $(ROUNDS))

mutation: setup build/mutation/.ready ## 200 mutants that nobody chose, and what survives (SEED=2, SAMPLE=50)
	@$(PY) -m lab.mutation $(if $(SEED),--seed $(SEED)) $(if $(SAMPLE),--sample $(SAMPLE))

weight: setup ## lines, words, settings, verbs: the table of ARCHITECTURE.md
	@$(PY) -m lab.weight

clean: ## remove what setup made
	rm -rf $(VENV) devstack/azurite/node_modules tools/pyright/node_modules .mypy_cache .ruff_cache .pytest_cache
