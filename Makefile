# Everything here is safe to repeat. `make demo` and `make test` do all the set-up they need.

PYTHON ?= python3
ONCE := $(shell nproc)
TWICE := $(shell echo $$((2 * $(ONCE))))
WORKERS ?= $(shell echo $$((3 * $(ONCE))))# a test waits for processes two thirds of its time
HOST_WORKERS ?= $(WORKERS)
CARRIER_WORKERS ?= $(WORKERS)
VENV := .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
READY := $(VENV)/.ready
COLLECTED := $(VENV)/.collected
AZURITE := .lab-cache/azurite/node_modules/.bin/azurite-blob
ARM64 := .lab-cache/arm64
EMULATED = $(if $(WHOLE),$(ARM64))

TOOLS ?= build/release
HOST_PYTHON ?= pypy3
CARRIERS ?= openssh command

# SUITES=whole, before a release: every test, and all of those that tell something of another Python over there or of
# another carrier; else what tells most of each.
SUITES ?= $(addprefix tests/,cli/test_run.py remote/test_agents.py transport/rpc/test_streams_hosts.py)
ALL_SUITES := $(addprefix tests/,cli/test_run.py cli/test_run_messages.py system/test_breaks.py remote jobs/test_detach.py \
	staging/test_hosts.py staging/test_detached.py staging/test_breaks.py transport/rpc/test_streams_hosts.py \
	files/wire/test_link.py files/cli/test_remote_job.py)
BULK := $(addprefix --deselect tests/cli/test_run.py::,test_every_exit_status test_256_megabytes_both_ways test_300_at_once_over_one_connection)
WHOLE := $(filter whole,$(SUITES))
CHOSEN := $(if $(WHOLE),$(ALL_SUITES),$(BULK) $(SUITES))

# What tells most of another Python under the origin: what is loaded, the parts that take the place of the library's, a lab.
NEWER := $(addprefix tests/,test_laws.py transport/test_backports.py transport/test_lean.py transport/test_quickjson.py \
	transport/test_signals.py transport/test_starts.py transport/test_status.py transport/test_stop.py \
	transport/client/test_batch_core.py deploy/test_layers.py tape/test_masks.py agent/test_capture.py \
	agent/test_process.py cli/test_start.py cli/test_run.py)

# The lanes of the suite (CONTRIBUTING.md): the tests of every day, then the others; of both those of real time by themselves.
DAILY := not law and not long and not backends and not whole
OTHERS := not law and $(if $(WHOLE),(long or backends or whole),(long or backends) and not whole)
LAWS := $(addprefix tests/,test_laws.py docs deploy/test_host_python.py remote/test_host_words.py remote/test_lies.py \
	transport/carrier/test_private.py)

CLOCKED = $(shell grep -rl --include='test_*.py' 'mark[.]clock' tests)# to collect all others for a few takes longer than these
HALVES = 'tests/[a-f]*/' 'tests/[g-z]*/'

# FAILED=FILE: tests that fail are noted in FILE, for `suite.py judge`, and the run goes on.
FAILED ?=
PYTEST = $(if $(FAILED),$(BIN)/python scripts/suite.py run $(FAILED)) $(BIN)/python -m pytest -r fEs # skips with their reasons
NOTED := build/failed.jsonl

SECONDS ?= 600

.PHONY: setup demo test test-more test-hosts test-carriers test-python test-newer mutants soak lint types check release-check bench reference picture docs release clean

setup: $(READY) $(COLLECTED)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "quine needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# pytest rewrites every test, and keeps the result: here once for all workers, which would each do it in a new checkout.
$(COLLECTED): | $(READY)
	-@for half in $(HALVES); do $(BIN)/python -m pytest --collect-only -qq $$half >/dev/null & done; wait
	@touch $@

demo: $(READY)
	@$(BIN)/python examples/demo.py

# A lane that is red does not keep the next one from being run. Files of these tests are in memory, those of all others on disk.
test: export QUINE_TEST_MEMORY = 1
test: setup
	$(PYTEST) -n $(WORKERS) -m "$(DAILY) and not clock"; red=$$?; $(PYTEST) -n0 -m "$(DAILY) and clock" $(CLOCKED) && exit $$red

