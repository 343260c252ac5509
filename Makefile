# Everything a developer or a CI machine does. Needs Python 3.11 or newer; a Java 17 runtime for ZooKeeper and Spark;
# a JDK 17 and Maven only for the tests and benchmarks against the Java metaq 1.4.6.2; gcc for the power-cut tests.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3.11
VENV := .venv
STAMP := $(VENV)/.installed
TYPES := $(VENV)/types

# The environment of `make test`: metaq from the wheel, and the libraries of .venv behind it. The checkout's folder metaq
# would come before the wheel's, so no program there looks for modules in the folder where it starts: tests and bench,
# which no wheel has, are found through links.
INSTALLED := .venv-wheel
BESIDE := $(CURDIR)/$(INSTALLED)/beside
RUN_INSTALLED := PYTHONSAFEPATH=1 PYTHONPATH=$(BESIDE) METAQ_DIST=$(CURDIR)/dist $(INSTALLED)/bin/python

# Integration tests wait for sessions and processes most of the time, so more of them than processors run at once; those
# of one file stay together, in order, with one ZooKeeper; the files begin in the order of tests/integration/conftest.py.
PARALLEL := -n 6 --dist loadfile --no-loadscope-reorder

# Component tests of one file need not stay together: one file takes half of their time.
SPREAD := -n 4 --dist worksteal

# Each worker of pytest and each process that a test starts would compile the tests and their assertions anew: half of the
# processor time of the unit tests.
unexport PYTHONDONTWRITEBYTECODE

MAPPED := protocol coordination broker client spark_connector
FORMATTED := metaq $(MAPPED) bench tests

.PHONY: help venv wheel check test unit component integration demo bench proof mutants cuts failovers standalone histories clean types python java maven

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## create .venv with metaq installed in place, and every tool the other targets need

$(STAMP): pyproject.toml | python
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --editable '.[spark,demo,bench,dev]'
	touch $@

wheel: $(STAMP) ## build the sdist, the wheel from it into dist, and install the wheel into .venv-wheel
	rm -rf dist $(INSTALLED)
	$(VENV)/bin/python -m build --outdir dist . > $(VENV)/build.log || { cat $(VENV)/build.log; exit 1; }
	$(VENV)/bin/python -m venv --without-pip $(INSTALLED)
	$(VENV)/bin/python -m pip --python $(INSTALLED) install --quiet --no-deps --no-index dist/*.whl
	$(VENV)/bin/python -c 'import sys; print(*(path for path in sys.path if path.endswith("-packages")), sep="\n")' \
	  > $$(echo $(INSTALLED)/lib/python*/site-packages)/libraries.pth
	mkdir $(BESIDE) && ln -s $(CURDIR)/tests $(CURDIR)/bench $(BESIDE)

