# Every target works from a fresh clone: it makes the environment it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help install browser slurm htcondor demo test lint types unit coverage mutants lowest format docs serve dist check-dist validate benchmark soak clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(READY) ## Create .venv with ampsure and its development tools

browser: ## Install Chromium for the tests of pages, where it is missing (Debian)
	@{ command -v chromium && command -v chromedriver; } >/dev/null || { \
	  if [ "$$(id -u)" != 0 ]; then sudo=sudo; fi; \
	  $$sudo apt-get update -qq && $$sudo apt-get install -y -qq --no-install-recommends chromium chromium-driver; }

slurm: $(READY) ## Compare jobs of a real SLURM, private and on this machine, with one process (Debian; installs it)
	@{ PATH="$$PATH:/usr/sbin"; command -v slurmctld && command -v slurmd && command -v munged; } >/dev/null || { \
	  if [ "$$(id -u)" != 0 ]; then sudo=sudo; fi; \
	  $$sudo apt-get update -qq && $$sudo apt-get install -y -qq --no-install-recommends slurm-wlm munge; }
	$(BIN)/python -m validation.slurm

HTCONDOR := $(shell PATH="$$PATH:/usr/sbin" command -v condor_master || echo build/condor/usr/sbin/condor_master)

htcondor: $(READY) $(HTCONDOR) ## Compare jobs of a real HTCondor with one process, too (Debian; brings it into build/)
	$(BIN)/python -m validation.htcondor

build/condor/usr/sbin/condor_master: # of Debian 13, with its libraries, since Debian 12 has none
	@{ PATH="$$PATH:/usr/sbin"; command -v debootstrap && command -v patchelf; } >/dev/null || { \
	  if [ "$$(id -u)" != 0 ]; then sudo=sudo; fi; \
	  $$sudo apt-get update -qq && $$sudo apt-get install -y -qq --no-install-recommends debootstrap patchelf; }
	@rm -rf build/condor build/condor.new
	@mkdir -p build
	PATH="$$PATH:/usr/sbin" debootstrap --download-only --variant=minbase --include=condor \
	  trixie "$(CURDIR)/build/condor.new" >/dev/null
	@cd build/condor.new && for name in var/cache/apt/archives/condor_*.deb var/cache/apt/archives/*lib*.deb; do \
	  dpkg-deb -x $$name . || exit; done && rm -r var
	@cd build/condor.new/usr && usr="$(CURDIR)/build/condor/usr" && loader=$$(echo lib/*/ld-linux-*.so.*) && \
	  find bin sbin libexec -type f -name 'condor_*' -exec patchelf --set-interpreter "$$usr/$$loader" \
	  --force-rpath --set-rpath "$$usr/lib:$$usr/$${loader%/*}" {} \; 2>/dev/null # so that jobs see no library of these
	@mv build/condor.new build/condor

demo: $(READY) ## Generate 20 000 events of g g > a a g, train a surrogate on them, and judge it
	@mkdir -p demo
	@rm -rf demo/run
	$(BIN)/ampsure generate gg_yyg -n 20000 --preset benchmark --seed 1 -o demo/events.h5
	$(BIN)/ampsure inspect demo/events.h5 -o demo/events.png
	$(BIN)/ampsure train --data demo/events.h5 -o demo/run --set training.seed=1 \
	  --set network.hidden=[128,128,128] --set training.batch_size=256 --set training.epochs=60
	$(BIN)/ampsure evaluate demo/run
	$(BIN)/ampsure report demo/run

test: lint types unit ## Lint, types and tests

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

unit: $(READY)
	$(BIN)/pytest -n 2 --dist loadgroup

coverage: $(READY) ## Run the tests and say which lines of src they reach
	$(BIN)/pytest -n 2 --dist loadgroup --cov --cov-report=term-missing:skip-covered --cov-fail-under=90

# What was found is kept in mutants/ and not done again: remove the folder to start from scratch.
mutants: $(READY) ## Change the code of some rooms in thousands of small ways, and list what no test notices (hours)
	PATH="$(CURDIR)/$(BIN):$$PATH" HYPOTHESIS_PROFILE=mutants OMP_NUM_THREADS=1 $(BIN)/mutmut run
	$(BIN)/python -m validation.mutants

# Old packages warn of what newer ones below them will drop: that is not ours.
lowest: ## Run the tests with the lowest allowed versions, in .venv-lowest
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e '.[lhe,export,dask,test]'
	.venv-lowest/bin/pytest -n 2 --dist loadgroup -W ignore::DeprecationWarning $(TESTS)

format: $(READY) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## Build the documentation in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

serve: $(READY) ## Show the documentation while it is written
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

dist: $(READY) ## Build wheel and sdist in dist/
	rm -rf dist
	$(BIN)/python -m build

check-dist: dist ## Install the wheel into empty environments, with each extra alone, and use it
	$(BIN)/python -m validation.packaging

validate: $(READY) ## Compare amplitude, cross sections, pulls and exports with what they should be
	$(BIN)/python -m validation.amplitude
	$(BIN)/python -m validation.cross_section
	$(BIN)/python -m validation.calibration
	$(BIN)/python -m validation.umami
	$(BIN)/python -m validation.audit
	$(BIN)/python -m validation.exports
	$(BIN)/python -m validation.distillation

benchmark: $(READY) ## Measure speed; prints ratios
	$(BIN)/python -m benchmarks.amplitude
	$(BIN)/python -m benchmarks.generation
	$(BIN)/python -m benchmarks.stacking
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.streaming
	$(BIN)/python -m benchmarks.unweighting
	$(BIN)/python -m benchmarks.inference

soak: $(READY) ## The long campaigns: 1.1 million events, 20 million streamed, 100,000 hostile files, 250 kills (about 90 minutes)
	$(BIN)/python -m benchmarks.generation --full
	$(BIN)/python -m benchmarks.streaming --campaign 20070400
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m validation.fuzz
	OMP_NUM_THREADS=1 $(BIN)/python -m validation.kills

clean: ## Remove environment and results
	rm -rf $(VENV) .venv-lowest demo dist build mutants .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
