# One word per chore. Each does its own set-up; PYTHON and VENV may be given: make test VENV=/somewhere/else
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: install demo test check bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("structgen needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

demo: install
	$(BIN)/python -m structgen models pull
	$(BIN)/python examples/demo.py

test: install
	$(BIN)/python -m structgen models pull
	$(BIN)/python -m pytest --cov=grammar --cov-report= $(ARGS)
	@echo "Once more without compiling, to see the lines of compiled functions and that they mean the same:"
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest tests/grammar -m nojit --cov=grammar --cov-append --cov-report=
	$(BIN)/python -m coverage report --include='grammar/*' --skip-covered --fail-under=90

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install
	$(BIN)/python -m structgen.engine.bench --quick

clean:
	rm -rf $(VENV) build dist *.egg-info
