# Two commands do everything on a machine with Python 3.11.5 or newer, pip and make:
#   make demo   a picture, a table and three sentences on why stale updates matter; under two minutes
#   make test   format check, lint, types and tests; about ten minutes
#   make docs   the documentation as a site in docs/_build/html
#   make lock   write locks/ anew, after a change of dependencies
# Each creates .venv when it is missing and installs only when pyproject.toml or locks/ changed.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Without bytecode on the disk every process that a test starts would compile the package anew.
export PYTHONDONTWRITEBYTECODE :=
PIP    := $(BIN)/pip --quiet --disable-pip-version-check

.PHONY: help demo test test-all format docs bench bench-peers lock audit mutants clean

help:
	@sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Every archive is compared with its hash. The lock is the whole set, so that nothing else is fetched: `pip check` sees that
# nothing is missing. torch comes in its build for CPUs where pip finds that, else with CUDA's libraries.
define install
$(PIP) install --require-hashes --no-deps -r locks/$(1).txt
$(PIP) install --require-hashes --no-deps -r locks/torch-cpu.txt 2>/dev/null || \
  $(PIP) install --require-hashes --no-deps -r locks/torch.txt
$(PIP) install --no-deps --no-build-isolation -e .
$(PIP) check
endef

$(VENV)/.installed-demo: pyproject.toml locks/sim.txt | $(BIN)/python
	$(call install,sim)
	@touch $@

$(VENV)/.installed-all: pyproject.toml locks/all.txt | $(BIN)/python
	$(call install,all)
	@touch $@ $(VENV)/.installed-demo

# Give WHEELS=FOLDER where torch's build for CPUs lies in a folder of wheels: locks/torch-cpu.txt is written, too.
lock: | $(BIN)/python
	test -x $(BIN)/uv || $(PIP) install -c constraints.txt uv
	$(BIN)/python .ci/lock.py $(if $(WHEELS),--wheels $(WHEELS))

demo: $(VENV)/.installed-demo
	$(BIN)/fedstale compare --folder demo --store fedstale-runs

test: $(VENV)/.installed-all
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2
	$(BIN)/pytest -m install -n 2

test-all: $(VENV)/.installed-all
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -m "" --hypothesis-profile=many

format: $(VENV)/.installed-all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.installed-all
	$(BIN)/sphinx-build -E -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

bench: $(VENV)/.installed-all
	$(BIN)/python benchmarks/server_step.py
	$(BIN)/python benchmarks/round.py

# Known vulnerabilities of the pinned dependencies; fails, too, where its database cannot tell of one of them.
audit: locks/all.txt locks/torch.txt | $(BIN)/python
	test -x $(VENV)/audit/bin/pip-audit || { $(BIN)/python -m venv $(VENV)/audit && \
	  $(VENV)/audit/bin/pip install --quiet --disable-pip-version-check pip-audit; }
	$(VENV)/audit/bin/pip-audit --strict --requirement locks/all.txt --requirement locks/torch.txt --no-deps --disable-pip --progress-spinner off

# Changes of rules/, memory/, beta.py and participation/ that no test notices, to be read; hours for all of them, minutes
# for one file: make mutants FILE=src/fedstale/rules/mifa.py
mutants: $(VENV)/.installed-all
	$(BIN)/python .ci/mutants.py --env $(VENV)/mutants $(FILE)

# The same work with Flower, pfl-research, fluke and a plain loop, each in .venv-peers/NAME: about 25 minutes.
bench-peers: $(VENV)/.installed-all
	$(BIN)/python -m benchmarks.peers.environments
	$(BIN)/python -m benchmarks.peers.race

clean:
	rm -rf $(VENV) demo build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis docs/_build
