# make build | run | test | check | bench | clean
# make torch | published | notebook | browser | test-torch TORCH=VERSION | test-ray | kernels | spill | gpu-bundle | gpu-test | gpu-bench

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo development)
LDFLAGS := -s -w -X main.version=$(VERSION)
CACHE   := $(CURDIR)/.cache

LINT_VERSION := v2.10.1
LINT         := $(CACHE)/golangci-lint-$(LINT_VERSION)

# Building with GPU support needs nothing from NVIDIA: cuda/include has the
# declarations, cuda/driver and nvml the functions, and the archive in cuda/stub
# stands in for the library that gorgonia.org/cu links to.
export CGO_CFLAGS  := -O2 -g -I$(CURDIR)/cuda/include
export CGO_LDFLAGS := -O2 -g -L$(CURDIR)/cuda/stub
# The command-line library starts 0.4 ms sooner without its documentation generator;
# cmd/headroom/man.go generates the manual page instead.
TAGS := -tags cuda,urfave_cli_no_docs

.PHONY: build run test check bench clean torch published notebook test-torch test-ray kernels spill gpu-bundle gpu-test gpu-bench browser slurm

build:
	go build -trimpath $(TAGS) -ldflags '$(LDFLAGS)' -o bin/headroom ./cmd/headroom

# Trains the gpt preset from the start, whatever became of an earlier run of it.
run: build
	bin/headroom run --again configs/presets/gpt.yaml

# PyTorch and the frameworks that tests wrap, 5 GB: one environment for each set of
# pinned requirements, outside the checkout, so that clones share it. TORCH_ENV= does
# without it.
REQUIREMENTS := wrap/testdata/torch/requirements.txt
KEPT := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/headroom
TORCH_ENV := $(KEPT)/torch-$(shell sha256sum $(REQUIREMENTS) | cut -c1-12)

# Every test, with the race detector and nothing shortened. Fetches first what the tests
# need, so that a slow network does not look like a slow test. Tests for whose needs that
# was not possible are skipped, loudly.
# The output of failing tests comes last, so that it is not lost among the rest.
test: export HEADROOM_PYTHON ?= $(if $(TORCH_ENV),$(TORCH_ENV)/bin/python)
test: export HEADROOM_PUBLISHED ?= $(if $(TORCH_ENV),$(PUBLISHED))
test: export HEADROOM_NOTEBOOK ?= $(if $(TORCH_ENV),$(NOTEBOOK))
test: $(if $(HEADROOM_PYTHON),,$(if $(TORCH_ENV),torch)) $(if $(HEADROOM_PUBLISHED),,$(if $(TORCH_ENV),published)) $(if $(HEADROOM_NOTEBOOK),,$(if $(TORCH_ENV),notebook)) browser slurm
	@mkdir -p $(CACHE)
	@go mod download
	@status=0; go test -race $(TAGS) -timeout 80m -v ./... >$(CACHE)/test.log 2>&1 || status=$$?; \
	(cd docs/cluster && go test -v ./...) >>$(CACHE)/test.log 2>&1 || status=$$?; \
	if [ $$status -ne 0 ]; then \
		grep -vE '^(=== (RUN|PAUSE|CONT|NAME)|[[:space:]]*--- PASS)' $(CACHE)/test.log || true; \
	else \
		grep -E '^(ok|\?)|--- SKIP' $(CACHE)/test.log || true; \
	fi; \
	count() { grep -cE "^[[:space:]]*--- $$1:" $(CACHE)/test.log || true; }; \
	passed=$$(count PASS); failed=$$(count FAIL); skipped=$$(count SKIP); \
	echo "tests run: $$((passed + failed)), failed: $$failed, skipped: $$skipped (all output: .cache/test.log)"; \
	if [ $$status -eq 0 ] && [ $$passed -gt 0 ]; then echo "make test: all passed"; else \
		awk '/^=== (RUN|NAME|CONT) / { now = $$3; next } { said[now] = said[now] $$0 "\n" } \
			/--- FAIL:/ { printf "output of %s:\n%s", $$3, said[$$3] } /^(FAIL\t|panic:)/' $(CACHE)/test.log | tail -n 200; \
		echo "make test: FAILED"; exit 1; \
	fi