test-more: setup $(AZURITE) $(EMULATED)
	export QUINE_TEST_AZURITE="$$(ls $(CURDIR)/$(AZURITE) 2>/dev/null)"; \
	$(PYTEST) -n $(WORKERS) -m "$(OTHERS) and not clock"; red=$$?; $(PYTEST) -n0 -m "$(OTHERS) and clock" $(CLOCKED) && exit $$red

# Suites that tell of a host, with hosts whose Python is another one than the origin's.
test-hosts: setup
	@if command -v $(HOST_PYTHON) >/dev/null; then \
	    QUINE_TEST_HOST_PYTHON=$(HOST_PYTHON) $(PYTEST) -n $(HOST_WORKERS) -m "not backends and not clock" $(CHOSEN); \
	else echo "no $(HOST_PYTHON) here: its suites are not run"; fi

# The same ones, with hosts that are reached by the ssh program and by a command.
test-carriers: setup
	@red=0; for carrier in $(CARRIERS); do \
	    QUINE_TEST_CARRIER=$$carrier $(PYTEST) -n $(CARRIER_WORKERS) -m "not backends and not clock" $(CHOSEN) \
	        $(if $(WHOLE),tests/system/test_breaks_pauses.py) || red=$$?; \
	done; exit $$red

# With PYTHON=…: the suites that tell most of that Python.
test-python: setup
	$(PYTEST) -n $(WORKERS) -m "not long and not backends and not whole and not clock" $(BULK) $(NEWER)

# The same ones with the newest Python that is newer than $(PYTHON).
test-newer: setup
	@python="$$($(BIN)/python -m tests.lab.pythons)"; \
	if [ -n "$$python" ]; then $(MAKE) --no-print-directory PYTHON="$$python" test-python; \
	else echo "no newer Python here: its suites are not run"; fi

# A server of Azure's protocol. Where there is no npm its tests are skipped, and say so.
$(AZURITE):
	-if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --prefix .lab-cache/azurite azurite; fi

# A Python for arm64, from Debian. Where it cannot be had its tests are skipped, and say so.
$(ARM64): | setup
	-timeout 240 $(BIN)/python -m tests.lab.arm64

mutants: setup
	$(BIN)/python scripts/mutants.py $(ARGS)

soak: setup
	$(BIN)/python -m tests.sim $(if $(BATCH),--batch) --soak $(SECONDS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/prose.py
	$(BIN)/python -m pytest -n0 -m law $(LAWS)

types: $(READY)
	$(BIN)/mypy

# A test that is red in a lane is run once more behind the last lane, alone; any other end of a lane ends all
# (scripts/suite.py). Steps that take one processor run beside each other, and so do the suites of hosts and carriers:
# each worker has a lab to bring up.
check: $(READY)
	@mkdir -p $(dir $(NOTED)) && rm -f $(NOTED)*
	$(MAKE) --no-print-directory --jobs --output-sync lint types $(COLLECTED) $(AZURITE) $(EMULATED)
	$(MAKE) --no-print-directory FAILED=$(NOTED) test
	$(MAKE) --no-print-directory FAILED=$(NOTED) test-more
	$(MAKE) --no-print-directory FAILED=$(NOTED) test-newer
	$(MAKE) --no-print-directory FAILED=$(NOTED) --jobs --output-sync HOST_WORKERS=$(TWICE) CARRIER_WORKERS=$(ONCE) test-hosts test-carriers
	$(BIN)/python scripts/suite.py judge $(NOTED) tests/flaky.md

release-check:
	$(MAKE) --no-print-directory check SUITES=whole

bench: setup
	$(BIN)/python -m bench $(ARGS)

# The command line's reference and the man pages, from the tables of the program.
reference: setup
	$(BIN)/python scripts/reference.py

# The terminal picture of README.md, recorded from a real run.
picture: setup
	$(BIN)/python scripts/picture.py

# The site, in build/site. Its tools are no part of `dev`, and are installed here.
docs: reference .venv/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.venv/.ready-docs: pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

# Wheel, one file, man pages, SBOM and checksums of the last commit, in dist/; the same bytes each time.
release: $(TOOLS)/.ready
	@$(TOOLS)/bin/python scripts/release.py

$(TOOLS)/.ready: scripts/release.txt
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

clean:
	rm -rf .venv .venv-* .quine-demo .lab-cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
