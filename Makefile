# Two commands set up everything on a fresh machine with Python 3.10 or newer:
#   make demo   installs into .venv, then checks a simulated node, first by reading and then with real CPU ranks
#     For the ranks it fetches PyTorch, unless $(PYTHON) has one: TORCH_INDEX=https://download.pytorch.org/whl/cpu is the
#     small CPU build, TORCH=no leaves PyTorch out
#   make test   installs the same way, then runs a cheap test of every behaviour: four minutes on two cores
# While you work:
#   make test-fast   facts, checks and reports, without the tests that start processes: under a minute
#   make test-wide   what make test leaves out: whole matrices, long tests from end to end
#   make lint        ruff, mypy --strict and import-linter
#   make site        builds the documentation pages in build/site
#   make accept      regenerates goldens and generated files and lists what changed; read the difference
#   make test-engines      the tests that make test skips where an engine (Slurm, Prometheus, fio ...) is missing
#   make test-frameworks   the DeepSpeed and TensorFlow tests, which need a separate environment of 3 GB
#   make test-cuda-build   the tests with ranks under PyTorch's CUDA build, in an environment of 5.5 GB; needs no GPU
# Release artefacts (docs/install.md), for this processor or another one: make packages PROCESSOR=aarch64
#   make dist          wheel and sdist
#   make packages      all of dist/: wheel, sdist, single file, Debian package, manual pages
#   make test-packages installs, runs and removes them; the Debian package only as root
# Once on a GPU node (docs/acceptance.md):
#   make gpu-acceptance   compares gpudoctor with nvidia-smi, plain loops and nccl-tests; BACKEND=gloo needs no GPU

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FRAMEWORKS := .venv-frameworks
CUDA_BUILD := .venv-cuda
TORCH ?= yes
export TORCH_INDEX
INSTALL = PYTHON='$(PYTHON)' contrib/packages/environment.sh
BACKEND ?= auto

.PHONY: demo test test-fast test-wide test-engines test-cuda-build accept test-frameworks dist man single-file deb packages test-packages gpu-acceptance lint \
  site coverage fuzz soak clean

# A first answer before PyTorch is fetched
demo: $(VENV)/.installed-reading
	$(BIN)/gpudoctor check --node hgx-h100-8 --level quick
ifeq ($(TORCH),no)
	@echo; echo "With PyTorch (make demo) it also runs collectives, links and a DDP train, here on CPU ranks."
else
	@$(MAKE) --no-print-directory $(VENV)/.installed
	$(BIN)/gpudoctor check --node hgx-h100-8 --backend gloo --ranks 2
endif

# Tests wait as much as they compute: two workers per core. tests/conftest.py orders the files
TWO_A_CORE = $(shell echo $$(( 2 * $$(nproc) )))
# A restarted worker would run the file again that killed it, and be killed as well: let the other workers finish
BY_FILE := --dist=loadfile --max-worker-restart=0

