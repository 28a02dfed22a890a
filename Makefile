# Everything runs in $(VENV), made on first use from pyproject.toml with $(PYTHON) (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
export PYTHONPATH := $(CURDIR)

.PHONY: help install demo test lint conformance zoo zoo-variants zoo-more aot scorecard rules fuzz outside bench

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e '.[examples,test]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install -q -e '.[dev]'
	touch $@

install: $(VENV)/.installed  ## install into $(VENV)

demo: $(VENV)/.installed  ## train the example on 8 virtual CPU devices under three schemes
	$(BIN)/python examples/train_mlp.py

EVERY ?= 1
test: $(VENV)/.installed  ## the tests; EVERY=8: an eighth of the cases and examples of each
	$(BIN)/python -m pytest -n 2 --every $(EVERY)

lint: $(VENV)/.installed-dev  ## ruff and pyright
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright --pythonpath $(BIN)/python

conformance: $(VENV)/.installed  ## JAX's own 5,594 test harnesses
	$(BIN)/python benchmarks/conformance.py spmd

zoo: $(VENV)/.installed  ## bytes sent on real-shaped programs, beside Shardy and GSPMD
	$(BIN)/python benchmarks/run_zoo.py

scorecard: $(VENV)/.installed  ## known bugs of partitioners, ours beside Shardy and GSPMD
	$(BIN)/python -m benchmarks.scorecard

zoo-variants: $(VENV)/.installed  ## the same on 819 generated variants of these programs
	$(BIN)/python -m benchmarks.run_variants

zoo-more: $(VENV)/.installed  ## the same on more programs
	$(BIN)/python -m benchmarks.run_more

AOT_VENV ?= .venv-aot
aot: pyproject.toml  ## the same compiled for TPU and H100, without the chips; in a venv of its own, $(AOT_VENV)
	test -d $(AOT_VENV) || $(PYTHON) -m venv $(AOT_VENV)
	$(AOT_VENV)/bin/pip install -q -e '.[tpu-aot,gpu-aot]'
	$(AOT_VENV)/bin/python -m benchmarks.aot

rules: $(VENV)/.installed  ## every strategy of every sharding rule, executed
	$(BIN)/python -m spmd_compiler.tools.check_rules

SECONDS ?= 600
fuzz: $(VENV)/.installed  ## random programs against the interpreter, for SECONDS
	$(BIN)/python -m spmd_compiler.tools.fuzz --seconds $(SECONDS)

outside: $(VENV)/.installed  ## programs of public JAX libraries, against jax.jit
	$(BIN)/pip install -q -e '.[outside]'
	$(BIN)/python -m benchmarks.run_outside

bench: $(VENV)/.installed  ## speed of the passes and of dispatch
	$(BIN)/python -m benchmarks.passes && $(BIN)/python -m benchmarks.dispatch
