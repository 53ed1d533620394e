# `make report` and `make test` are all that a newcomer needs; both set up what they need.
PYTHON ?= python3
BIN := .venv/bin
STUDY := workflow/studies/embedded.yaml
TARGET := workflow/targets/h200.yaml
BUNDLE := .bundle

.PHONY: report test test-cuda lint lock schemas bundle unbundle clean

report: .venv/.ready
	$(BIN)/snakemake --cores all --configfile $(STUDY)
	@echo "the report: $(CURDIR)/results/embedded/report/index.html"

test: .venv/.ready-dev lint
	$(BIN)/pytest

# The part of `make test` that takes 1.26 GB of Debian's CUDA packages, once; no GPU.
test-cuda: .venv/.ready-dev
	$(BIN)/pytest tests/cuda

lint: .venv/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

lock: .venv/.ready-dev
	$(BIN)/python scripts/lock.py

schemas: .venv/.ready
	$(BIN)/python scripts/export_schemas.py

# For a machine without network: docs/airgapped.md.
bundle: .venv/.ready
	$(BIN)/python scripts/bundle.py --target $(TARGET) --folder $(BUNDLE)

unbundle:
	$(PYTHON) scripts/unbundle.py --folder $(BUNDLE)

clean:
	rm -rf .venv .snakemake results

.venv/.ready: envs/workflow.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: $(PYTHON) is older than Python 3.11; do: make PYTHON=/path/to/python3.11 ..."; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "error: $(PYTHON) can't make virtual environments; do: apt-get install python3-venv"; exit 2; }
	@command -v c++ >/dev/null || command -v g++ >/dev/null \
	  || { echo "error: no C++ compiler, and llama.cpp is built from source; do: apt-get install g++"; exit 2; }
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r envs/workflow.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

.venv/.ready-dev: .venv/.ready envs/dev.lock
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || { echo "error: the report is tested in a real browser; do: apt-get install chromium"; exit 2; }
	@command -v podman >/dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq podman runc >/dev/null; } \
	  || echo "no podman: the tests that run containers will be skipped; do: apt-get install podman"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r envs/dev.lock
	touch $@
