# Two commands do everything on a machine with Python 3.11+, pip and make:
#   make demo   a picture and a table that show why stale updates matter
#   make test   format check, lint, types and tests
# Each creates .venv when it is missing and installs only when pyproject.toml or constraints.txt changed.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --quiet --disable-pip-version-check
INPUTS := pyproject.toml constraints.txt

.PHONY: help demo test test-all format docs bench clean

help:
	@sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: $(INPUTS) | $(BIN)/python
	$(PIP) install -c constraints.txt -e '.[sim]'
	@touch $@

$(VENV)/.installed-all: $(INPUTS) | $(BIN)/python
	$(PIP) install -c constraints.txt -e '.[all]'
	@touch $@ $(VENV)/.installed-demo

demo: $(VENV)/.installed-demo
	$(BIN)/fedstale compare --out demo

test: $(VENV)/.installed-all
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

test-all: $(VENV)/.installed-all
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -m ""

format: $(VENV)/.installed-all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-all
	$(BIN)/python benchmarks/server_step.py
	$(BIN)/python benchmarks/round.py

clean:
	rm -rf $(VENV) demo build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis docs/_build
