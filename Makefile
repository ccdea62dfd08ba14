# What CI runs is `make test`; everything here works without a virtual environment of your own.

PYTHON ?= python3
PIP := 26.3
BIN := .venv/bin
# Most tests wait for servers. Each process has servers of its own, so files stay whole.
PROCESSES ?= 2
# Written last, so that an interrupted set-up is done again.
INSTALLED := .venv/installed

SOURCES := src settings workflows activities workers web sandbox tests benchmarks deploy docs/_tools
# Those that fail fast come first; a folder that isn't named here comes last.
FIRST := $(wildcard $(addprefix tests/,unit model store sandbox web replay workflows e2e dev))
REST := $(filter-out $(FIRST),$(patsubst %/,%,$(dir $(sort $(wildcard tests/*/test_*.py)))))

.PHONY: .venv bench demo dev test lint format diagrams clean
.DELETE_ON_ERROR:

# The environment alone; every other target sets it up by itself.
.venv: $(INSTALLED)

# DROP_RESPONSE=1: the payment system loses its answers.
demo: $(INSTALLED)
	$(BIN)/python -m workers demo $(if $(DROP_RESPONSE),--drop-response)

dev: $(INSTALLED)
	@$(BIN)/python -m workers dev

test: lint
	$(BIN)/python -m pytest -q -n $(PROCESSES) --dist loadfile $(FIRST) $(sort $(REST))

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(wildcard $(SOURCES))
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# JSON lines; about an hour on two cores. `python -m benchmarks table FILE` makes the tables in docs of them.
# `crashes` leaves out what isn't installed: the extra `compare` is for who asks for it.
bench: $(INSTALLED)
	@for part in leaks crashes compare effects turns ledger shared; do $(BIN)/python -m benchmarks $$part || exit 1; done

diagrams: $(INSTALLED)
	$(BIN)/python docs/_tools/state_diagram.py
	PYTHONPATH=. $(BIN)/python docs/_tools/settings_table.py
	$(BIN)/python docs/_tools/command_table.py
	$(BIN)/python docs/_tools/outcome_table.py

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis .turnsaga
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "turnsaga needs Python 3.11 or newer, and '$(PYTHON)' isn't one; name one with make PYTHON=..." >&2; \
	  exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip==$(PIP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[app,postgres,dev]"
	@touch $@
