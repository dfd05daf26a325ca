# Each target does all of its own set-up; it needs python3 (3.11 or later) and make, nothing else.
#   make demo    trains a small model on generated DNA, saves it, loads it back and checks it
#   make test    runs the tests
#   make lint    checks style, format and types
#   make bench   times us against others, and counts instructions (minutes)
# Another interpreter: make test PYTHON=python3.12. Another place for the environment: VENV=/path.

PYTHON ?= python3
VENV ?= .venv
DEMO_OUTPUT ?= runs/demo
BENCH_OUTPUT ?= runs/bench
PYTEST_ARGS ?=
# Tests run in so many processes, file by file; 0: in this one.
WORKERS ?= auto

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint clean

demo: $(STAMP)
	$(BIN)/hf-ssm demo --output "$(DEMO_OUTPUT)" --overwrite-output

test: $(STAMP)
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

# transformers' own tests of models on ours, fetched once: make conformance CONFORMANCE_ARGS="--family S4"
.PHONY: conformance
conformance: $(STAMP)
	$(BIN)/python tests/conformance/run.py $(CONFORMANCE_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Us and each peer in one process; one section: make bench BENCH_ARGS="scan --repetitions 3"
.PHONY: bench
bench: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[bench]"
	$(BIN)/python benchmarks/speed.py --output "$(BENCH_OUTPUT)/speed.json" $(BENCH_ARGS)
	$(BIN)/python benchmarks/instructions.py --output "$(BENCH_OUTPUT)/instructions.json"

clean:
	rm -rf "$(VENV)" build dist .mypy_cache .pytest_cache .ruff_cache

# The stamp is written last, so an interrupted install is done again the next time.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "The pinned set needs Python 3.11 or later: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv "$(VENV)"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test,lint,plots]"
	@touch "$(STAMP)"
