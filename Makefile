# Two commands do everything, set-up included: `make quickstart` and `make test`.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
EXTRAS ?= train,label,dev,tensorboard
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup test test-gpu lint quickstart bench bench-peers clean

setup: $(READY)

# The stamp is written last: an interrupted installation is done again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"DeedRL needs Python 3.11 or newer, got {sys.version.split()[0]}; run: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	CUDA_VISIBLE_DEVICES= $(BIN)/python -m pytest -n 2 --cov=deedrl --cov-report=term:skip-covered --cov-fail-under=85

# On a machine with a CUDA device, and a torch for it in $(VENV).
test-gpu: $(READY)
	$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available() and "torch sees no CUDA device")'
	$(BIN)/python -m pytest tests/pipeline/test_devices.py -k cuda -rs

quickstart: $(READY)
	$(BIN)/deedrl run recipes/quickstart.yaml --out runs/quickstart

# Prints only; files it measures with are temporary. One at a time, on a machine with nothing else to do.
bench: $(READY)
	$(BIN)/deedrl bench runner
	$(BIN)/deedrl bench store
	$(BIN)/deedrl bench parser
	$(BIN)/deedrl bench rollouts --turns 2 --turns 4 --turns 8 --turns 16
	$(BIN)/deedrl bench update

# Other libraries on the same work, in turn with ours; each is installed into .peers/ first. About two hours; for a look
# whether all of it works: make bench-peers PAIRS=1 ROLLOUTS="--episodes 4 --turns 2 --new-tokens 4" \
#   UPDATE="--tasks 2 --siblings 2"
PEERS := trl vllm llamacpp
PAIRS := 3
ROLLOUTS :=
UPDATE :=
bench-peers: $(READY)
	mkdir -p .peers
	-$(BIN)/python benchmarks/peers/install.py $(PEERS)
	$(BIN)/python benchmarks/peers/workload.py rollouts $(ROLLOUTS) --out .peers/rollouts.json
	$(BIN)/python benchmarks/peers/workload.py update $(UPDATE) --out .peers/update.json
	$(BIN)/python benchmarks/peers/compare.py .peers/rollouts.json .peers/update.json \
		--peers generate $(PEERS) --pairs $(PAIRS) --json .peers/results.json

clean:
	rm -rf $(VENV) build dist htmlcov .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -exec rm -rf {} +
