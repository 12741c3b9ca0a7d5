# Every job of a developer and of CI. `make` alone lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
OUT    ?= runs/demo

# glibc must not hand per-sample gradients back to the kernel at every step; two processes beat two threads.
export MALLOC_MMAP_THRESHOLD_ := 4294967296
export MALLOC_TRIM_THRESHOLD_ := 4294967296
export OMP_NUM_THREADS := 1
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION := 1
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: help setup warm demo test check e2e bench docs clean

help: ## list these targets
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(READY) ## make .venv, install shoal with its tools, compile the kernels

# torch first and pinned: left to the resolver it would pull gigabytes of CUDA.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	$(MAKE) --no-print-directory warm
	touch $@

warm: ## compile the kernels into numba's cache (a changed kernel compiles itself again when it is used)
	$(BIN)/shoal simulate --fleet small --rounds 1 --seed 1 --fresh --out $(VENV)/warm --json >/dev/null

demo: $(READY) ## federate four virtual clusters and compare with kube-scheduler (minutes)
	$(BIN)/shoal simulate --rounds 40 --seed 7 --workers 2 --fresh --out $(OUT)
	$(BIN)/shoal experiment run federation --quick --out $(OUT)

test: $(READY) ## the quick tests
	$(BIN)/pytest -n 2 -m "not e2e"

e2e: $(READY) ## the end-to-end tests: real Flower messages, kill and resume, determinism over workers
	$(BIN)/pytest -m e2e

check: $(READY) ## lint, format, types, import contracts, repository rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/repository

bench: $(READY) ## speed, side by side with peers
	$(BIN)/shoal bench engine
	$(BIN)/shoal bench federation
	$(BIN)/shoal bench extender
	$(BIN)/shoal bench soak

docs: $(READY) ## write the generated reference pages; check links and commands of every page
	$(BIN)/python -m shoal_simulations.fleet_reference > docs/fleet.md
	$(BIN)/python -m shoal_client.collect.features > docs/live-features.md
	$(BIN)/python -m shoal_client.policies.crds
	$(BIN)/python -m shoal_client.metrics_reference > docs/operations/metrics.md
	$(BIN)/pytest -q tests/repository/test_docs.py

clean: ## remove caches and runs (the venv stays)
	rm -rf runs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find common client server simulations tests -name __pycache__ -type d -prune -exec rm -rf {} +
