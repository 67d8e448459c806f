# Weir's everyday commands. `make` alone lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
STAMP := $(VENV)/.installed
LOCK_VENV := .venv-lock
# uv with its hashes, as the lock has it; uv installs the others in half of pip's time. It leaves
# lock files where temporary files are.
LOCKED_UV := sed -n '/^uv==/,/[^\\]$$/p' requirements.lock
AUDIT_VENV := .venv-audit
PIP_AUDIT_VERSION := 2.10.1
# Further pytest options, for example: make test PYTEST_ARGS="-m 'not spark'"
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help check setup lint format test test-fast test-stalls test-pythons fuzz soak up demo bench troubles bench-compare lock audit clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

check: ## Check that this machine has the Python and the Java that Weir needs
	@command -v $(PYTHON) >/dev/null || { \
	  echo "Weir needs Python 3.11 or newer, and '$(PYTHON)' was not found."; \
	  echo "  Debian/Ubuntu: sudo apt-get install python3 python3-venv"; \
	  echo "  another name:  make setup PYTHON=python3.12"; exit 1; } >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Weir needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1)."; \
	  echo "  Debian/Ubuntu: sudo apt-get install python3.11 python3.11-venv"; \
	  echo "  then:          make setup PYTHON=python3.11"; exit 1; } >&2
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$$($(PYTHON) -V) cannot create virtual environments: its venv module is missing."; \
	  echo "  Debian/Ubuntu: sudo apt-get install python3-venv"; exit 1; } >&2
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	command -v "$$java" >/dev/null || { \
	  echo "Spark needs Java 17 or newer, and '$$java' was not found."; \
	  echo "  Debian/Ubuntu: sudo apt-get install openjdk-17-jre-headless"; exit 1; } >&2; \
	version=$$("$$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1); \
	[ "$${version:-0}" -ge 17 ] || { \
	  echo "Spark needs Java 17 or newer; '$$java' is version $${version:-unknown}."; \
	  echo "  Debian/Ubuntu: sudo apt-get install openjdk-17-jre-headless"; \
	  echo "  then point JAVA_HOME at it"; exit 1; } >&2

setup: $(STAMP) ## Create .venv with the packages of requirements.lock (once, about a minute)

# The lock pins every installed package, with hashes. Weir itself is installed without its
# dependencies, so that no package outside the lock can slip in.
$(STAMP): requirements.lock package-lock.json pyproject.toml | check
	@echo "Setting up Weir in $(VENV), once: five steps, 1 to 2 minutes."
	@echo "step 1 of 5: creating the virtual environment, about 5 s; next: packages"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "step 2 of 5: installing packages, half a minute to 5 minutes without output; next: Weir"
	@{ $(LOCKED_UV) | $(BIN)/python $(PIP_INSTALL) --require-hashes -r /dev/stdin && \
	  TMPDIR=$(abspath $(VENV)) \
	  $(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python --compile-bytecode \
	    --require-hashes -r requirements.lock; } || { \
	  echo "uv could not install them, see above. Next try: pip, which reads pip.conf"; \
	  $(BIN)/python $(PIP_INSTALL) --use-pep517 --require-hashes -r requirements.lock; }
	@echo "step 3 of 5: installing Weir itself, about 5 s; next: plotly.js"
	@$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@echo "step 4 of 5: fetching the small bundle of plotly.js with npm, about 5 s; next: the classes of Spark"
	@command -v npm >/dev/null && npm ci --silent || \
	  echo "Without npm pages load the whole plotly.js, once per browser: 1.5 MB instead of 0.5 MB."
	@echo "step 5 of 5: archiving the classes of Spark, about 15 s: it starts a quarter faster"
	@$(BIN)/python -m weir.spark.class_archive || echo "Without it, too, everything works."
	@touch $@
	@echo "Setup is done."

lint: setup ## Check format, lint, types, import direction, voice and size
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python .ci/check_voice.py
	$(BIN)/python .ci/check_size.py

format: setup ## Format the code
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

test: setup ## Lint and the whole test suite, side by side
	$(BIN)/python -m tests $(PYTEST_ARGS)

test-fast: setup ## Unit and database tests, 200 seeded jobs: about three minutes
	$(BIN)/python -m tests --fast

test-stalls: setup ## Tests of the database, whose clock stands still now and then: about four minutes
	$(BIN)/python -m pytest -n 2 -p tests.stalls tests/database

PYTHONS ?= 3.11 3.12 3.13
test-pythons: check ## Run the unit tests on each of Python 3.11, 3.12 and 3.13 that is installed here
	@$(PYTHON) .ci/unit_tests.py $(PYTHONS) -- $(PYTEST_ARGS)

SECONDS ?= 60
fuzz: setup ## Draw random programs for SECONDS=60, compare each with its oracle
	$(BIN)/python -m tests.programs --seconds $(SECONDS)

MINUTES ?= 20
# Further options, for example: make soak SOAK_ARGS="--resume build/soak/20261124-022500"
SOAK_ARGS ?=
soak: setup ## Random programs under random faults of every process, for MINUTES=20
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(SOAK_ARGS)

up: setup ## Start the whole control plane here, with a demonstration job; Ctrl-C ends it
	@$(BIN)/python manage.py weir_up --demo

demo: setup ## Stream real flights on local Spark, kill a worker, check the result (2 minutes)
	@$(BIN)/python -m weir.examples.demo

bench: setup ## Print the benchmark table
	$(BIN)/python -m tests.benchmarks

troubles: setup ## Inject troubles into a job, quiet and with busy loops beside it: what its verdicts say (15 minutes)
	$(BIN)/python -m tests.troubles

bench-compare: setup ## Show the newest benchmarks beside the last release's
	@$(BIN)/python -m tests.benchmarks --compare

# One universal file, for every platform and Python version that pyproject.toml allows.
lock: ## Resolve the newest allowed versions into requirements.lock
	$(PYTHON) -m venv --clear $(LOCK_VENV)
	$(LOCKED_UV) | $(LOCK_VENV)/bin/python $(PIP_INSTALL) --require-hashes -r /dev/stdin
	TMPDIR=$(abspath $(LOCK_VENV)) $(LOCK_VENV)/bin/uv pip compile pyproject.toml --quiet --system-certs --all-extras --universal --python-version 3.11 \
	  --upgrade --generate-hashes \
	  --custom-compile-command "make lock" --output-file requirements.lock
	rm -rf $(LOCK_VENV)

# In an environment of its own: what audits the lock is no part of it.
audit: ## Compare the locked packages with the published advisories (needs the internet)
	@test -x $(AUDIT_VENV)/bin/pip-audit || { $(PYTHON) -m venv --clear $(AUDIT_VENV) && \
	  $(AUDIT_VENV)/bin/python $(PIP_INSTALL) pip-audit==$(PIP_AUDIT_VERSION); }
	@$(PYTHON) .ci/audit.py $(AUDIT_VENV)/bin/pip-audit npm

clean: ## Remove the environment, the caches and all build output
	rm -rf $(VENV) $(VENV)-* node_modules build dist *.egg-info .hypothesis .import_linter_cache \
	  .mypy_cache .pytest_cache .ruff_cache spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
