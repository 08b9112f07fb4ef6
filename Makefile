# Every target builds the virtual environment first if it is not there. Variables: PROFILE DATA LIMIT REPLICAS TARGET DRAFT SAMPLES DEVICE DTYPE GRAPHS FIXED_LENGTH AGAIN ARGS PYTHON.

PYTHON ?= python3
PROFILE ?= toy
DATA ?= $(if $(filter pocket small paper,$(PROFILE)),hub,toy)
DEVICE ?= cpu
DTYPE ?= float32
LIMIT ?=
REPLICAS ?=
FIXED_LENGTH ?=
GRAPHS ?= off
AGAIN ?=
ARGS ?=
VENV := .venv
STAMP := $(VENV)/.installed
TORCHAO := $(VENV)/torchao
FORETOKEN := $(VENV)/bin/foretoken
OPTIONS := --profile $(PROFILE) --data '$(DATA)' --device $(DEVICE) --dtype $(DTYPE) $(if $(LIMIT),--limit $(LIMIT)) $(if $(REPLICAS),--replicas $(REPLICAS)) $(if $(filter-out 0,$(FIXED_LENGTH)),--fixed-length) --graphs $(GRAPHS) $(ARGS)
# A file of tests stays in one process, so that its fixtures are made once; the order is the folders', whose last files are short.
PROCESSES := -n 2 --dist loadfile --no-loadscope-reorder
RECORDING := $(if $(filter-out 0,$(AGAIN)),--again)

.DEFAULT_GOAL := help
.PHONY: help install test coverage lint format regress reproduce audit tables report ledger notebooks zoo bench bench-kernels verify-kernels clean

help: ## list every target
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-26s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\n  Variables: PROFILE=toy|pocket|small|paper  DATA=toy|hub|FOLDER  LIMIT=N  REPLICAS=N  DEVICE=cpu|cuda  DTYPE=float32|bfloat16|float16\n'
	@printf '  FIXED_LENGTH=1 goes on behind EOS to the length that a paper names (PPD). GRAPHS=on captures passes. AGAIN=1 records anew what a drifting machine spoiled.\n  ARGS=... gives the command further flags: make reproduce ARGS=--dry-run prints the plan alone.\n'
	@printf '  Tables 1-6 are PPD 2, 3 and 5-8, 7-11 Leviathan 1-5, 12-29 SpecDec 1-6 and 8-19, 30-34 Optimized 1-5;\n  figures ppd-1 to -4, leviathan-1 to -5, specdec-1 to -5, optimized-1 to -5. See `make tables`.\n'

install: $(STAMP) ## create .venv and install the project with its pinned dependencies

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

test: $(STAMP) $(TORCHAO) ## run the tests (2 processes)
	$(VENV)/bin/python -m pytest $(PROCESSES)
	PYTHONPATH=$(TORCHAO) $(VENV)/bin/python -m pytest tests/harness/test_quantised.py

# Apart, since wherever torchao is installed transformers imports it, in a second, with lines of its own on stderr.
$(TORCHAO): $(STAMP)
	$(VENV)/bin/python -m pip install --quiet --no-deps --constraint constraints.txt --target $@ torchao
	@touch $@

coverage: $(STAMP) ## run the tests and print which lines of methods/, kernels/ and harness/ they ran, worst first
	rm -f .coverage .coverage.*
	$(VENV)/bin/python -m coverage run -m pytest $(PROCESSES)
	$(VENV)/bin/python -m coverage combine --quiet
	$(VENV)/bin/python -m coverage report --skip-covered --sort=cover

lint: $(STAMP) ## check style and types; changes nothing
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(STAMP) ## rewrite the sources in the project's style
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

regress: $(STAMP) ## compare metrics with results/baselines (PROFILE=pocket: those of real models); fails where one moved
	$(if $(filter pocket,$(PROFILE)),status=0; for one in results/baselines/pocket/*.json; do $(FORETOKEN) regress --baseline $$one || status=$$?; done; exit $$status,$(FORETOKEN) regress $(ARGS))

reproduce: $(STAMP) ## run what all tables and figures still lack, after a plan, then write them with their evidence and the ledger
	$(FORETOKEN) reproduce $(OPTIONS) $(RECORDING)

reproduce-table-%: $(STAMP) ## run what table % still lacks, then write and print it
	$(FORETOKEN) table $* --reproduce $(OPTIONS) $(RECORDING)

table-%: $(STAMP) ## write and print table % from stored records, running nothing
	$(FORETOKEN) table $* $(OPTIONS)

reproduce-figure-%: $(STAMP) ## run what figure % (leviathan-2, say) still lacks, then draw it
	$(FORETOKEN) figure $* --reproduce $(OPTIONS) $(RECORDING)

figure-%: $(STAMP) ## draw figure % from stored records, running nothing
	$(FORETOKEN) figure $* $(OPTIONS)

audit: $(STAMP) ## check that what claims to be exact is (TARGET= DRAFT= for your own pair); fails where it is not
	$(FORETOKEN) audit $(if $(TARGET),--target '$(TARGET)' --draft '$(DRAFT)',--scale $(PROFILE)) $(if $(SAMPLES),--samples $(SAMPLES)) --data '$(DATA)' --device $(DEVICE) --dtype $(DTYPE) --graphs $(GRAPHS) $(ARGS)

tables: $(STAMP) ## show the catalogue of tables and figures with the state of each
	$(FORETOKEN) tables $(OPTIONS)

report: $(STAMP) ## write the static site of everything at hand under results/report/, runs nothing
	$(FORETOKEN) report

ledger: $(STAMP) ## write paper against measured over all tables into results/ledger.csv, runs nothing
	$(FORETOKEN) ledger

notebooks: $(STAMP) ## execute notebooks/ into results/notebooks/, on the records at hand or small ones made now
	mkdir -p results/notebooks
	$(VENV)/bin/jupyter-execute notebooks/*.ipynb --output="$(CURDIR)/results/notebooks/{notebook_name}"

zoo: $(STAMP) ## train every model of the zoo that is not cached yet
	$(FORETOKEN) zoo --scale $(PROFILE) --data '$(DATA)' $(ARGS)

bench: $(STAMP) ## time our loops against transformers' on the zoo, interleaved, and passes by their number of rows
	$(FORETOKEN) bench --profile $(PROFILE) --data '$(DATA)' $(if $(LIMIT),--prompts $(LIMIT)) $(ARGS)

bench-kernels: $(STAMP) ## time the verification kernels against transformers' operations, each checked first
	$(FORETOKEN) bench kernels --device $(DEVICE) --dtype $(DTYPE) $(ARGS)
	$(if $(filter cpu,$(DEVICE)),$(FORETOKEN) bench kernels --dtype $(DTYPE) --cold $(ARGS))

gpu: $(STAMP) ## check and time everything on a GPU (ARGS=--rehearse: without one), into results/gpu; see docs/gpu.md
	$(FORETOKEN) gpu $(ARGS)

verify-kernels: $(STAMP) ## 10,000 random rounds a dtype and kernel against the reference, in Triton's interpreter (17 CPU minutes)
	TRITON_INTERPRET=1 $(VENV)/bin/python -W ignore::RuntimeWarning -m kernels.verify.check --rows 10000
	$(VENV)/bin/python -m kernels.verify.check --rows 10000 --backend torch
	$(VENV)/bin/python -m kernels.verify.compiled

clean: ## remove the virtual environment (records and the zoo's cache stay)
	rm -rf $(VENV)
