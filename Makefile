# `make demo` and `make test` need only python3 (3.11 or newer), python3-venv and make.
PYTHON ?= python3
BIN := .venv/bin
LAKE ?= lake

.PHONY: demo test lint soak clean

demo: .venv/.installed
	$(BIN)/gristmill run recipes/python.yaml --lake $(LAKE)

test: .venv/.test-installed
	$(BIN)/python -m pytest tests -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -m "not soak"

lint: .venv/.test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: .venv/.test-installed
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: atheris
	$(BIN)/python -m pytest tests -m "soak or hypothesis" --hypothesis-profile search

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed, this is " + sys.version'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	$(BIN)/python -m curate.warm
	touch $@

.venv/.test-installed: .venv/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf .venv lake build *.egg-info
