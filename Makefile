# Every verb of the project; `make help` lists them. Nothing here needs installing by hand but
# Python 3.11 with venv: the first verb that needs it makes .venv.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# What environments are built with: `python3`, or an optimised build of the same version.
PYTHON ?= $(shell python3 deploy/interpreter.py || echo python3)
VENV ?= .venv
CLIENTS ?= .venv-clients
OLDEST ?= .venv-oldest
DOCS ?= .venv-docs
EXAMPLES ?= .venv-examples
TORCH := $(shell sed -n 's/^TORCH = "\(.*\)"/\1/p' deploy/lock.py)
# Where torch comes from: cpu, a tag of CUDA such as cu130, pip (as pip is configured), or a URL.
TORCH_INDEX ?=
EXTRAS := split,sweep,trainer
ARGS ?=
BIN := $(VENV)/bin
IMAGES_PYTHON ?= $(BIN)/python
# Tests of one file mostly stay together, for they share servers; who has none left takes some.
# Many wait for a server or a process: one more at a time than there are cores keeps those busy.
SIDE_BY_SIDE := -n $(shell n=$$(nproc); echo $$((n < 8 ? n + 1 : 8))) --dist worksteal
# Gives way to all others. A shell has what it runs in the background ignore Ctrl-C, which tests send.
BEHIND := $(BIN)/python -c 'import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); \
	os.nice(15); os.execv(sys.argv[1], sys.argv[1:])'
