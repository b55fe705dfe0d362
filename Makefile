# Every target sets up .venv by itself: Python 3.11 to 3.13 with pip and venv, make and gcc are all a fresh machine
# needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Its notices (a newer pip, running as root) are no part of what a person waits for; errors are shown.
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore $(BIN)/python -m pip
# The versions that the tests run with: what is set up later is the same, and pip need not look for one that fits.
PINS := deploy/constraints.txt
# `pip install` with a line for each package as it is fetched, and how many there are about.
NUM_PACKAGES := $(shell grep -c == $(PINS))
define FETCH
{ PYTHONUNBUFFERED=1 $(PIP) install --progress-bar off $(1); echo $$? > $(VENV)/.status; } | { num=0; while read -r line; do \
	case "$$line" in \
	"Installing collected packages"*) echo "  installing" ;; \
	*.metadata*) ;; \
	Downloading*|"Using cached"*|Processing*.whl*) num=$$((num + 1)); file=$${line##*/}; file=$${file#Downloading }; \
		echo "  $$num of about $(NUM_PACKAGES): $${file#Using cached }" ;; \
	esac; done; }; \
exit $$(cat $(VENV)/.status)
endef
PROJECT := --editable '.[train,mix,dev]'
READY := $(VENV)/.ready
# Of a second worktree, with the environment of the first: make docs SHARED=/path/to/.venv. Nothing is installed there.
ifdef SHARED
BIN := $(SHARED)/bin
READY :=
export PYTHONPATH := $(CURDIR)
endif
TYPES := $(wildcard trainer/*/*.pxd)
COMPILED := $(wildcard stages/*/*.pyx) $(TYPES) $(TYPES:.pxd=.py)

.PHONY: demo test test-all check bench docs notebook clean

# torch comes first and by its exact pin: a plain "torch" would pull gigabytes of CUDA.
$(READY): pyproject.toml setup.py $(PINS) $(COMPILED)
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13) and "Sluice needs Python 3.11, 3.12 or 3.13: make PYTHON=/path/to/python3.11")'
	@echo "Setting up $(VENV): 3 GB, some minutes, once."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --quiet install --upgrade pip
	@echo "torch:"
	@$(call FETCH,--constraint $(PINS) torch==2.13.0)
	@echo "Sluice and what it needs:"
	@$(call FETCH,--constraint $(PINS) $(PROJECT))
	@touch $@

demo: $(READY)
	@$(BIN)/sluice demo --out demo-out

# Two processes take the files in turns, in the order of tests/conftest.py. The many processes that tests start, Ray's
# workers among them, find our modules compiled.
test test-all: export PYTHONDONTWRITEBYTECODE =
TOGETHER := -n 2 --dist loadfile --no-loadscope-reorder
# Comparisons with libraries and hostile inputs run if what they test, or a pin, differs from main's upstream.
test: $(READY)
	$(BIN)/pytest --families=changed $(TOGETHER)

test-all: $(READY)
	$(BIN)/pytest $(TOGETHER)
	$(BIN)/pytest -m slow $(TOGETHER)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(READY)
	$(BIN)/python -m benchmarks

docs: $(READY)
	@# A page that cannot be made leaves the old one.
	page=$$($(BIN)/sluice recipe keys --markdown) && printf '%s\n' "$$page" > docs/recipe.md
	$(BIN)/python -m pipeline.recipe_help.rules docs/rules.md
	$(BIN)/python -m pipeline.recipe_help.published docs/recipes.md
	$(BIN)/python -m pipeline.recipe_help.families docs/families.md

notebook: $(READY)
	$(BIN)/python -m tests.support.notebook

clean:
	rm -rf $(VENV) demo-out build *.egg-info $(COMPILED:.pyx=*.so)