# mypy does not follow the hooks of an editable install, so it gets the installed layout as a tree of links, which
# pyproject.toml puts on mypy_path; its messages are shown with the real paths.
types: $(STAMP)
	@mkdir -p $(TYPES)/metaq
	@find $(TYPES)/metaq -type l -delete
	@ln -s $(addprefix $(CURDIR)/,$(wildcard metaq/*) $(MAPPED)) $(TYPES)/metaq/

check: types ## formatting, lint and types
	$(VENV)/bin/ruff format --check $(FORMATTED)
	$(VENV)/bin/ruff check $(FORMATTED)
	$(VENV)/bin/mypy --explicit-package-bases -p metaq -p bench -p tests | sed -E 's#^$(TYPES)/(metaq/($(subst $() ,|,$(MAPPED)))/)?#\2/#; s#^/##'

test: wheel java ## unit and component tests, then integration tests on real processes and the installed wheel
	$(VENV)/bin/python -m pytest -n auto tests/unit
	$(VENV)/bin/python -m pytest $(SPREAD) tests/component
	$(VENV)/bin/python -m tests.guards check --number 8 --seed $$(date +%Y%j)
	$(RUN_INSTALLED) -m pytest $(PARALLEL) --override-ini=pythonpath= tests/integration

unit: $(STAMP) ## unit tests only, on the checkout: no process, no port, seconds
	$(VENV)/bin/python -m pytest -n auto tests/unit

component: $(STAMP) ## component tests only, on the checkout: real sockets and threads against doubles, three minutes
	$(VENV)/bin/python -m pytest $(SPREAD) tests/component

integration: $(STAMP) java ## integration tests only, on the checkout
	$(VENV)/bin/python -m pytest $(PARALLEL) tests/integration

demo: | python ## the main job on real input: cluster, producers, rebalancing consumers, Spark
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@test -e $(STAMP) || { echo "metaq and the flights are installed into $(VENV):"; $(VENV)/bin/python -m pip install --editable '.[demo]'; }
	$(VENV)/bin/metaq demo --install-spark

bench: $(STAMP) java maven ## metaq beside Java metaq 1.4.6.2, Kafka, RocketMQ and Spark's Kafka source; writes bench/*.md
	code=0; for each in bench bench.spark_memory bench.spark_peer; do $(VENV)/bin/python -m $$each || code=1; done; exit $$code

KILLS := $(VENV)/bin/python -m tests.kills
SEED ?= 1
MINUTES ?= 60
proof: $(STAMP) java maven ## brokers, members and producers killed, power cut, for so long; each kind once at least: make proof MINUTES=60 SEED=1
	$(KILLS) --minutes $(MINUTES) --seed $(SEED)

CUTS ?= 3000
FLIPS ?= 0
JOBS ?= 2
FAILOVER_RUNS ?= 30
FAILOVERS ?= 10
JAVA_FAILOVERS ?= 20
ROLLING_RESTARTS ?= 5
FAILOVER_FILES ?= .failovers
MUTANTS ?= 150
mutants: $(STAMP) ## does the test still find that its guard is gone? rows of tests/guards/guards.tsv: make mutants MUTANTS=150 SEED=1
	$(VENV)/bin/python -m tests.guards --jobs $(JOBS) check --number $(MUTANTS) --seed $(SEED)

cuts: $(STAMP) ## thousands of power cuts and every byte damaged: make cuts CUTS=3000 FLIPS=0 SEED=1 (FLIPS=0: every byte)
	$(KILLS) power --cuts $(CUTS) --flips $(FLIPS) --seed $(SEED) --jobs $(JOBS)

failovers: $(STAMP) java maven ## broker sets whose leaders fail or are restarted under load: make failovers FAILOVER_RUNS=30 FAILOVERS=10 SEED=1
	code=0; $(KILLS) failovers --seed $(SEED) --runs $(FAILOVER_RUNS) --failovers $(FAILOVERS) --directory $(FAILOVER_FILES) || code=1; \
	$(KILLS) restarts --seed $(SEED) --restarts $(ROLLING_RESTARTS) --directory $(FAILOVER_FILES) || code=1; \
	$(KILLS) java --failovers $(JAVA_FAILOVERS) --directory $(FAILOVER_FILES) || code=1; exit $$code

standalone: $(STAMP) java ## integration tests on the standalone ZooKeeper; `make integration` has them on Apache's
	METAQ_TEST_ZOOKEEPER=standalone $(VENV)/bin/python -m pytest $(PARALLEL) tests/integration

RUNS ?= 20
RUN_SECONDS ?= 60
histories: $(STAMP) java ## consumer groups under faults, and what they were handed: make histories RUNS=20 RUN_SECONDS=60 SEED=1
	$(KILLS) groups --runs $(RUNS) --seed $(SEED) --seconds $(RUN_SECONDS)

clean: ## remove everything made by the targets above
	rm -rf $(VENV) $(INSTALLED) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis tests/java/target bench/java/*/target bench/java/target spark-warehouse
	find $(FORMATTED) -type d -name __pycache__ -prune -exec rm -rf {} +

python:
	@$(PYTHON) -c 'import ensurepip, venv, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "metaq needs Python 3.11 with venv, and '$(PYTHON)' is not that: apt-get install python3.11 python3.11-venv," \
	       "or make PYTHON=/path/to/python" >&2; exit 1; }

java:
	@java -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])' || { \
	  echo "metaq needs Java 17 or newer for ZooKeeper and Spark, and 'java' is not that:" \
	       "apt-get install openjdk-17-jdk-headless" >&2; exit 1; }
ifdef CI
test integration: maven
endif

maven:
	@command -v javac >/dev/null || { \
	  echo "the Java metaq peer needs a JDK 17, and 'javac' is missing: apt-get install openjdk-17-jdk-headless" >&2; exit 1; }
	@command -v mvn >/dev/null || { \
	  echo "the Java metaq peer needs Maven, and 'mvn' is missing: apt-get install maven" >&2; exit 1; }
