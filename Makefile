# Two commands for a newcomer: `make demo` and `make test`. Each sets up .venv by itself, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOG := $(VENV)/install.log

.PHONY: demo test lint format check-types clean setup

demo: setup
	@$(BIN)/srem demo

# Timing and memory tests run by themselves, after the others, so that they measure nothing but themselves.
test: lint check-types
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not alone"
	@$(BIN)/python -m pytest -m alone

lint: setup
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "run 'make format' first"; exit 1; }

check-types: setup
	@$(BIN)/mypy --no-error-summary

format: setup
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt src/sremkit/version.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "sremkit needs Python 3.11 or newer; name one with: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "Setting up $(VENV), once (a few minutes; the log is $(LOG)) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' >$(LOG) 2>&1 \
		|| { tail -n 20 $(LOG); echo "the installation failed; the whole log is $(LOG)"; exit 1; }
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache dist build
