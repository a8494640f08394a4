# Everything a newcomer needs; each target sets up what it uses. `make` alone lists them.
SHELL  := /bin/bash
PYTHON ?=
JOBS   ?=
GROUP  ?=
ARGS   ?=
PY     := .venv/bin/python
BIN    := .venv/bin
export PYTHON JOBS

.DEFAULT_GOAL := help
.PHONY: help demo test check coverage bench spark-bench services faults docs pins clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 16

demo:  ## a shop behind the dashboard, until Ctrl-C; ARGS=--once: all examples one after the other; ARGS="--port N"; ARGS=--spark: on Spark too
	@tools/setup.sh .venv demo
	@tools/demo.sh .venv $(ARGS)

test:  ## checks and all test groups (GROUP="unit contract" for some, JOBS=0 for one process)
	@tools/setup.sh .venv dev
	@tools/setup.sh .venv docs
	@tools/install_servers.sh postgres pgbouncer mysql redis zookeeper chromium
	@tools/install_kafka.sh
	@tools/install_kafka.sh spark-kafka
	@tools/install_kafka.sh hdfs
	@tools/install_pyspark.sh .venv
	@$(PY) tools/test.py $(GROUP)

check:  ## lint, format, types (which need pyspark), layers, spelling, uncovered checklist lines
	@tools/setup.sh .venv dev
	@tools/install_pyspark.sh .venv
	@code=0; for step in "ruff check --quiet ." "ruff format --quiet --check ." \
	    "mypy src $(wildcard tests/typing)" "lint-imports --no-logo" \
	    "codespell *.md docs src tools examples benchmarks deploy" "python -m tools.english" "python tools/seed_coverage.py --report"; do \
	    echo "--- $$step"; $(BIN)/$$step || code=1; done; exit $$code

coverage:  ## measure which lines the tests run, and show those that none does (GROUP="unit contract" for some groups)
	@tools/setup.sh .venv dev
	@rm -rf .coverage && mkdir .coverage
	@$(BIN)/coverage run tools/test.py $(or $(GROUP),unit contract stores seeds surface service); code=$$?; \
	    $(BIN)/coverage combine --quiet && $(BIN)/coverage report && \
	    $(BIN)/coverage html --quiet --directory .coverage/html && echo ".coverage/html/index.html"; exit $$code

bench:  ## compare with peers and the bare drivers, in an environment of its own (PART="queues servers postgres zookeeper batches logs kafka streams state service dashboard telemetry intake")
	@tools/setup.sh .venv-bench bench
	@tools/setup.sh .venv-bench-arq bench-arq
	@tools/install_servers.sh postgres pgbouncer mysql redis zookeeper
	@tools/install_kafka.sh
	@for part in $(or $(PART),queues servers postgres zookeeper batches logs kafka streams state service dashboard telemetry intake); do .venv-bench/bin/python -m benchmarks.$$part --record $(ARGS); done
	@tools/setup.sh .venv dev
	@$(PY) -m benchmarks.imports --record
	@.venv-bench/bin/python -m benchmarks.figures

spark-bench:  ## the benchmarks on Spark: source and sink, runner, history pipeline
	@tools/setup.sh .venv dev
	@tools/install_pyspark.sh .venv
	@for part in spark spark_batches spark_runner pipeline; do $(PY) -m benchmarks.$$part --record $(ARGS); done
	@$(PY) -m benchmarks.figures

services:  ## start PostgreSQL, MariaDB, Redis and ZooKeeper for a person, and print their URLs
	@tools/setup.sh .venv dev
	@tools/install_servers.sh postgres pgbouncer mysql redis zookeeper
	@$(PY) -m tools.servers $(ARGS)

faults:  ## the long fault campaign: servers and processes killed, frozen, cut off (FAULTS_SOAK_MINUTES=20)
	@tools/setup.sh .venv dev
	@tools/install_servers.sh postgres pgbouncer mysql redis zookeeper
	@tools/install_kafka.sh
	@tools/install_kafka.sh spark-kafka
	@tools/install_kafka.sh hdfs
	@tools/install_pyspark.sh .venv
	@$(PY) -m pytest -m faults tests/faults tests/crash tests/spark tests/packaging tests/contract/stream tests/contract/queue -rA $(ARGS)

docs:  ## build the documentation into site/
	@tools/setup.sh .venv docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir site
	@echo "site/index.html"

pins:  ## regenerate requirements/*.txt (ARGS=--upgrade for the newest releases)
	@requirements/compile.sh $(ARGS)

clean:  ## remove environments, caches and built files
	rm -rf .venv .venv-* site dist build .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
