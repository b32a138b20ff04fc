# make demo   a simulated cluster: pods get MIG slices, one waits and gets its own, all is cleaned up
# make up     a simulated cluster that stays, for kubectl; PRODUCT=, NODES=, GPUS=, DIR= say of what kind
# make kubectl-mig   kubectl's plugin, and what to add to PATH
# make wheel  the Python package, into dist/; make krew: kubectl's plugin as krew takes it
# make release   what a release consists of, into dist/: BASE=<python image@digest> builds its images,
#   SIGN=<key> signs it, PUSH=oci://host/path pushes the chart
# make manifests   the chart's objects for kubectl apply, into dist/: REGISTRY=host/path of the images, VALUES=file
# make hashes   the hashes of the images' packages, after a change of constraints.txt
# make cluster   a real Kubernetes on this machine, as root, from its binaries, until Ctrl-C
# make fmt    what ruff mends by itself, and the format
# make test   everything that CI runs: lint, types, layers, tests
# make test-browser   the page of kubectl mig ui in a Chromium that is on the PATH
# make docs   the handbook, into site/
# make bench  the node program's speed beside a floor of the same run; make bench-check: compared with docs/performance.md
# make hardware   what this machine's GPU shows, into hardware.json, as root; SLICES=yes makes slices on an idle one
# make soak   the node under random failures for as long as it takes
# The environment in .venv is made on first use; Python 3.11 or newer is all that must be there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= auto

.PHONY: bench bench-check hardware demo up cluster kubectl-mig wheel krew release manifests hashes fmt test lint types unit soak test-browser test-cluster protos constraints docs clean

demo: $(VENV)/.runtime
	@$(BIN)/python -m sim demo

up: $(VENV)/.runtime
	@$(BIN)/python -m sim up $(if $(PRODUCT),--product '$(PRODUCT)') $(if $(NODES),--nodes '$(NODES)') \
	    $(if $(GPUS),--gpus '$(GPUS)') $(if $(DIR),--dir '$(DIR)')

# The chart is rendered by a package of the developers.
cluster: $(VENV)/.dev
	@$(MAKE) --silent kubectl-mig
	@$(BIN)/python -m hack.cluster $(if $(NODES),--nodes '$(NODES)') $(if $(DIR),--dir '$(DIR)') \
	    $(if $(VALUES),--values '$(VALUES)')

kubectl-mig: $(VENV)/.runtime
	@echo 'export PATH="$(abspath $(VENV)/plugins):$$PATH"'

wheel: $(VENV)/.runtime
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

krew: $(VENV)/.dev wheel
	$(BIN)/python -m hack.krew --wheel-dir dist

release: krew
	@$(BIN)/python -m hack.release --folder dist $(if $(BASE),--base '$(BASE)') \
	    $(if $(SIGN),--sign '$(SIGN)') $(if $(PUSH),--push '$(PUSH)') \
	    $(if $(REGISTRY),--registry '$(REGISTRY)')

manifests: $(VENV)/.dev
	@$(BIN)/python -m hack.release.manifests --folder dist $(if $(REGISTRY),--registry '$(REGISTRY)') \
	    $(if $(VALUES),--values '$(VALUES)')

hashes: $(VENV)/.dev
	@$(BIN)/python -m hack.release.packages

fmt: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint types unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/typos
	$(BIN)/zizmor --quiet --offline --pedantic --strict-collection .github/workflows

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(BIN)/pytest -n $(WORKERS)

# The long run of tests/failures: 20,000 random steps (MIG_STEPS; MIG_SEED repeats one), every crash
# point with every way on, every byte of the journal, 10,000 cycles.
soak: $(VENV)/.dev
	MIG_SOAK=1 $(BIN)/pytest tests/failures -n $(WORKERS) -rP --timeout 7200

# With KUBEBUILDER_ASSETS over a real API server. BENCH= has further options.
bench: $(VENV)/.dev
	@$(BIN)/python -m hack.bench.node $(BENCH)

bench-check: $(VENV)/.dev
	@$(BIN)/python -m hack.bench.node --check docs/performance.md $(BENCH)

hardware: $(VENV)/.runtime
	@$(BIN)/python -m hack.hardware $(if $(SLICES),--slices) $(if $(DRIVER_ROOT),--driver-root '$(DRIVER_ROOT)')

# Needs Kubernetes' binaries: KUBEBUILDER_ASSETS, or where setup-envtest keeps them. Skips without.
test-cluster: $(VENV)/.dev
	$(BIN)/pytest tests/cluster -n 0

test-browser: $(VENV)/.browser
	$(BIN)/pytest tests/cli/page/browser -n 0

docs: $(VENV)/.dev
	$(BIN)/mkdocs build --quiet
	@echo "the handbook is in site/index.html"

protos: $(VENV)/.dev
	$(BIN)/python hack/generate_protos.py

# Pins what is installed now; run it in an environment made without constraints.
constraints: $(VENV)/.dev
	$(BIN)/python -m pip freeze --exclude-editable --exclude pip --exclude setuptools > constraints.txt

$(VENV)/.runtime: pyproject.toml constraints.txt hack/environment.py
	@$(PYTHON) hack/environment.py '.[controller,kubeletplugin,sim]' $@ $^

$(VENV)/.dev: pyproject.toml constraints.txt hack/environment.py
	@$(PYTHON) hack/environment.py '.[dev]' $@ $^

$(VENV)/.browser: pyproject.toml constraints.txt hack/environment.py
	@$(PYTHON) hack/environment.py '.[dev,browser]' $@ $^

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info build dist site