# Compile once, not in every worker and every process that tests start (tests/conftest.py). Pytest reports errors later
build/.compiled: $(shell find gpudoctor tests -name '*.py') | $(VENV)/.installed-dev
	@{ $(BIN)/python -m compileall -q gpudoctor; \
	  ls -d tests/*/ | xargs -n 12 -P 2 $(BIN)/python -m pytest --collect-only -qq -p no:cacheprovider; \
	  mkdir -p build; touch $@; } >/dev/null 2>&1 || true

test: $(VENV)/.installed-dev build/.compiled
	$(BIN)/python -m pytest -n $(TWO_A_CORE) --maxprocesses=8 $(BY_FILE) --no-loadscope-reorder

# Only test and test-fast leave out what is wide
accept coverage fuzz test-cuda-build test-engines test-frameworks test-packages test-wide: export GPUDOCTOR_WIDE = 1

test-wide: $(VENV)/.installed-dev build/.compiled
	$(BIN)/python -m pytest -m wide -n $(TWO_A_CORE) --maxprocesses=8 $(BY_FILE) --no-loadscope-reorder

# What a test imports or calls when it starts processes: a new test of that kind is left out without further work
STARTS := subprocess|Popen|multiprocessing|Sampler\(|DriverWatch\(|collect_live\(|live_nodes
test-fast: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 $(BY_FILE) $$(grep -rLE --include='test_*.py' '$(STARTS)' tests/facts tests/checks tests/report)

accept: $(VENV)/.installed-dev
	-GPUDOCTOR_ACCEPT=1 $(BIN)/python -m pytest $$(grep -rlE --include='test_*.py' 'golden_files import' tests)
	git --no-pager diff --stat

# ABSENT: Debian packages that may be missing; any other missing engine fails
test-engines: $(VENV)/.installed-dev
	GPUDOCTOR_ENGINES="$(ABSENT)" $(BIN)/python -m pytest -n $(TWO_A_CORE) --maxprocesses=8 $(BY_FILE) --no-loadscope-reorder \
	  $$(grep -rlE --include='test_*.py' '[( @]needs\(' tests; grep -rl --include=conftest.py 'fixture_needs(' tests | xargs -n 1 dirname)

# Separate from `test`, because these tests keep both cores busy for a minute or two. Python keeps what it compiles of
# them, even if the container sets PYTHONDONTWRITEBYTECODE
test-frameworks: $(FRAMEWORKS)/.installed
	GPUDOCTOR_FRAMEWORKS=1 PYTHONDONTWRITEBYTECODE= $(FRAMEWORKS)/bin/python -m pytest tests/frameworks

# CPU ranks must not open a GPU that the CUDA build could see: the fake driver is one. As in test-frameworks, Python
# keeps what it compiles: uncompiled, this torch takes 11 s to import, and ranks miss their deadlines
CUDA_TESTS := rank_environment two_ranks compute cuda_stand_in burn_end
test-cuda-build: export PYTHONDONTWRITEBYTECODE =
test-cuda-build: $(CUDA_BUILD)/.installed
	$(CUDA_BUILD)/bin/gpudoctor fake-driver --node hgx-h100-8 -- $(CUDA_BUILD)/bin/gpudoctor check --backend gloo --ranks 2 train
	$(CUDA_BUILD)/bin/python -m pytest -n $$(nproc) $(BY_FILE) $(CUDA_TESTS:%=tests/probes/test_%.py)

VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' gpudoctor/__init__.py)
PROCESSOR ?= $(shell uname -m)
WHEEL = dist/gpudoctor_cli-$(VERSION)-py3-none-any.whl
SINGLE_FILE = dist/gpudoctor-$(VERSION)-linux-$(PROCESSOR).pex
# The dependencies inside the single file; the Debian package adds those of the agent
SITE = build/site-$(PROCESSOR)

dist: $(VENV)/.installed-dev
	rm -f dist/*.whl dist/*.tar.gz
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*.whl dist/*.tar.gz

man: $(VENV)/.installed-dev
	rm -rf dist/man
	$(BIN)/python contrib/packages/man_pages.py dist/man

# The single file runs in the CPython that starts it (3.10 to 3.14) and finds its torch. pex --venv would bind it to the
# first interpreter that ever started it
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

# gloo runs against the fake driver of a simulated node. OPTIONS: --only STEP, --burn TIME, -o FILE ...
gpu-acceptance: $(VENV)/.installed
	$(if $(filter gloo,$(BACKEND)),$(BIN)/gpudoctor fake-driver --node hgx-h100-8 --) $(BIN)/python -m acceptance --backend $(BACKEND) $(OPTIONS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# mkdocs.yml is strict: a warning, such as a dead link, is an error
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

$(VENV)/.installed-reading: pyproject.toml constraints.txt
	@test -e $(VENV)/.installed-dev || echo "gpudoctor: installing into $(VENV): fetches 20 MB"
	@$(INSTALL) $(VENV) -c constraints.txt -e .
	@touch $@

$(VENV)/.installed: $(VENV)/.installed-reading
	@$(BIN)/python -c 'import torch' 2>/dev/null || { echo "gpudoctor: PyTorch is next: fetches 0.2 GB for the CPU build" \
	  "(TORCH_INDEX=https://download.pytorch.org/whl/cpu), 3 GB for the CUDA build that PyPI has for x86_64"; \
	  $(INSTALL) $(VENV) -c constraints.txt -e '.[torch]'; }
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "gpudoctor: installing what tests need: fetches 0.4 GB"
	@$(INSTALL) $(VENV) -c constraints.txt -e '.[dev]'
	@touch $@

# --no-compile: Python compiles what they import and keeps it
$(FRAMEWORKS)/.installed: pyproject.toml constraints.txt
	@$(INSTALL) $(FRAMEWORKS) --no-compile -c constraints.txt -e '.[torch,deepspeed]' tensorflow-cpu pytest pytest-timeout hypothesis
	@touch $@

$(CUDA_BUILD)/.installed: pyproject.toml constraints.txt constraints-cuda.txt
	@mkdir -p build && { sed '/^torch==/d' constraints.txt; cat constraints-cuda.txt; } > build/constraints-cuda.txt
	@TORCH_INDEX= $(INSTALL) $(CUDA_BUILD) --no-compile --no-cache-dir -c build/constraints-cuda.txt -e '.[torch]' \
	  pytest pytest-timeout pytest-xdist hypothesis
	@touch $@

clean:
	rm -rf $(VENV) $(FRAMEWORKS) $(CUDA_BUILD) build dist .pytest_cache .mypy_cache .ruff_cache .coverage
