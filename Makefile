# make demo    the main job: tune the bundled OCR model on the embedded Triton, into autotune-out/
# make test    every test that this machine can run
# make check   format, lint, types, layers, tests
# make lock    renew requirements.lock
# make bench   the figures of docs/benchmarks.md (minutes; wants an idle machine)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Where nothing may be cached, every process compiles all of autotune anew: tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: env demo test check style types layers lock bench clean

env: $(VENV)/.ready

# The lock file carries hashes: what is installed is what was tested.
$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "autotune needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "This Python has no venv module: install it (Debian, Ubuntu: python3-venv)"; exit 2; }
	@echo "building $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
	@echo "done: now \`make demo\`, or $(BIN)/autotune --help"

demo: env
	@$(BIN)/autotune demo

# Three at a time, on two cores: a study waits for its server for most of its time. Of a run that was
# not broken off, the few that failed are asked once more, alone.
PYTEST := $(BIN)/python -m pytest -n 3 --no-loadscope-reorder --max-worker-restart 3 \
  || { [ $$? = 1 ] && $(BIN)/python -m tests.alone; }

test: env
	@$(PYTEST)

check: env
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target style types layers
	$(PYTEST)

style: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: env
	$(BIN)/mypy

layers: env
	$(BIN)/lint-imports

lock: env
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header --extra dev pyproject.toml -o requirements.lock

bench: env
	$(BIN)/python -m tests.benchmarks

clean:
	rm -rf $(VENV)
