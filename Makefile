# One command per wish. `make` alone lists them.
VENV   ?= .venv
PY     := $(VENV)/bin/python
CARGO  ?= cargo
PROFILE ?= release
SYNC   := $(VENV)/.synced
NATIVE := $(VENV)/.native
FAKE   := python/dra_agent/simulate/lib/libnvidia-ml.so.1

.DEFAULT_GOAL := help
.PHONY: help lock build demo test test-rust test-python lint fmt bench install clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(SYNC): requirements.lock
	@test -x $(PY) || python3 -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

lock: ## refresh requirements.lock from pyproject.toml
	@$(PY) -m pip install --quiet 'uv==0.13.8'
	$(VENV)/bin/uv pip compile --quiet --universal --generate-hashes --extra dev --no-header pyproject.toml -o requirements.lock

RUST_SOURCES := $(shell find rust -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock

$(NATIVE): $(SYNC) $(RUST_SOURCES)
	@VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/maturin develop --quiet --profile $(PROFILE)
	@touch $@

$(FAKE): $(RUST_SOURCES)
	@$(CARGO) build --quiet --profile $(PROFILE) --package dra-nvml-fake
	@mkdir -p $(@D) && cp target/$(PROFILE:dev=debug)/libnvidia_ml.so $@

build: $(NATIVE) $(FAKE) ## build the extension and install the agent into .venv

demo: build ## the whole way on this machine, in a minute
	@$(PY) demo/demo.py

test: test-rust test-python lint ## every test that needs no cluster

test-rust: ## cargo tests and clippy
	$(CARGO) test --workspace --quiet
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	$(CARGO) fmt --all --check

test-python: build ## pytest
	$(PY) -m pytest -n 2

lint: build ## ruff, mypy --strict, import rules
	$(VENV)/bin/ruff check python tests benchmarks deploy demo
	$(VENV)/bin/ruff format --check python tests benchmarks deploy demo
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache --no-logo

bench: build ## benchmarks, each a ratio in one run
	$(PY) benchmarks/scan.py
	$(PY) benchmarks/ledger.py
	$(PY) benchmarks/prepare.py
	$(PY) benchmarks/agent.py

PREFIX  ?= /usr/local
install: build ## install below DESTDIR: command, unit, tmpfiles, example configuration (docs/systemd.md)
	$(PY) deploy/install.py --destdir '$(DESTDIR)/' --prefix '$(PREFIX)'

fmt: $(SYNC) ## format everything
	$(CARGO) fmt --all
	$(VENV)/bin/ruff check --fix python tests benchmarks deploy demo
	$(VENV)/bin/ruff format python tests benchmarks deploy demo

clean: ## remove what was built
	rm -rf target $(VENV) python/dra_agent/simulate/lib python/dra_agent/*.so
