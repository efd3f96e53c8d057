# The whole workflow: `make demo`, `make test`, `make check`. All set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-full set-up programs test-keras check format bench chaos corpus clean

demo: $(READY)
	@$(BIN)/python examples/demo.py

# In two processes: many tests wait for more than they compute.
test: set-up check
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# With every scene on every backend: about three times as long.
test-full: set-up check
	SHOAL_TEST_ALL=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

set-up:
	@$(MAKE) --no-print-directory -j 2 $(READY) programs

# The browser in which the run's page is tested, and what runs over several hosts need. Where these can't be installed,
# their tests are skipped and say so.
programs:
	@missing=; command -v sshd > /dev/null || test -x /usr/sbin/sshd || missing="openssh-server openssh-client rsync"; \
	command -v chromium > /dev/null || command -v chromium-browser > /dev/null || missing="$$missing chromium"; \
	test -z "$$missing" || { test "$$(id -u)" = 0 && command -v apt-get && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; } > /dev/null 2>&1 || \
		echo "not here, and can't be installed: $$missing. Tests that need them are skipped"

# The hook with another Keras: `make test-keras VERSION=3.12.0`, or VERSION=nightly. It gets an environment of its own,
# which has that Keras before all that .venv has. The tests are those that use every feature of Keras which Shoal hooks.
KERAS_VENV = .venv-keras-$(VERSION)
KERAS_PACKAGE = $(if $(filter nightly,$(VERSION)),--pre --upgrade keras-nightly,keras==$(VERSION))
KERAS_TESTS := $(addprefix tests/hook/test_,$(addsuffix .py,private_names same_bits one_machine own_steps own_data \
	parameter_servers tables shard_state optimizer_parts checkpoints served_checkpoints export hooking late_imports \
	outside_fit refusals))

test-keras: $(READY)
	@test -n "$(VERSION)" || { echo "which Keras? make test-keras VERSION=3.12.0, or VERSION=nightly"; exit 2; }
	test -x $(KERAS_VENV)/bin/python || $(BIN)/python -m venv --without-pip $(KERAS_VENV)
	$(BIN)/python -m pip --python $(KERAS_VENV)/bin/python install --quiet --no-deps $(KERAS_PACKAGE)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$($(KERAS_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth"
	$(KERAS_VENV)/bin/python -c 'import keras; print("Keras", keras.__version__)'
	$(KERAS_VENV)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(or $(TESTS),$(KERAS_TESTS))

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

# Scripts as users write them, plain and with two workers, in a table: `make corpus ONLY=gan` for those with such a name.
corpus: $(READY)
	cd tests && ../$(BIN)/python -m corpus.run $(if $(ONLY),--only $(ONLY))

# torch is pinned: its newest wheels bring gigabytes of CUDA that a machine without a GPU does not need. Bytecode of what is
# imported is made at once, by both cores; that of all files would take a minute longer.
$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	tools/uv-with-pips-settings $(BIN)/python pip install --quiet --python $(BIN)/python torch==2.13.0 \
		--editable ".[jax,tensorflow,torch,dashboard,dev]"
	@for backend in jax tensorflow torch; do KERAS_BACKEND=$$backend $(BIN)/python -c "import keras" > /dev/null 2>&1 & done; wait
	touch $(READY)

clean:
	rm -rf $(VENV) .venv-tf-keras .venv-keras-* build dist .mypy_cache .ruff_cache .import_linter_cache
