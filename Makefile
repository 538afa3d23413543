# Each works from a fresh clone: make demo | make test.
PYTHON  ?= python3
VENV    ?= .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
START   := $(shell date +%s)
PACKAGE := $(VENV)/.installed
TOOLS   := $(VENV)/.installed-dev

# Compiled modules are kept, also where the environment says otherwise: tests start a hundred processes of offbeat.
export PYTHONDONTWRITEBYTECODE =

.PHONY: setup setup-dev demo screenshots docs test test-slow faults test-kernels fuzz mutants theory bench bench-others lint style format clean

setup: $(PACKAGE)

setup-dev: $(TOOLS)

# what a user needs; torch first and pinned, so that no other package's range pulls a newer build with its CUDA libraries
$(PACKAGE): pyproject.toml constraints.txt
	@echo "making an environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "installing PyTorch, the largest of the packages"
	@$(PIP) -c constraints.txt torch
	@echo "installing offbeat and the other packages that it uses"
	@$(PIP) -c constraints.txt -e .
	@touch $@

# and what the tests, the checks and the figures need, in the same environment
$(TOOLS): $(PACKAGE)
	@echo "installing what the tests, the checks and the figures need"
	@$(PIP) -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	@echo "comparing four algorithms on the embedded data"
	$(BIN)/offbeat run
	@echo "make demo took $$(($$(date +%s) - $(START))) s"

lint: style
	$(BIN)/mypy

style: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# types are checked while the tests begin; four processes for two cores: tests of real runs wait much of their time.
# In a fresh clone one process collects the tests first, or each of the four would compile all of them.
test: style
	$(BIN)/mypy & types=$$!; [ -d tests/__pycache__ ] || $(BIN)/pytest --collect-only > /dev/null; \
	$(BIN)/pytest -n 4; tests=$$?; wait $$types && exit $$tests

test-slow: setup-dev
	$(BIN)/pytest -n 2 -m slow

# anything that a client could send, for an hour or FUZZ_SECONDS
fuzz: setup-dev
	FUZZ_SECONDS=$(or $(FUZZ_SECONDS),3600) $(BIN)/pytest -m slow -s tests/deploy/test_fuzz.py

# 1,800 schedules of injected faults around the fold, 450 around what ships, and the planted mistakes: about 20 minutes
faults: setup-dev
	$(BIN)/pytest -n 2 -m 'slow or not slow' tests/deploy/test_faults.py tests/deploy/test_shipped.py

# N small mistakes in algorithms/, local/ and theory/, and whether the tests notice: up to half a minute each
mutants: setup-dev
	$(BIN)/python tests/mutants.py -n $(or $(N),120) --seed $(or $(SEED),0)

# the GPU kernels in Triton's interpreter; Triton takes a gigabyte, so it is kept beside the environment. The interpreter
# of 3.6 needs an older NumPy; that of 3.9 refuses masks that depend on a scalar, as the LSTM's do
test-kernels: setup-dev
	$(PIP) --upgrade --target $(VENV)/triton triton==3.6.0 'numpy<2.4'
	PYTHONPATH=$(VENV)/triton $(BIN)/pytest tests/models/test_kernels.py

# the tables of docs/benchmarks.md: beside loops written by hand, and beside other simulators (see benchmarks/README.md)
bench: setup
	$(BIN)/python -m benchmarks.by_hand --out docs/benchmarks.md

bench-others: setup
	$(BIN)/python -m benchmarks.compare --install --out docs/benchmarks.md

# the figures of docs/theory.md
theory: setup-dev
	$(BIN)/python -m studies.theory.plots docs/figures

# the pictures of docs/report.md, from the demonstration in a real browser (Debian: apt-get install chromium)
screenshots: setup-dev
	PYTHONPATH=tests $(BIN)/python tests/report/screenshots.py docs/figures

# the documentation as a site, in site/; a link that leads nowhere fails
docs: setup
	$(PIP) -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # with --quiet, warnings would be neither shown nor counted

format: setup-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist site
