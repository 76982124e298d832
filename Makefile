# One command each on a fresh Linux machine with Python >= 3.11: `make reproduce`, `make test`.
# The environment lives in .venv, with the exact versions of constraints.txt, and is made once.
#   PYTHON=/path/to/python3.12      another interpreter
#   TORCH_INDEX=URL                 another package index for torch alone (a CPU-only or an older CUDA build)

SHELL := /bin/bash -euo pipefail
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/complete
TORCH_INDEX ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$python -c '$(USABLE)' 2>/dev/null && echo $$python && break; done)
FOUND = $(or $(shell $(or $(PYTHON),python3) --version 2>/dev/null | head -n 1),no Python)
TOO_OLD = $(FOUND) found, Python >= 3.11 with venv needed: install python3.12 and python3.12-venv, \
	or say make PYTHON=/path/to/python

# Two test processes with one thread each: small tensors gain nothing from threads that fight over two cores.
ONE_THREAD := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

.PHONY: help install reproduce notebooks test lint unit check-notebooks format clean

help:
	@echo "make reproduce        run every notebook on real text, then write figures and a report (build/reproduce)"
	@echo "make test             lint, types, unit tests, notebooks compared with their stored output"
	@echo "make lint | unit | check-notebooks    one part of make test"
	@echo "make notebooks        run every notebook and refresh its committed output"
	@echo "make format           let ruff format and mend what it can"
	@echo "make clean            remove builds and caches; the environment goes with: rm -r $(VENV)"

install: $(STAMP)

# The stamp is written last and removed first: an install that was cut off starts from an empty environment.
$(STAMP): pyproject.toml requirements.txt constraints.txt
	@$(or $(PYTHON),false) -c '$(USABLE)' 2>/dev/null || { echo "$(TOO_OLD)" >&2; exit 1; }
	@echo "making the environment in $(VENV) (a few minutes, once)"
	@test -e $@ || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $@
	@$(if $(TORCH_INDEX),$(PIP) --no-deps --index-url $(TORCH_INDEX) torch)
	@$(PIP) --editable '.[embedded,dev]'
	@touch $@

reproduce: $(STAMP)
	$(BIN)/python -m eagle_repro run --profile quick --out build/reproduce

notebooks: $(STAMP)
	$(BIN)/python -m eagle_repro run --profile quick --refresh

test: lint unit check-notebooks

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# The kernels of the stack "compiled" are tested through Triton's interpreter, where no CUDA build of torch brings it.
unit: $(STAMP)
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(PIP) triton==3.9.0
	$(ONE_THREAD) $(BIN)/pytest -q -n 2

check-notebooks: $(STAMP)
	$(ONE_THREAD) EAGLE_REPRO_PROFILE=smoke $(BIN)/pytest -q -n 2 --dist loadscope \
	  --nbval --nbval-current-env --nbval-cell-timeout 120 notebooks

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