torch: $(TORCH_ENV)/ready
$(TORCH_ENV)/ready:
	@echo "make torch: PyTorch, once, 5 GB into $(TORCH_ENV); make test TORCH_ENV= does without it"
	python3 -m venv $(TORCH_ENV)
	$(TORCH_ENV)/bin/python -m pip install -q --disable-pip-version-check -r $(REQUIREMENTS)
	touch $@

# PyPI packages that bring training commands, 1 MB: beside the environment, not in it, so
# that a change of theirs does not build it again.
PUBLISHED_REQUIREMENTS := wrap/testdata/published/requirements.txt
PUBLISHED := $(KEPT)/published-$(shell sha256sum $(PUBLISHED_REQUIREMENTS) | cut -c1-12)
published: $(PUBLISHED)/ready
$(PUBLISHED)/ready:
	python3 -m pip install -q --disable-pip-version-check --no-deps --upgrade --target $(PUBLISHED) -r $(PUBLISHED_REQUIREMENTS)
	touch $@

# The worker inside Ray Train and Tune, 400 MB beside the environment, as the packages above. Not a part of make test:
# Ray gives itself 30 s to start, which are not enough on a machine that runs everything else as well.
RAY_REQUIREMENTS := worker/testdata/ray/requirements.txt
RAY := $(KEPT)/ray-$(shell sha256sum $(RAY_REQUIREMENTS) | cut -c1-12)
test-ray: torch $(RAY)/ready
	HEADROOM_PYTHON=$(TORCH_ENV)/bin/python HEADROOM_RAY=$(RAY) go test $(TAGS) -count=1 -v -run TestRay ./worker
$(RAY)/ready:
	python3 -m pip install -q --disable-pip-version-check --no-deps --upgrade --target $(RAY) -r $(RAY_REQUIREMENTS)
	touch $@

# Jupyter's kernel and its client, 100 MB: beside the environment for the same reason.
NOTEBOOK_REQUIREMENTS := worker/testdata/notebook/requirements.txt
NOTEBOOK := $(KEPT)/notebook-$(shell sha256sum $(NOTEBOOK_REQUIREMENTS) | cut -c1-12)
notebook: $(NOTEBOOK)/ready
$(NOTEBOOK)/ready:
	python3 -m pip install -q --disable-pip-version-check --no-deps --upgrade --target $(NOTEBOOK) -r $(NOTEBOOK_REQUIREMENTS)
	touch $@

# A test opens the report in a real browser.
browser:
	@for name in chromium chromium-browser google-chrome chrome headless-shell; do ! command -v $$name >/dev/null || exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "make test: installing chromium"; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } || echo "make test: chromium could not be installed"; \
	fi

# A test runs headroom on two nodes under Slurm, whose daemons it starts.
slurm:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v slurmd >/dev/null; then \
		echo "make test: installing slurm"; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null; } || echo "make test: slurm could not be installed"; \
	fi

# The worker's tests with another PyTorch: make test-torch TORCH=2.4.1
OTHER = $(KEPT)/torch-$(TORCH)
FRAMEWORKS = $(shell grep -E '^(accelerate|lightning)=' $(REQUIREMENTS)) $(if $(filter 2.4.%,$(TORCH)),transformers==4.57.1,$(shell grep '^transformers=' $(REQUIREMENTS)))
test-torch: notebook
	@test -n "$(TORCH)" || { echo "make test-torch: TORCH is not set: name a version of PyTorch, such as TORCH=2.4.1"; exit 1; }
	@test -e $(OTHER)/ready || { python3 -m venv $(OTHER) && $(OTHER)/bin/python -m pip install -q --disable-pip-version-check torch==$(TORCH) $(FRAMEWORKS) && touch $(OTHER)/ready; }
	HEADROOM_PYTHON=$(OTHER)/bin/python HEADROOM_NOTEBOOK=$(NOTEBOOK) HEADROOM_REQUIRE_TORCH=1 go test -race $(TAGS) -count=1 -timeout 80m -v ./worker

