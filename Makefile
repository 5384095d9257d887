# Everything here works from a fresh clone: what a target needs is made first. `make help` lists the targets.

# Every directory with a pyproject.toml of its own. Adding a service or a client is a line here, then `make lock`.
# Those that broker, gateway and command line consist of come first: `make run` needs no more, and no Spark.
SERVICES := \
    proto \
    transport \
    services/common \
    services/broker \
    services/gateway \
    clients/python
DISTRIBUTIONS := $(SERVICES) \
    clients/spark

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNNABLE := $(VENV)/.runnable
# What lint and fix look at, as far as it exists.
CHECKED := $(wildcard proto/cursus_proto transport services clients tests bench tools examples)
# The pinned one, if it is installed, else whatever there is.
BUF := $(firstword $(wildcard tools/node_modules/.bin/buf) $(shell command -v buf))
# Written by npm when it has installed what tools/package-lock.json pins.
NPM_TOOLS := tools/node_modules/.package-lock.json
PYTEST := $(BIN)/python -m pytest
SUITES := unit property integration crash e2e deploy spark languages
# What also runs on the newest Python of this machine, in an environment of its own.
NEWEST_SUITES := unit property crash e2e
NEWEST = $(shell $(PYTHON) tools/newest_python.py)
ON_NEWEST = $(PYTHON) -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$(word 1,$(NEWEST))")' \
    && echo "$@: skipped, $(word 1,$(NEWEST)) is the newest, and $(PYTHON) is one" \
    || $(MAKE) --no-print-directory VENV=.venv-$(word 1,$(NEWEST)) PYTHON=$(word 2,$(NEWEST))

.DEFAULT_GOAL := help
.PHONY: help setup setup-newest run test $(SUITES:%=test-%) test-newest $(NEWEST_SUITES:%=test-newest-%) test-model test-spark-faults
.PHONY: lint fix proto generate release-contract docs lock bench clean images test-images helm-check helm-e2e tools-helm

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY)  ## Make .venv: every pinned dependency and our own distributions, editable

# install LOCK,DISTRIBUTIONS installs into what is there, so a changed pyproject costs seconds. A lock that drops a
# package leaves it installed until `make clean`; a lock that changes one replaces it.
define install
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "Cursus needs Python 3.11, 3.12 or 3.13; try make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(1)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation $(2:%=-e ./%)
endef

# One after the other where both are asked for: they write to the same place.
$(READY): requirements.lock $(DISTRIBUTIONS:%=%/pyproject.toml) | $(RUNNABLE)
	$(call install,requirements.lock,$(DISTRIBUTIONS))
	@touch $(RUNNABLE) $@

$(RUNNABLE): requirements-services.lock $(SERVICES:%=%/pyproject.toml)
	$(call install,requirements-services.lock,$(SERVICES))
	@touch $@

run: $(RUNNABLE)  ## Start broker and gateway in the foreground on ./data; Ctrl-C stops both cleanly
	exec $(BIN)/python tools/run_services.py --data-dir data

test: $(SUITES:%=test-%)  ## Set up and run every test

test-unit:  ## Run the tests that need no process of their own
test-property:  ## Run the hypothesis tests
test-integration:  ## Run the tests against one real service process
test-crash:  ## Run the tests that kill, tear and fill up
test-e2e:  ## Run the user's stories over all services
test-deploy:  ## Run the tests of operating it: metrics, alerts, draining, images, chart; some need Prometheus or helm
test-spark:  ## Run the tests of the Spark source, sink and jobs; needs Java 17
test-languages:  ## Build the example programs in other languages and run them against real brokers, as far as their tools are there
$(SUITES:%=test-%): test-%: $(READY)
	@if [ -d tests/$* ]; then set -x; $(PYTEST) tests/$*; else echo "tests/$*: none yet"; fi