PROTOC := $(CLIENTS)/bin/python -m grpc_tools.protoc -I.
PROTOS := protos/*.proto protos/flambeau/v1/*.proto
# Contracts of doors that the client does not use.
DOORS := protos/torchserve/*.proto
# The client has its message classes from this file, not from the stubs.
DESCRIPTORS := flambeau/protocol/client_messages.binpb
PIP_INSTALL := pip install -qq --disable-pip-version-check --no-compile
INSTALL := $(BIN)/$(PIP_INSTALL)
# An environment that is brought up to date gets the versions that a new one would get.
UPGRADE := $(INSTALL) --upgrade --upgrade-strategy eager
FOREGROUND := $(BIN)/python -I flambeau/foreground_job.py
VERSIONS := $(VENV)/serving-versions.txt
# Bytecode is made on all cores, and here: where nothing else may write it, every start of a process
# would compile what it imports. Some packages ship files for other versions of Python.
# Tests of packages, a fifth of all, nobody imports.
COMPILE := $(BIN)/python -m compileall -q -j 0 -x '/tests?/' $(VENV)/lib > /dev/null 2>&1 || true
# Of our sources for tests, which start hundreds of processes: many machines forbid these to write any.
COMPILE_OURS := $(BIN)/python -m compileall -q -j 0 flambeau model_store protos services training
TORCHED := $(VENV)/.torch-installed
SERVING := $(VENV)/.serving-installed
DEVELOPING := $(VENV)/.developing-installed
CLIENTS_INSTALLED := $(CLIENTS)/.installed
DOCS_INSTALLED := $(DOCS)/.installed
EXAMPLES_INSTALLED := $(EXAMPLES)/.installed
OLDEST_INSTALLED := $(OLDEST)/.installed
VALIDATING := $(VENV)/.validating-installed
IN_FRONT := $(VENV)/.envoy-installed

ifneq ($(and $(TORCH_INDEX),$(wildcard $(TORCHED)),$(filter install develop up up-split demo,$(MAKECMDGOALS))),)
$(info note: TORCH_INDEX changes nothing in $(VENV), which is there already; make clean first)
endif

.PHONY: help
help: ## List every verb.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The newest pip resolves in less than half the time of the one that Python 3.11 brings.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("flambeau needs Python 3.11 or newer; set PYTHON=") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m deploy.torch_build --check "$(TORCH_INDEX)"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) --upgrade pip

# torch goes first and by its own pin, so that the build that is wanted is there when the rest asks.
$(TORCHED): pyproject.toml | $(BIN)/python
	@echo "installing flambeau into $(VENV) (minutes the first time)"
	@$(BIN)/python -m deploy.torch_build "$(TORCH_INDEX)"
	@touch $@

$(SERVING): pyproject.toml | $(TORCHED)
	@$(UPGRADE) $(TORCH) --editable '.[$(EXTRAS)]'
	@$(BIN)/pip list --disable-pip-version-check --format freeze --exclude-editable > $(VERSIONS)
	@$(COMPILE)
	@touch $@
	@echo "✓ environment ready"

# Tests run on the versions that users install: no tool may change them.
$(DEVELOPING): pyproject.toml $(CLIENTS_INSTALLED) | $(SERVING)
	@$(INSTALL) --constraint $(VERSIONS) --editable '.[$(EXTRAS),dev]'
	@$(COMPILE)
	@touch $@

$(CLIENTS_INSTALLED): pyproject.toml
	@test ! -L $(CLIENTS) || { echo "$(CLIENTS) is a link, and would be emptied; remove it, or set CLIENTS=" >&2; exit 1; }
	@echo "installing the clients that tests drive into $(CLIENTS)"
	@$(PYTHON) -m venv --clear $(CLIENTS)
	@$(CLIENTS)/bin/$(PIP_INSTALL) --upgrade pip
	@$(CLIENTS)/bin/$(PIP_INSTALL) --group clients
	@$(CLIENTS)/bin/python -m compileall -q -j 0 $(CLIENTS)/lib > /dev/null 2>&1 || true
	@touch $@

# The API reference imports the client; what else its modules import, docs/conf.py replaces.
$(DOCS_INSTALLED): pyproject.toml
	@echo "installing what builds the documentation into $(DOCS)"
	@$(PYTHON) -m venv --clear $(DOCS)
	@$(DOCS)/bin/$(PIP_INSTALL) --upgrade pip
	@$(DOCS)/bin/$(PIP_INSTALL) --editable '.[docs]'
	@touch $@

# The packages whose models examples/ bring. silero-vad declares torchaudio, which its model does not
# need.
$(EXAMPLES_INSTALLED): pyproject.toml
	@echo "installing flambeau and the models of examples/ into $(EXAMPLES)"
	@$(PYTHON) -m venv --clear $(EXAMPLES)
	@$(EXAMPLES)/bin/$(PIP_INSTALL) --upgrade pip
	@$(EXAMPLES)/bin/python -m deploy.torch_build "$(TORCH_INDEX)"
	@$(EXAMPLES)/bin/$(PIP_INSTALL) $(TORCH) --editable '.[$(EXTRAS),images]' --group examples
	@$(EXAMPLES)/bin/$(PIP_INSTALL) --no-deps silero-vad==6.2.3
	@touch $@

# The oldest of whatever pyproject.toml bounds from below. The marks are for tests that run make in
# this environment: what it would install first is there.
$(OLDEST_INSTALLED): pyproject.toml $(CLIENTS_INSTALLED)
	@echo "installing the oldest versions that pyproject.toml allows into $(OLDEST)"
	@$(PYTHON) -m venv --clear $(OLDEST)
	@$(OLDEST)/bin/$(PIP_INSTALL) --upgrade pip
	@$(OLDEST)/bin/python -m deploy.torch_build "$(TORCH_INDEX)"
	@$(OLDEST)/bin/python -m deploy.oldest_versions > $(OLDEST)/oldest-versions.txt
	@$(OLDEST)/bin/$(PIP_INSTALL) --constraint $(OLDEST)/oldest-versions.txt --editable '.[$(EXTRAS),test]'
	@$(OLDEST)/bin/python -m compileall -q -j 0 $(OLDEST)/lib > /dev/null 2>&1 || true
	@touch $(OLDEST)/$(notdir $(TORCHED)) $(OLDEST)/$(notdir $(SERVING)) $@

$(VALIDATING): pyproject.toml | $(DEVELOPING)
	@$(INSTALL) --constraint $(VERSIONS) --editable '.[k8s]'
	@touch $@

$(IN_FRONT): pyproject.toml | $(DEVELOPING)
	@$(INSTALL) --constraint $(VERSIONS) --editable '.[cluster]'
	@touch $@

.PHONY: install
install: $(SERVING) ## Make the environment for training and serving.

.PHONY: develop
develop: $(DEVELOPING) ## Make the environment for tests and lint too.

.PHONY: clients
clients: $(CLIENTS_INSTALLED) ## Make the environment of the clients that tests drive, and of protoc.

# Ctrl-C reaches the server and not make, and what ends make ends the server first.
.PHONY: up
up: $(SERVING) ## Train a first model if the store is empty, then serve it. ARGS="--set http_port=9000"
	@exec $(FOREGROUND) $(BIN)/flambeau up $(ARGS)

.PHONY: up-split
up-split: $(SERVING) ## The same with many processes: Redis, two gateways, two workers, a registry, an example load.
	@exec $(FOREGROUND) $(BIN)/flambeau up-split $(ARGS)

.PHONY: demo
demo: $(SERVING) ## The whole path once, checked: train, serve, classify over REST and gRPC, compare.
	@$(BIN)/flambeau demo $(ARGS)

.PHONY: demo-bring
demo-bring: $(SERVING) ## Models from memory, files, a class and a pipeline: published, verified, served, compared.
	@$(BIN)/python -W ignore examples/demo.py

# Training has processes of its own: behind tests of all other kinds, torch's loaders ended a process
# of pytest's by a segmentation fault in some runs. It computes while the others wait for servers, and
# gives way to them. Every group runs, also behind one that failed.
.PHONY: test
test: $(DEVELOPING) ## Every test but the long ones and the slow suites.
	@$(COMPILE_OURS)
	@failed=0; output=$$(mktemp); \
	$(BEHIND) $(BIN)/pytest tests/unit/training -n 1 $(ARGS) > "$$output" 2>&1 < /dev/null & training=$$!; \
	trap 'kill $$training 2> /dev/null || true; rm -f "$$output"' EXIT; \
	$(BIN)/pytest tests/unit tests/contract tests/client tests/repo tests/k8s --ignore tests/unit/training \
		$(SIDE_BY_SIDE) $(ARGS) || failed=1; \
	$(BIN)/pytest tests/e2e $(SIDE_BY_SIDE) $(ARGS) || failed=1; \
	wait $$training || failed=1; cat "$$output"; \
	exit $$failed

# Only files that have some: each of the processes imports all files that it is given.
LONG_FILES = $(sort $(wildcard tests/contract/test_*.py) \
	$(shell grep -rl --include='test_*.py' 'mark\.long' tests/unit tests/e2e tests/examples))
# One of so many parts of them: SHARE=3/8.
SHARE ?= 0/1
.PHONY: test-long
test-long: $(DEVELOPING) ## What takes long and repeats shorter tests: pages of docs/, chaos, attacks, families. SHARE=3/8
	@$(COMPILE_OURS)
	@$(BIN)/pytest $$(printf '%s\n' $(LONG_FILES) | awk 'NR % $(notdir $(SHARE)) == $(patsubst %/,%,$(dir $(SHARE)))') \
		-m long $(SIDE_BY_SIDE) $(ARGS)

.PHONY: test-examples
test-examples: $(EXAMPLES_INSTALLED) ## Every script and page of examples/, with the models of other packages.
	@$(EXAMPLES)/bin/pytest tests/examples -m "slow or not slow" $(ARGS)

.PHONY: test-oldest
test-oldest: $(OLDEST_INSTALLED) ## The unit, contract, client and e2e tests on the oldest versions that are allowed.
	@$(OLDEST)/bin/pytest tests/unit tests/contract tests/client $(SIDE_BY_SIDE) $(ARGS)
	@$(OLDEST)/bin/pytest tests/e2e $(SIDE_BY_SIDE) $(ARGS)

.PHONY: test-gpu
test-gpu: $(DEVELOPING) ## The tests that need a GPU; where there is none each says so and is skipped.
	@$(BIN)/pytest tests/gpu $(ARGS)

.PHONY: chaos
chaos: $(DEVELOPING) ## Ten minutes of killing everything under load, with a ledger. ARGS="--seed 7"
	@$(BIN)/python -m tests.chaos $(ARGS)

.PHONY: adversarial
adversarial: $(DEVELOPING) ## Hostile clients and stores beside a healthy client. ARGS="--seed 7 --only JSON"
	@$(BIN)/python -m tests.adversarial $(ARGS)

.PHONY: conformance
conformance: $(DEVELOPING) ## Every call, mutated requests, schemathesis, and Triton beside ours and with exported versions. ARGS="--seed 7 --seconds 30"
	@$(BIN)/python -m tests.conformance $(ARGS)
	@$(BIN)/pytest -m slow tests/e2e/test_live_triton.py tests/unit/flambeau/exporting

.PHONY: conformance-torchserve
conformance-torchserve: $(DEVELOPING) ## The same calls of TorchServe 0.12 and of ours, every difference explained. ARGS="--seed 7"
	@$(BIN)/python -m tests.conformance_torchserve $(ARGS)

# Microsoft's emulator of Azure Blob Storage, in a folder of its own; without it its tests are skipped.
.PHONY: azurite
azurite: ## Install Azurite from npm, for the tests of stores at az://.
	@npm install --silent --no-audit --no-fund --no-save --prefix var/azurite azurite@3.35.0

.PHONY: mutants
mutants: $(DEVELOPING) ## Change the sources in 200 places, and see whether a test notices. ARGS="--count 20 --seed 7"
	@$(BIN)/python -m tests.mutants $(ARGS)

.PHONY: k8s-validate
k8s-validate: $(VALIDATING) ## Render every overlay of k8s/, hold it against schemas and our rules, start each image's lock.
	@$(BIN)/pytest tests/k8s tests/locks $(ARGS)

.PHONY: helm
helm: $(DEVELOPING) ## Generate the Helm chart from k8s/: deploy/helm/flambeau. Needs kubectl.
	@$(BIN)/python -m deploy.helm_chart

.PHONY: e2e-cluster
e2e-cluster: $(DEVELOPING) $(IN_FRONT) ## Pods in network namespaces behind Envoy, updated and lost under load. ARGS="--seed 7"
	@$(BIN)/python -m tests.cluster $(ARGS)

.PHONY: lint
lint: $(DEVELOPING) ## Format, lint, types, imports, and stubs and descriptors that agree with their .proto.
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache | tail -n 1
	@made=$$(mktemp -d); trap 'rm -rf "$$made"' EXIT; mkdir -p "$$made/$(dir $(DESCRIPTORS))"; \
		$(PROTOC) --python_out="$$made" --pyi_out="$$made" \
			--include_imports --descriptor_set_out="$$made/$(DESCRIPTORS)" $(PROTOS); \
		$(PROTOC) --python_out="$$made" --pyi_out="$$made" $(DOORS); \
		(cd "$$made" && find . -type f) | while read -r stub; do diff -q "$$made/$$stub" "$$stub"; done

.PHONY: format
format: $(DEVELOPING) ## Format and fix what can be fixed.
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .

.PHONY: protos
protos: $(CLIENTS_INSTALLED) ## Generate the stubs and the client's descriptors from protos/*.proto.
	@$(PROTOC) --python_out=. --pyi_out=. --include_imports --descriptor_set_out=$(DESCRIPTORS) $(PROTOS)
	@$(PROTOC) --python_out=. --pyi_out=. $(DOORS)

.PHONY: dashboards
dashboards: $(DEVELOPING) ## Generate dashboards, alert rules and docs/reference/metrics.md from the code.
	@$(BIN)/python -m flambeau.monitoring

.PHONY: dashboards-check
dashboards-check: $(DEVELOPING) ## Every panel on a fleet under load, watched by a real Prometheus.
	@$(BIN)/python -m tests.dashboards $(ARGS)

.PHONY: dashboard-pictures
dashboard-pictures: $(DEVELOPING) ## The same, and draws docs/images from what Prometheus answered.
	@$(BIN)/python -m tests.dashboards --pictures docs/images $(ARGS)

.PHONY: docs
docs: $(SERVING) ## Regenerate docs/reference/recipe.md, every key of a recipe; `docs-site` builds the site.
	@$(BIN)/python -m training.recipe.reference

.PHONY: docs-site
docs-site: $(DOCS_INSTALLED) ## Build the whole documentation as a site without network access: build/site. Warnings are errors.
	@rm -rf build/site build/site-doctrees
	@$(DOCS)/bin/sphinx-build --builder html --fail-on-warning --keep-going --quiet \
		--conf-dir docs --doctree-dir build/site-doctrees . build/site
	@echo "wrote build/site/index.html"

.PHONY: bench
bench: $(SERVING) ## Measure the raw model against what is served; writes bench/results/latest.json.
	@$(BIN)/python -m bench $(ARGS)

.PHONY: bench-peers
bench-peers: $(SERVING) ## The same weights on TorchServe, Triton and others, each installed from PyPI first.
	@$(BIN)/python -m bench.peers $(ARGS)

.PHONY: bench-torchserve
bench-torchserve: $(SERVING) ## The same archives on TorchServe 0.12 and on ours: CPU, throughput, latency, start.
	@$(BIN)/python -m bench.peers.torchserve_migration $(ARGS)

.PHONY: bench-overload
bench-overload: $(SERVING) ## What becomes of requests with 50 ms when twice as much is asked as can be done.
	@$(BIN)/python -m bench.overload $(ARGS)

.PHONY: bench-swap
bench-swap: $(SERVING) ## Versions that change under load: failed requests, and p99 beside that before.
	@$(BIN)/python -m bench.swap $(ARGS)

.PHONY: bench-rollout
bench-rollout: $(SERVING) ## What shadows and rollouts cost callers, beside no traffic rules. ARGS="--rounds 3"
	@$(BIN)/python -m bench.rollouts.cost $(ARGS)

.PHONY: bench-start
bench-start: $(SERVING) ## Until 1, 16 and 100 models are ready, remembered and not. ARGS="--models 16"
	@$(BIN)/python -m bench.start $(ARGS)

.PHONY: bench-publish
bench-publish: $(SERVING) ## From a module in memory to its first verified answer. ARGS="--rounds 1"
	@$(BIN)/python -m bench.importing.publish $(ARGS)

.PHONY: bench-python
bench-python: $(SERVING) ## An empty Python model beside Triton's Python backend, a pipeline beside bare calls. ARGS="--no-triton"
	@$(BIN)/python -m bench.importing.python_models $(ARGS)
	@$(BIN)/python -m bench.importing.pipelines

.PHONY: bench-commits
bench-commits: $(SERVING) ## This checkout beside an earlier commit, in turns. ARGS="--before HEAD~1"
	@$(BIN)/python -m bench.commits $(ARGS)

.PHONY: bench-split
bench-split: $(SERVING) ## Redis between gateway and worker, beside all in one process.
	@$(BIN)/python -m bench.split $(ARGS)

.PHONY: bench-cores
bench-cores: $(SERVING) ## Two processes that accept requests beside one that does all, and what 16 cores would give.
	@$(BIN)/python -m bench.cores $(ARGS)

.PHONY: bench-copies
bench-copies: $(SERVING) ## How often a server copies each byte of a large tensor, by protocol and shape. Needs gcc.
	@$(BIN)/python -m bench.copies $(ARGS)

.PHONY: bench-push
bench-push: $(DEVELOPING) ## A push of 1 GB to a registry beside a plain copy, and lists of 100,000 versions.
	@$(BIN)/python -m bench.registry $(ARGS)

.PHONY: bench-limits
bench-limits: $(SERVING) ## 10,000 connections, the slowest answers at half of capacity, tensors of 1 and 64 MB.
	@$(BIN)/python -m bench.limits $(ARGS)

.PHONY: bench-front
bench-front: $(DEVELOPING) ## Streams, sequences, large tensors, loads and unloads, beside Triton. ARGS="--only tensors"
	@$(BIN)/python -m bench.front $(ARGS)

.PHONY: simulate-rollouts
simulate-rollouts: $(SERVING) ## Rollouts with known truth: how often they are judged wrongly, and how soon rightly. ARGS="--rollouts 10000 --seed 7"
	@$(BIN)/python -m bench.rollouts $(ARGS)

.PHONY: demo-rollout
demo-rollout: $(SERVING) ## A good version reaches all requests by itself, a subtly bad one is rolled back: two to five minutes.
	@$(BIN)/python -m bench.rollouts.demo $(ARGS)

.PHONY: bench-operate
bench-operate: $(DEVELOPING) ## What metrics, keys and traces cost a small request.
	@$(BIN)/python -m bench.operate $(ARGS)

.PHONY: bench-train
bench-train: $(SERVING) ## The training loop beside the same loop written bare, and Lightning Fabric's.
	@$(BIN)/python -m bench.train $(ARGS)

.PHONY: train-table
train-table: $(SERVING) ## Every family of networks trained, killed in mid-epoch and resumed: docs/guides/training.md.
	@$(BIN)/python -m bench.train_table $(ARGS)

.PHONY: artifacts-table
artifacts-table: $(DEVELOPING) ## Every family of networks in every kind of artifact: docs/reference/artifacts.md.
	@$(BIN)/python -m bench.artifacts $(ARGS)

.PHONY: soak
soak: $(SERVING) ## An hour at 70 % of capacity: memory, errors, latency. ARGS="--minutes 10 --processes 2"
	@$(BIN)/python -m bench.soak $(ARGS)

.PHONY: bench-gpu
bench-gpu: $(SERVING) ## Served over raw on a GPU, for the CNN and the encoder; says so where there is none.
	@$(BIN)/python -m bench.gpu $(ARGS)

.PHONY: lint-images
lint-images: $(DEVELOPING) ## Lint the Dockerfiles.
	@$(BIN)/hadolint deploy/*.Dockerfile

.PHONY: images-check
images-check: $(DEVELOPING) lint-images ## Build each image's file system, start it as its user, serve through all. As root. IMAGES_PYTHON=/path/to/python3.11
	@PYTHONPATH=$(VENV)/lib/python3.11/site-packages $(IMAGES_PYTHON) -m tests.images $(ARGS)

.PHONY: lock-images
lock-images: $(BIN)/python ## Resolve what the images install: deploy/requirements/. ARGS="gateway-keys"
	@$(BIN)/python -m deploy.lock $(ARGS)

.PHONY: sbom
sbom: $(BIN)/python ## What is in each image, as CycloneDX: dist/sbom/.
	@$(BIN)/python -m deploy.sbom

.PHONY: dist
dist: $(BIN)/python ## Build the wheel: dist/.
	@rm -rf build/lib build/bdist.* dist/*.whl
	@$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

.PHONY: release-check
release-check: dist ## Install the wheel into a bare environment, and go the whole path with it.
	@rm -rf var/release && mkdir -p var/release
	@$(PYTHON) -m venv var/release/venv
	@var/release/venv/bin/python -m deploy.torch_build "$(TORCH_INDEX)"
	@var/release/venv/bin/pip install --quiet --disable-pip-version-check "flambeau[split,trainer] @ file://$$(echo $(CURDIR)/dist/*.whl)"
	@var/release/venv/bin/pip check
	@cd var/release && venv/bin/flambeau --version && venv/bin/flambeau demo

.PHONY: test-pythons
test-pythons: $(DEVELOPING) dist ## Install the wheel to serve ONNX, without torch, on every Python here, and ask it.
	@$(BIN)/python -m tests.pythons dist/*.whl

.PHONY: clean
clean: ## Remove the environment and caches; models in var/ stay.
	@rm -rf $(VENV) $(CLIENTS) $(OLDEST) $(DOCS) $(EXAMPLES) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
