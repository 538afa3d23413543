# make demo | make test | make setup: each works from a fresh clone.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: setup demo screenshots test test-slow test-kernels theory bench bench-others lint format clean

setup: $(STAMP)

# torch first and pinned, so that no other package's range pulls a newer build with its CUDA libraries
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/offbeat run

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n 2

test-slow: setup
	$(BIN)/pytest -n 2 -m slow

# the GPU kernels in Triton's interpreter; Triton takes a gigabyte, so it is kept beside the environment
test-kernels: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(VENV)/triton triton
	PYTHONPATH=$(VENV)/triton $(BIN)/pytest tests/models/test_kernels.py

# the tables of docs/benchmarks.md: beside loops written by hand, and beside other simulators (see benchmarks/README.md)
bench: setup
	$(BIN)/python -m benchmarks.by_hand --out docs/benchmarks.md

bench-others: setup
	$(BIN)/python -m benchmarks.compare --install --out docs/benchmarks.md

# the figures of docs/theory.md
theory: setup
	$(BIN)/python -m studies.theory.plots docs/figures

# the pictures of docs/report.md, from the demonstration in a real browser (Debian: apt-get install chromium)
screenshots: setup
	PYTHONPATH=tests $(BIN)/python tests/report/screenshots.py docs/figures

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