# The crash suite runs a few of these rounds; a failure names its seed and how to repeat it.
ROUNDS ?= 500
test-model: $(READY)  ## Run ROUNDS random rounds of groups, publishers and power loss, from MODEL_SEED on
	MODEL_ROUNDS=$(ROUNDS) $(PYTEST) tests/crash/test_group_model.py

# The Spark suite runs one of these rounds with two kills of each kind; a failure names its seed.
FAULTS ?= 10
SEEDS ?= 3
test-spark-faults: $(READY)  ## Run SEEDS rounds of Spark streams whose drivers, workers and broker are killed FAULTS times each
	FAULTS_ROUNDS=$(SEEDS) FAULTS_KILLS=$(FAULTS) $(PYTEST) tests/spark/test_faults.py

test-images: $(READY)  ## Build the images on a local base and run them; needs podman, runc, mmdebstrap and root
	CURSUS_TEST_IMAGES=1 $(PYTEST) --capture=no tests/deploy/test_images.py

helm-check: $(READY)  ## Lint and render the chart with every values file, and hold it against schemas and standards
	$(PYTEST) tests/deploy/test_chart.py tests/deploy/test_chart_commands.py

# What is built for these two is kept outside the checkout, in CURSUS_TOOLS_CACHE (~/.cache/cursus-tools).
helm-e2e: $(READY)  ## Install, upgrade, roll back and uninstall the chart on a real API server; builds it once, in half an hour
	$(BIN)/python tools/control_plane.py
	CURSUS_HELM_E2E=1 $(PYTEST) tests/deploy/test_helm_e2e.py

tools-helm:  ## Build helm and kubeconform with go: six minutes of processor time, kept outside the checkout
	$(PYTHON) tools/control_plane.py --only helm kubeconform

# images PUSH=registry/path BASE=python:… SPARK_BASE=… TAG=… ENGINE=podman
images:  ## Build the images with docker, podman or buildah; PUSH=registry/path pushes them, BASE= changes the base
	$(PYTHON) tools/build_images.py $(if $(ENGINE),--engine $(ENGINE)) $(if $(PUSH),--push $(PUSH)) $(if $(TAG),--tag $(TAG)) \
	    $(if $(BASE),--base $(BASE)) $(if $(SPARK_BASE),--spark-base $(SPARK_BASE)) $(IMAGES)

test-newest: $(NEWEST_SUITES:%=test-newest-%)  ## Run unit, property, crash and end-to-end tests on the newest supported Python there is
$(NEWEST_SUITES:%=test-newest-%): test-newest-%: setup-newest
	+@$(ON_NEWEST) test-$*

# By itself, so that suites that run side by side find it made.
setup-newest:
	+@$(ON_NEWEST) setup

lint: $(READY)  ## Check with ruff, mypy --strict and, where it is installed, buf
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict $(CHECKED)
ifdef BUF
	$(BIN)/python tools/googleapis.py build/googleapis
	$(BUF) lint --path proto/cursus
	$(BUF) format --diff --exit-code --path proto/cursus
	$(BUF) breaking --exclude-imports --against proto/released.binpb
else
	@echo "buf lint: skipped, buf is neither on PATH nor in tools/node_modules (npm ci --prefix tools installs it)"
endif

fix: $(READY)  ## Repair what the linters can repair by themselves
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
ifdef BUF
	$(BIN)/python tools/googleapis.py build/googleapis
	$(BUF) format --write --path proto/cursus
endif

proto: $(READY)  ## Generate the stubs of Python and, with go and buf, of the Go example from proto/cursus, and the routing vectors
	$(BIN)/python tools/generate_stubs.py proto proto/cursus_proto
	$(BIN)/python tools/routing_vectors.py proto/testdata/routing.json
ifneq ($(and $(BUF),$(shell command -v go)),)
	$(BIN)/python tools/googleapis.py build/googleapis
	$(BUF) generate --template examples/go/buf.gen.yaml
