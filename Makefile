# Two commands do all the set-up on a fresh machine with Python 3.10 or newer:
#   make demo   installs into .venv and runs the main job on a simulated node and real CPU ranks
#   make test   installs the same way and runs every test
# while you work
#   make test-fast   facts, checks and reports, without the tests that start processes: under a minute
#   make site        the documentation as pages, into build/site
#   make accept      writes the goldens and generated files anew and shows which changed; then read the difference
# and one more
#   make test-frameworks   the tests that start DeepSpeed and TensorFlow, 3 GB in an environment of their own
# what is handed out (docs/install.md), for this processor or another: make packages PROCESSOR=aarch64
#   make dist          the wheel and the sdist
#   make packages      these, the single file, the Debian package and the manual pages, all in dist/
#   make test-packages installs, runs and removes what was built; the Debian package as root only
# On a GPU node, once (docs/acceptance.md):
#   make gpu-acceptance   compares gpudoctor with nvidia-smi, plain loops and nccl-tests; BACKEND=gloo: without a GPU

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FRAMEWORKS := .venv-frameworks
BACKEND ?= auto

.PHONY: demo test test-fast accept test-frameworks dist man single-file deb packages test-packages gpu-acceptance lint \
  site coverage fuzz soak clean

demo: $(VENV)/.installed
	$(BIN)/gpudoctor check --node hgx-h100-8 --backend gloo --ranks 2

# Tests that start ranks or engines: three at a time, since each waits now and then, those that wait longest first. The
# rest waits more than it computes: two for each core
RANKS := $(patsubst %,tests/cluster/test_%.py,slurm whole_job ray_job) tests/acceptance tests/plan/test_verification.py \
  tests/probes tests/cli
TWO_A_CORE = $(shell echo $$(( 2 * $$(nproc) )))
# of a worker that was ended the file would be begun again, and end the next one: the others finish theirs instead
BY_FILE := --dist=loadfile --max-worker-restart=0

# once, instead of in each worker and each of thousands of processes (tests/conftest.py); what fails here is told below
COMPILED = { $(BIN)/python -m compileall -q gpudoctor; \
  ls -d tests/*/ | xargs -n 12 -P 2 $(BIN)/python -m pytest --collect-only -qq -p no:cacheprovider; } >/dev/null 2>&1 || true

test: $(VENV)/.installed-dev
	@$(COMPILED)
	$(BIN)/python -m pytest -n $(TWO_A_CORE) --maxprocesses=8 $(BY_FILE) $(RANKS:%=--ignore=%)
	$(BIN)/python -m pytest -n 3 $(BY_FILE) --no-loadscope-reorder $(RANKS)

# by what a test imports or calls, so that a new one that starts a process is left out by itself
STARTS := subprocess|Popen|multiprocessing|Sampler\(|DriverWatch\(|collect_live\(|live_nodes
test-fast: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 $(BY_FILE) $$(grep -rLE --include='test_*.py' '$(STARTS)' tests/facts tests/checks tests/report)

accept: $(VENV)/.installed-dev
	-GPUDOCTOR_ACCEPT=1 $(BIN)/python -m pytest $$(grep -rlE --include='test_*.py' 'golden_files import' tests)
	git --no-pager diff --stat

# no library but what these tests start, and not beside the others: they take both cores for a minute or two.
# Compiled is what they import of it, and then, not all of it by pip; containers often forbid to keep that
test-frameworks: $(FRAMEWORKS)/.installed
	GPUDOCTOR_FRAMEWORKS=1 PYTHONDONTWRITEBYTECODE= $(FRAMEWORKS)/bin/python -m pytest tests/frameworks

VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' gpudoctor/__init__.py)
PROCESSOR ?= $(shell uname -m)
WHEEL = dist/gpudoctor_cli-$(VERSION)-py3-none-any.whl
SINGLE_FILE = dist/gpudoctor-$(VERSION)-linux-$(PROCESSOR).pex
# the packages that go into the single file; the Debian package holds those of the agent's service as well
SITE = build/site-$(PROCESSOR)

dist: $(VENV)/.installed-dev
	rm -f dist/*.whl dist/*.tar.gz
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*.whl dist/*.tar.gz

man: $(VENV)/.installed-dev
	rm -rf dist/man
	$(BIN)/python contrib/packages/man_pages.py dist/man

# runs in the CPython that starts it, 3.10 to 3.14, and finds that one's torch; a venv (--venv) would be of the first for ever
single-file: dist
	PATH=$(BIN):$$PATH contrib/packages/site_packages.sh $(SITE) $(PROCESSOR) $(WHEEL)
	$(BIN)/python -m pex --sources-directory $(SITE) --entry-point gpudoctor.__main__:run --inherit-path=fallback \
	  --interpreter-constraint 'CPython>=3.10,<3.15' --python-shebang '/usr/bin/env python3' --no-compile -o $(SINGLE_FILE)

deb: dist man
	PATH=$(BIN):$$PATH contrib/packages/site_packages.sh $(SITE)-agent $(PROCESSOR) 'gpudoctor-cli[agent] @ $(WHEEL)'
	PATH=$(BIN):$$PATH contrib/packages/build_deb.sh $(SITE)-agent dist/man $(VERSION) $(PROCESSOR) dist

packages: single-file deb

test-packages: $(VENV)/.installed-dev
	GPUDOCTOR_PACKAGES=1 $(BIN)/python -m pytest tests/packages

# gloo: before a driver that plays a node. OPTIONS: --only STEP, --burn TIME, -o FILE ...
gpu-acceptance: $(VENV)/.installed
	$(if $(filter gloo,$(BACKEND)),$(BIN)/gpudoctor fake-driver --node hgx-h100-8 --) $(BIN)/python -m gpudoctor.acceptance --backend $(BACKEND) $(OPTIONS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# a warning, as of a link that leads nowhere, is an error
site: $(VENV)/.installed-dev
	$(BIN)/python -m mkdocs build --quiet
	@echo build/site/index.html

coverage: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --cov=gpudoctor/facts --cov=gpudoctor/checks --cov-report=term --cov-fail-under=95 -p no:cacheprovider

# 100,000 broken inputs for every parser, about 15 minutes; GPUDOCTOR_FUZZ_INPUTS is another number
fuzz: $(VENV)/.installed-dev
	GPUDOCTOR_FUZZ=1 $(BIN)/python -m pytest tests/fuzz

# 1,000 checks of random nodes and faults, each verdict compared with the expected one
soak: $(VENV)/.installed-dev
	$(BIN)/python -m tests.soak

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("gpudoctor needs Python 3.10 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.12 ..." if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,dev]'
	touch $@

$(FRAMEWORKS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[torch,deepspeed]' tensorflow-cpu pytest pytest-timeout hypothesis
	touch $@

clean:
	rm -rf $(VENV) $(FRAMEWORKS) build dist .pytest_cache .mypy_cache .ruff_cache .coverage
