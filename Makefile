# `make run` and `make test` set up what they need the first time, and are quick the second.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
GUEST  := .cache/guest
COMFYUI := .cache/comfyui
OUT    := out
# Two processes. Tests of one file stay together, as they share models that take long to load, and so do
# those of the real ComfyUI, which share one server. Tests that start JAX come apart: its threads and
# processes that fork do not go together.
TWO    := -n 2 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help run test test-all quick check format docs bench clean comfyui

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.run ## set up, then draw a picture with the built-in model on whatever is here
	@mkdir -p $(OUT)
	@$(BIN)/holdfast run tiny-flux --prompt "a handwritten seven" --seed 6 --out $(OUT)/seven.png

test: $(VENV)/.dev $(VENV)/.system $(GUEST)/vmlinuz comfyui ## set up, then run every test
	$(BIN)/python -m pytest $(TWO) -m "not xla and not comfyui"
	$(BIN)/python -m pytest $(TWO) -m "xla or comfyui"

test-all: $(VENV)/.dev $(VENV)/.system $(GUEST)/vmlinuz comfyui ## every test, and torch's whole databases on the device
	HOLDFAST_TEST_ALL=1 $(BIN)/python -m pytest $(TWO) -m "not xla and not comfyui"
	HOLDFAST_TEST_ALL=1 $(BIN)/python -m pytest $(TWO) -m "xla or comfyui"

quick: $(VENV)/.dev ## the tests a developer runs all the time; XLA's take longer: pytest tests/xla
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m "not slow and not numa and not comfyui and not xla" -x -q -n auto \
		--dist worksteal --hypothesis-profile quick

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
	@echo "set-up: Holdfast into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -e .
	@touch $@

$(VENV)/.run: $(VENV)/.core requirements/torch.txt requirements/run.txt
	@echo "set-up: torch and diffusers into $(VENV)"
	@$(PIP) install -r requirements/torch.txt
	@$(PIP) install -r requirements/run.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt requirements/no_deps.txt
	@echo "set-up: the development tools into $(VENV)"
	@$(PIP) install -r requirements/dev.txt
	@$(PIP) install --no-deps -r requirements/no_deps.txt
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