else
	@echo "examples/go: not generated again, that needs go and buf (npm ci --prefix tools)"
endif

# Part of a release, and of nothing else: from then on it is this contract that must not be broken.
release-contract: $(READY) $(NPM_TOOLS)  ## Keep the contract as it is now as the released one, which make lint compares with
	$(BIN)/python tools/googleapis.py build/googleapis
	tools/node_modules/.bin/buf build --path proto/cursus/v1 --exclude-source-info --output proto/released.binpb

# The plugins of buf.gen.yaml that no other file pins. Protoc is the one whose code fits the protobuf of grpc-java.
PROTOC_JAVA := com.google.protobuf:protoc:3.25.9
PROTOC_GRPC_JAVA := io.grpc:protoc-gen-grpc-java:1.83.0
PLATFORM := $(shell uname -s | sed 's/Linux/linux/;s/Darwin/osx/')-$(shell uname -m | sed 's/arm64/aarch_64/;s/aarch64/aarch_64/')
generate: $(READY) $(NPM_TOOLS) build/plugins/.ready  ## Generate client code of Go, Java, TypeScript and Python into build/generated; needs go, Maven and npm
	$(BIN)/python tools/googleapis.py build/googleapis
	tools/node_modules/.bin/buf generate

$(NPM_TOOLS): tools/package-lock.json
	npm ci --prefix tools --no-audit --no-fund --loglevel=error

build/plugins/.ready: Makefile
	for plugin in $(PROTOC_JAVA) $(PROTOC_GRPC_JAVA); do \
	    name=$$(echo $$plugin | cut -d: -f2); \
	    mvn -q -B dependency:copy -Dartifact=$$plugin:exe:$(PLATFORM) -DoutputDirectory=build/plugins -Dmdep.stripVersion=true \
	        && mv build/plugins/$$name-$(PLATFORM).exe build/plugins/$$name && chmod +x build/plugins/$$name || exit 1; \
	done
	@touch $@

docs: $(READY)  ## Generate docs/configuration.md from the settings, and the chart's schema and README from its values
	$(BIN)/python tools/configuration_reference.py docs/configuration.md
	$(BIN)/python tools/chart_reference.py

# Our own distributions are read for what they need and left out: they are installed from the checkout.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	    --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
	    $(shell sed -n 's/^name = "\(.*\)"/--no-emit-package \1/p' $(DISTRIBUTIONS:%=%/pyproject.toml))

# What one image installs: the same versions, without what only others need.
PARTS_broker := proto transport services/common services/broker
PARTS_gateway := proto transport services/common services/gateway
PARTS_cli := proto transport clients/python
PARTS_spark := proto transport clients/python clients/spark
define lock_image
	printf -- '-e ./%s\n' $(PARTS_$(1)) | $(COMPILE) --upgrade --constraint requirements.lock --output-file deploy/locks/$(1).lock -

endef

# LOCK_UPGRADE= keeps the versions that are pinned and adds what is missing.
LOCK_UPGRADE ?= --upgrade
lock: $(READY)  ## Pin all dependencies again, with hashes, for CPython 3.11 and newer on any platform
	printf -- '-e ./%s\n' $(DISTRIBUTIONS) | $(COMPILE) $(LOCK_UPGRADE) --output-file requirements.lock - requirements-dev.in
	printf -- '-e ./%s\n' $(SERVICES) | $(COMPILE) --upgrade --constraint requirements.lock \
	    --output-file requirements-services.lock - requirements-build.in
	$(COMPILE) --upgrade --constraint requirements.lock --output-file deploy/locks/build.lock requirements-build.in
	$(foreach image,broker gateway cli spark,$(call lock_image,$(image)))

bench: $(READY)  ## Measure against a bare gRPC service; writes bench/results
	$(BIN)/python -m bench

clean:  ## Remove the environment and everything generated that git does not keep; leaves ./data alone
	rm -rf .venv .venv-3.* build tools/bin tools/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
