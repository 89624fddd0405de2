# Every verb of the project; `make help` lists them. Nothing here needs installing by hand but
# Python 3.11 with venv: the first verb that needs it makes .venv.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
ARGS ?=
BIN := $(VENV)/bin
# Tests of one file mostly stay together, for they share servers; who has none left takes some.
# Many wait for a server or a process: one more at a time than there are cores keeps those busy.
SIDE_BY_SIDE := -n $(shell n=$$(nproc); echo $$((n < 8 ? n + 1 : 8))) --dist worksteal
SERVING := $(VENV)/.serving-installed
DEVELOPING := $(VENV)/.developing-installed

.PHONY: help
help: ## List every verb.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("flambeau needs Python 3.11 or newer; set PYTHON=") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m venv $(VENV)

# torch goes first and by its own pin, so that a CPU build at hand is taken.
$(SERVING): pyproject.toml | $(BIN)/python
	@echo "installing flambeau into $(VENV) (minutes the first time)"
	@$(BIN)/pip install --quiet --disable-pip-version-check $(TORCH)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[split,trainer]'
	@touch $@
	@echo "✓ environment ready"

$(DEVELOPING): pyproject.toml | $(SERVING)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[split,trainer,dev]'
	@touch $@

.PHONY: install
install: $(SERVING) ## Make the environment for training and serving.

# Job control makes the server a job of its own, so that Ctrl-C reaches it and not make, and make
# sees its exit code. (`|| exit` keeps bash from becoming the server, which would undo that.)
.PHONY: up
up: $(SERVING) ## Train a first model if the store is empty, then serve it. ARGS="--set http_port=9000"
	@set -m; $(BIN)/flambeau up $(ARGS) || exit $$?

.PHONY: up-split
up-split: $(SERVING) ## The same with many processes: Redis, two gateways, two workers, an example load.
	@set -m; $(BIN)/flambeau up-split $(ARGS) || exit $$?

.PHONY: demo
demo: $(SERVING) ## The whole path once, checked: train, serve, classify over REST and gRPC, compare.
	@$(BIN)/flambeau demo $(ARGS)

.PHONY: test
test: $(DEVELOPING) ## Every test but the slow suites.
	@$(BIN)/pytest tests/unit tests/contract tests/client tests/repo $(SIDE_BY_SIDE) $(ARGS)
	@$(BIN)/pytest tests/e2e $(SIDE_BY_SIDE) $(ARGS)

.PHONY: test-gpu
test-gpu: $(DEVELOPING) ## The tests that need a GPU; where there is none each says so and is skipped.
	@$(BIN)/pytest tests/gpu $(ARGS)

.PHONY: chaos
chaos: $(DEVELOPING) ## Ten minutes of killing everything under load, with a ledger. ARGS="--seed 7"
	@$(BIN)/python -m tests.chaos $(ARGS)

.PHONY: lint
lint: $(DEVELOPING) ## Format, lint, types, imports, and stubs that agree with their .proto.
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache | tail -n 1
	@$(MAKE) protos
	@git diff --exit-code --stat -- protos

.PHONY: format
format: $(DEVELOPING) ## Format and fix what can be fixed.
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .

.PHONY: protos
protos: $(DEVELOPING) ## Generate the stubs from protos/*.proto.
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. protos/*.proto protos/flambeau/v1/*.proto

.PHONY: bench
bench: $(SERVING) ## Measure the raw model against what is served; writes bench/results/latest.json.
	@$(BIN)/python -m bench $(ARGS)

.PHONY: bench-peers
bench-peers: $(SERVING) ## The same weights on TorchServe, Triton and others, each installed from PyPI first.
	@$(BIN)/python -m bench.peers $(ARGS)

.PHONY: bench-overload
bench-overload: $(SERVING) ## What becomes of requests with 50 ms when twice as much is asked as can be done.
	@$(BIN)/python -m bench.overload $(ARGS)

.PHONY: bench-swap
bench-swap: $(SERVING) ## Versions that change under load: failed requests, and p99 beside that before.
	@$(BIN)/python -m bench.swap $(ARGS)

.PHONY: bench-split
bench-split: $(SERVING) ## Redis between gateway and worker, beside all in one process.
	@$(BIN)/python -m bench.split $(ARGS)

.PHONY: artifacts-table
artifacts-table: $(DEVELOPING) ## Every family of networks in every kind of artifact: docs/artifacts.md.
	@$(BIN)/python -m bench.artifacts $(ARGS)

.PHONY: soak
soak: $(SERVING) ## An hour at 70 % of capacity: memory, errors, latency. ARGS="--minutes 10"
	@$(BIN)/python -m bench.soak $(ARGS)

.PHONY: bench-gpu
bench-gpu: $(SERVING) ## Served over raw on a GPU, for the CNN and the encoder; says so where there is none.
	@$(BIN)/python -m bench.gpu $(ARGS)

.PHONY: clean
clean: ## Remove the environment and caches; models in var/ stay.
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
