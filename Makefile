# `make run` and `make test` set up what they need the first time, and are quick the second.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python tools/pip_install.py
GUEST  := .cache/guest
COMFYUI := .cache/comfyui
OUT    := out
# Two workers, each with whole files (tests/harness). A run that hangs as a whole ends after LIMIT,
# with the stacks of all its threads; a test that hangs ends by itself (pyproject.toml).
LIMIT  := 75m
PYTEST := timeout --signal=ABRT --kill-after=60 $(LIMIT) $(BIN)/python -m pytest
TWO    := -n 2 --dist loadfile
WITHIN := 600
# Whatever the shell says: tests start hundreds of processes, and each would compile its modules anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run test test-rest test-all quick check format docs bench clean comfyui

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.run ## set up, then draw a picture with the built-in model on whatever is here
	@mkdir -p $(OUT)
	@$(BIN)/holdfast run tiny-flux --prompt "a handwritten seven" --seed 6 --out $(OUT)/seven.png

test: $(VENV)/.dev $(VENV)/.system $(GUEST)/vmlinuz comfyui ## set up, then run the tests: one for each promise
	@$(PYTEST) $(TWO) -m "not exhaustive"

test-rest: $(VENV)/.dev $(VENV)/.system $(GUEST)/vmlinuz comfyui ## of what only test-all runs, as much as WITHIN=600 seconds allow
	@$(PYTEST) $(TWO) -m exhaustive --within $(WITHIN)

test-all: LIMIT := 6h
test-all: $(VENV)/.dev $(VENV)/.system $(GUEST)/vmlinuz comfyui ## every test, and torch's whole databases on the device
	@HOLDFAST_TEST_ALL=1 $(PYTEST) $(TWO)

quick: $(VENV)/.dev ## the tests a developer runs all the time; XLA's take longer: pytest tests/xla
	@$(PYTEST) -m "not exhaustive and not slow and not numa and not comfyui and not xla" \
		-x -n auto --dist loadfile --hypothesis-profile quick

check: $(VENV)/.dev ## lint, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(VENV)/.dev ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev ## set up, then build the documentation site, which needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --site-dir $(OUT)/site
	@echo "open $(OUT)/site/index.html"

bench: $(VENV)/.dev ## every benchmark that can run here, and one report of them
	@$(BIN)/holdfast bench --out $(OUT)/bench

clean: ## remove everything that set-up and tests made
	rm -rf $(VENV) .cache $(OUT) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- set-up

$(VENV)/.core: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Holdfast needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) "Holdfast into $(VENV)" -e .
	@touch $@

$(VENV)/.run: $(VENV)/.core requirements/torch.txt requirements/run.txt
	@$(PIP) "torch" -r requirements/torch.txt
	@$(PIP) "diffusers" -r requirements/run.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt requirements/no_deps.txt
	@$(PIP) "development tools" -r requirements/dev.txt
	@$(PIP) "models for the tests" --no-deps -r requirements/no_deps.txt
	@touch $@

# PoCL is the OpenCL runtime of the tests; QEMU boots the machine with several NUMA nodes;
# Chromium opens the pages; zsh and fish complete command lines; CLBlast multiplies beside our kernels.
$(VENV)/.system: tools/debian_packages.sh | $(VENV)/.core
	@tools/debian_packages.sh chromium fish libclblast1 pocl-opencl-icd qemu-system-x86 util-linux zsh
	@touch $@

$(GUEST)/vmlinuz: | $(VENV)/.system
	@tools/guest_kernel.sh $(GUEST) || echo "set-up: the tests that boot a guest will be skipped"

# Not named after a file: the script itself knows whether all that it pins is there, and is then quick.
comfyui: $(VENV)/.dev
	@PYTHON=$(BIN)/python tools/comfyui.sh $(COMFYUI) \
		|| echo "set-up: the tests that start ComfyUI will be skipped"
