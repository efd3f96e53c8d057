# The whole workflow: `make demo`, `make test`, `make check`. All set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check format bench chaos clean

demo: $(READY)
	@$(BIN)/python examples/demo.py

# In two processes: many tests wait for more than they compute.
test: check
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python bench/allreduce.py
	$(BIN)/python bench/fit.py
	$(BIN)/python bench/overhead.py

# Kills, stops and drains the processes of real trainings on three backends for a few minutes; the seed is printed.
chaos: $(READY)
	$(BIN)/python bench/chaos.py --minutes 6 --events 16

# torch is pinned: its newest wheels bring gigabytes of CUDA that a machine without a GPU does not need. Bytecode is
# made by all cores together, where pip would use one; some packages bring files that no Python 3 can compile.
$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[jax,tensorflow,torch,dev]"
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib src || true
	touch $(READY)

clean:
	rm -rf $(VENV) .venv-tf-keras build dist .mypy_cache .ruff_cache .import_linter_cache
