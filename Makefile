# Two commands for a newcomer: `make demo` and `make test`. The others are for those who change the code.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# One stamp per set of files, so that a second run has nothing to install.
BASE   := $(VENV)/.installed-base
DEV    := $(VENV)/.installed-dev
SOURCES_OF_BUILD := pyproject.toml setup.py $(wildcard src/lakemq/*.c src/lakemq/*.h)

.PHONY: demo test quick format lint types layers check bench bench-peers bench-quick fuzz sim faults wheel clean help

help:
	@echo "make demo    set up and show what LakeMQ does"
	@echo "make test    set up and run all tests"
	@echo "make quick   tests that take milliseconds each (under a minute)"
	@echo "make format | lint | types | layers | check"
	@echo "make bench   every benchmark, quick form;  make fuzz   1 000 000 mutated frames"
	@echo "make bench-peers  LakeMQ beside Kafka, RocketMQ, NATS, RabbitMQ and Redis (45 minutes, installs them)"
	@echo "make bench-quick  the same with those that are installed (5 minutes)"
	@echo "make wheel   dist/: wheels to install elsewhere, one of them for every Python and without a compiler"
	@echo "make sim     10 000 simulated schedules of broker, clients and disk"
	@echo "make faults  10 000 crash states, 1 000 kills, 300 power cuts (as root), about 7 minutes"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(BASE): $(BIN)/python $(SOURCES_OF_BUILD)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[spark]"
	@touch $@

$(DEV): $(BIN)/python $(SOURCES_OF_BUILD)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@ $(BASE)

demo: $(BASE)
	@$(BIN)/lakemq demo

test: $(DEV)
	@$(BIN)/python dev.py system-packages
	@$(BIN)/python dev.py lint
	@$(BIN)/python dev.py test

faults: $(DEV)
	@$(BIN)/python dev.py system-packages
	@$(BIN)/python dev.py faults

quick format lint types layers check bench bench-peers bench-quick fuzz sim: $(DEV)
	@$(BIN)/python dev.py $@

wheel: $(BIN)/python
	@$(BIN)/python dev.py wheel

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/lakemq/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
