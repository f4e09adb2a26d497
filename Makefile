# The two commands of the README are `make serve` and `make test`; everything they need, they bring.
PYTHON ?= python3
PORT ?= 8000
BIN := .venv/bin
# Two processes share the tests; tests/conftest.py says which stay together.
SIDE_BY_SIDE := -n 2 --no-loadscope-reorder

.PHONY: help env serve test tests test-all mutants lint build check clean

help:
	@echo "make serve     build the site and serve it with live notebooks on http://127.0.0.1:$(PORT)"
	@echo "make test      the tests, lint and types (under 25 minutes on 2 cores)"
	@echo "make test-all  the slow ones too"
	@echo "make mutants   plant faults in the core, one after the other: a table of what finds each"

env:
	@$(PYTHON) tools/bootstrap.py

serve: env
	@$(BIN)/handbook serve --port $(PORT)

test:
	@$(PYTHON) tools/bootstrap.py --browser
	@$(MAKE) --no-print-directory lint
	@$(BIN)/python -m pytest -m "not slow" $(SIDE_BY_SIDE)

tests: test  # the folder of that name is no goal

test-all:
	@$(PYTHON) tools/bootstrap.py --browser
	@$(MAKE) --no-print-directory lint
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE)

mutants: env
	@PYTHONPATH=.:tests $(BIN)/python -m mutants

lint: env
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

build: env
	@$(BIN)/handbook build --out site

check: env
	@$(BIN)/handbook check

clean:
	rm -rf .build .cache site dist