# What checks the project's Python: one environment for each pair of versions, kept
# like that of make torch.
RUFF_VERSION := 0.17.6
MYPY_VERSION := 1.18.2
PYTHON_LINT  := $(KEPT)/ruff-$(RUFF_VERSION)-mypy-$(MYPY_VERSION)

check: $(LINT) $(PYTHON_LINT)/ready $(if $(filter 1,$(HEADROOM_REQUIRE_TORCH)),$(if $(TORCH_ENV),torch))
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "gofmt: run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	go vet $(TAGS) ./...
	go vet ./...
	$(LINT) run --build-tags cuda ./...
	$(PYTHON_LINT)/bin/ruff check --cache-dir $(CACHE)/ruff
	@if [ -e $(TORCH_ENV)/ready ]; then \
		echo "mypy worker/python"; \
		cd worker/python && $(PYTHON_LINT)/bin/mypy --python-executable $(TORCH_ENV)/bin/python --cache-dir $(CACHE)/mypy; \
	else \
		echo "make check: SKIPPED mypy, which needs PyTorch's types: run make torch"; \
		test "$${HEADROOM_REQUIRE_TORCH:-}" != 1; \
	fi

$(PYTHON_LINT)/ready:
	python3 -m venv $(PYTHON_LINT)
	$(PYTHON_LINT)/bin/python -m pip install -q --disable-pip-version-check ruff==$(RUFF_VERSION) mypy==$(MYPY_VERSION)
	touch $@

$(LINT):
	@mkdir -p $(CACHE)
	GOBIN=$(CACHE) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv $(CACHE)/golangci-lint $@

bench:
	go test $(TAGS) -run '^$$' -bench . -benchmem ./...

# Compiles cuda/kernels to PTX, on any machine: NVRTC comes from PyPI. 11.8 is the
# oldest toolkit whose PTX is sufficient; every newer driver accepts it.
NVRTC := $(CACHE)/nvrtc-11.8.89
kernels: $(NVRTC)
	LD_LIBRARY_PATH=$(NVRTC)/nvidia/cuda_nvrtc/lib python3 cuda/kernels/compile.py $(NVRTC)/nvidia/cuda_nvrtc/lib/libnvrtc.so.11.2

$(NVRTC):
	python3 -m pip install -q --no-deps --target $@ nvidia-cuda-nvrtc-cu11==11.8.89

# The allocator for memory of the host, for this machine's architecture. It needs no
# library, not even that of C, so that it loads wherever PyTorch runs.
SPILL := worker/python/headroom_train/spill
spill:
	gcc -O2 -shared -fPIC -nostdlib -s -Wl,--build-id=none -Wl,-z,max-page-size=4096 -o $(SPILL)/area-$$(uname -m).so $(SPILL)/area.c

# Binaries for a GPU machine without Go: copy the checkout with dist/gpu to it and
# run cuda/gpu-test.sh dist/gpu, or bench/gpu-bench.sh dist/gpu OUT.
GPU := dist/gpu
gpu-bundle:
	@mkdir -p $(GPU)
	go build -trimpath $(TAGS) -ldflags '$(LDFLAGS)' -o $(GPU)/headroom ./cmd/headroom
	go build -trimpath $(TAGS) -ldflags '$(LDFLAGS)' -o $(GPU)/gpt2bench ./bench/gpt2
	go build -trimpath $(TAGS) -ldflags '$(LDFLAGS)' -o $(GPU)/allocbench ./bench/allocator
	go test -c $(TAGS) -ldflags '-s -w' -o $(GPU)/driver.test ./cuda/driver
	go test -c $(TAGS) -ldflags '-s -w' -o $(GPU)/nvml.test ./nvml
	go test -c $(TAGS) -ldflags '-s -w' -o $(GPU)/cuda.test ./cuda
	go test -c $(TAGS) -ldflags '-s -w' -o $(GPU)/model.test ./model
	go test -c $(TAGS) -ldflags '-s -w' -o $(GPU)/headroom.test ./cmd/headroom

gpu-test: gpu-bundle
	cuda/gpu-test.sh $(GPU)

gpu-bench: gpu-bundle
	bench/gpu-bench.sh $(GPU) $(GPU)/bench

clean:
	rm -rf bin dist $(CACHE)
