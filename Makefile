# Two commands for a newcomer: `make demo` and `make test`. Each installs what it needs into .venv by itself, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
LOG := $(VENV)/install.log

.PHONY: demo test test-integrations test-matrix check-dependencies lint format check-types dist docs docs-serve clean setup

demo: $(DEMO_STAMP)
	@$(BIN)/srem demo

# The wheel and the source archive, in dist/.
dist: setup
	@rm -rf dist
	@$(BIN)/python -m hatchling build -d dist

# The documentation as a site, in build/site; a broken link is an error.
docs: setup
	@$(BIN)/python docs/site/build.py

docs-serve: docs
	@$(BIN)/python -m http.server --directory build/site --bind 127.0.0.1 8000

# Timing and memory tests run by themselves, after the others, so that they measure nothing but themselves.
test: lint check-types
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not alone"
	@$(BIN)/python -m pytest -m alone

# open_clip needs torchvision, which must not enter the default environment.
INTEGRATIONS := .venv-integrations
test-integrations: $(INTEGRATIONS)/.installed
	@OMP_NUM_THREADS=1 $(INTEGRATIONS)/bin/python -m pytest -rs -m integrations tests/integrations

$(INTEGRATIONS)/.installed: pyproject.toml constraints.txt
	@echo "Setting up $(INTEGRATIONS) ..."
	@$(PYTHON) -m venv $(INTEGRATIONS)
	@$(INTEGRATIONS)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[integrations]'
	@touch $@

lint: setup
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "run 'make format' first"; exit 1; }

check-types: setup
	@$(BIN)/mypy --no-error-summary

format: setup
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

# Tests of the core on other versions of Python and on the oldest declared dependencies; needs uv. What cannot be installed is reported.
# A build of PyTorch at hand, for one version of Python: MATRIX=3.11:lowest-direct MATRIX_WITH="torch==2.13.0+cpu --find-links DIR"
MATRIX_WITH ?=
MATRIX ?= 3.11:highest 3.12:highest 3.13:highest 3.11:lowest-direct
test-matrix:
	@for cell in $(MATRIX); do python=$${cell%%:*}; resolution=$${cell##*:}; folder=.venv-$$python-$$resolution; \
		if uv venv --quiet --python $$python $$folder && uv pip install --quiet --python $$folder --resolution $$resolution \
			'.[demo]' 'pytest>=8' 'hypothesis>=6.100' 'mpmath>=1.3' $(MATRIX_WITH) >$$folder/install.log 2>&1; \
		then $$folder/bin/python -m pytest tests/test_io.py tests/config tests/objectives -m "not alone" \
			&& echo "$$cell: passed" || echo "$$cell: FAILED"; \
		else echo "$$cell: could not be installed: $$(tail -n 1 $$folder/install.log 2>/dev/null)"; fi; done

# Known vulnerabilities and licenses of what is installed, where the registry allows it.
check-dependencies: setup
	@$(BIN)/python -m pip install --quiet pip-audit pip-licenses
	@$(BIN)/pip-audit --skip-editable || echo "pip-audit found something, or could not reach its registry"
	@$(BIN)/pip-licenses --order=license

setup: $(STAMP)

INPUTS := pyproject.toml constraints.txt src/sremkit/version.py

$(STAMP): $(INPUTS)
	@$(call install,dev,what the tests need)

$(DEMO_STAMP): $(INPUTS)
	@$(call install,demo,what the demo needs: sremkit[demo])

# install(extra, words): install the package with an extra into .venv and touch the target.
define install
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	|| { echo "sremkit needs Python 3.11 or newer; name one with: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }; \
echo "Installing $(2) into $(VENV), once (the log is $(LOG)) ..."; \
$(PYTHON) -m venv $(VENV) || exit 1; \
$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(1)]' >$(LOG) 2>&1 \
	|| { tail -n 20 $(LOG); echo "the installation failed; the whole log is $(LOG)"; exit 1; }; \
touch $@
endef

clean:
	rm -rf $(VENV) $(INTEGRATIONS) .pytest_cache .mypy_cache .ruff_cache dist build
