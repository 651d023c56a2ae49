# make build | run | test | check | bench | clean
# make torch | published | notebook | browser | test-torch TORCH=VERSION | test-ray | test-notebook | kernels | spill | gpu-bundle | gpu-test | gpu-bench
# make wheel | wheels | packages | programs | release

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c

# A release is a tag, such as v0.1.0: that is where a version is written down.
VERSION ?= $(or $(patsubst v%,%,$(shell git describe --tags --always --dirty 2>/dev/null)),development)
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
# Without the GPU: no C compiler is needed, for any machine.
HOST_TAGS := -tags urfave_cli_no_docs

.PHONY: build run test check bench clean torch published notebook test-torch test-ray test-notebook kernels spill gpu-bundle gpu-test gpu-bench browser slurm programs wheel wheels packages pages release

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
# The output of failing tests comes last, so that it is not lost among the rest, and after it a line for each of them
# and for each check of theirs that failed.
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
		grep -E '^[[:space:]]*(FAILED |--- FAIL:)' $(CACHE)/test.log | cut -c 1-1000; \
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

# The extension in real kernels under a limit on their memory. Not a part of make test: an interrupt and a limit can meet
# anywhere in Jupyter's own code, which happens about one time in four on a busy machine.
test-notebook: torch notebook
	cd worker/python/tests && HEADROOM_NOTEBOOK=$(NOTEBOOK) PYTHONPATH=..:$(NOTEBOOK) $(TORCH_ENV)/bin/python notebook.py --kernels

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
	GOOS=darwin CGO_ENABLED=0 go build -trimpath $(HOST_TAGS) -o /dev/null ./cmd/headroom
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

# What builds for other machines than this one, 500 MB: one environment for each set of
# pinned requirements, kept like that of make torch.
PACKAGING := $(KEPT)/packaging-$(shell sha256sum packaging/requirements.txt | cut -c1-12)
$(PACKAGING)/ready:
	python3 -m venv $(PACKAGING)
	$(PACKAGING)/bin/python -m pip install -q --disable-pip-version-check -r packaging/requirements.txt
	ln -sf $$($(PACKAGING)/bin/python -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent)')/zig $(PACKAGING)/bin/zig
	touch $@
FOREIGN_PATH := $(CURDIR)/packaging:$(PACKAGING)/bin:$(PATH)
export TARGET_AMD64 := x86_64-linux-gnu.2.17
export TARGET_ARM64 := aarch64-linux-gnu.2.17

# The allocator for memory of the host, on a machine of the first architecture. It needs no library, not even
# that of C, so that it loads wherever PyTorch runs. zig has C's declarations only where it may link to C.
SPILL := worker/python/headroom_train/spill
spill: export PATH := $(FOREIGN_PATH)
spill: $(PACKAGING)/ready
	gcc -O2 -shared -fPIC -nostdlib -s -Wl,--build-id=none -Wl,-z,max-page-size=4096 -o $(SPILL)/area-x86_64.so $(SPILL)/area.c
	@mkdir -p $(CACHE)
	zig-cc -target $(TARGET_ARM64) -O2 -fPIC -c -o $(CACHE)/area.o $(SPILL)/area.c
	zig-cc -target $(TARGET_ARM64) -shared -nostdlib -s -Wl,--build-id=none -o $(SPILL)/area-aarch64.so $(CACHE)/area.o

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

# Programs for other machines, into dist/programs: with the GPU for Linux, where they need no newer
# glibc than the target says; without it for macOS, and where they shall need no C library.
TARGET_linux-amd64 := $(TARGET_AMD64)
TARGET_linux-arm64 := $(TARGET_ARM64)
programs: program-linux-amd64 program-linux-arm64 program-linux-amd64-static program-linux-arm64-static program-darwin-amd64 program-darwin-arm64

program-%: export PATH := $(FOREIGN_PATH)
program-%: $(PACKAGING)/ready
	GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) $(if $(TARGET_$*),CGO_ENABLED=1 CC='zig-cc -target $(TARGET_$*)',CGO_ENABLED=0) \
		go build -trimpath $(if $(TARGET_$*),$(TAGS),$(HOST_TAGS)) -ldflags '$(LDFLAGS)' -o dist/programs/$*/headroom ./cmd/headroom

# Wheels, into dist. The program is in them twice: CONTRIBUTING.md says why. The same commit
# gives the same bytes.
PLATFORM_linux-amd64  := manylinux_2_17_x86_64.manylinux2014_x86_64
PLATFORM_linux-arm64  := manylinux_2_17_aarch64.manylinux2014_aarch64
PLATFORM_darwin-amd64 := macosx_12_0_x86_64
PLATFORM_darwin-arm64 := macosx_12_0_arm64
wheel: wheel-$(shell go env GOHOSTOS)-$(shell go env GOHOSTARCH)
wheels: wheel-linux-amd64 wheel-linux-arm64 wheel-darwin-amd64 wheel-darwin-arm64

wheel-%: program-%
	@ln -f dist/programs/$*/headroom dist/programs/$*/headroom-train
	@rm -f dist/headroom_train-*-$(PLATFORM_$*).whl
	cd worker/python && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) HEADROOM_VERSION=$(VERSION) \
		HEADROOM_PROGRAMS=$(CURDIR)/dist/programs/$* HEADROOM_PLATFORM=$(PLATFORM_$*) $(PACKAGING)/bin/python -m hatchling build -t wheel -d $(CURDIR)/dist
	$(if $(TARGET_$*),$(PACKAGING)/bin/auditwheel show dist/headroom_train-*-$(PLATFORM_$*).whl)

# What packages have beside the program, into dist/pages.
pages: build
	@mkdir -p dist/pages
	bin/headroom man | gzip -9n >dist/pages/headroom.1.gz
	bin/headroom completion bash >dist/pages/headroom.bash
	bin/headroom completion fish >dist/pages/headroom.fish
	bin/headroom completion zsh >dist/pages/_headroom

# deb and rpm, into dist. A version begins with a digit there, and has no hyphens in an rpm.
packages: package-linux-amd64 package-linux-arm64
package-linux-%: program-linux-% pages
	for kind in deb rpm; do \
		GOARCH=$* VERSION=$(if $(filter 0% 1% 2% 3% 4% 5% 6% 7% 8% 9%,$(VERSION)),,0~)$(subst -,.,$(VERSION)) SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
		$(PACKAGING)/bin/nfpm package --config packaging/nfpm.yaml --packager $$kind --target dist/; done

# All that a release has, with archives and checksums in dist/release. GoReleaser takes a while to build, once.
GORELEASER_VERSION := v2.15.1
GORELEASER := $(KEPT)/goreleaser-$(GORELEASER_VERSION)
release: export PATH := $(FOREIGN_PATH)
release: wheels packages $(GORELEASER)
	TAGS=$(lastword $(TAGS)) HOST_TAGS=$(lastword $(HOST_TAGS)) LDFLAGS='$(LDFLAGS)' VERSION=$(VERSION) \
		SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) COMMITTED=$$(git log -1 --format=%cI) $(GORELEASER) release --clean $(if $(shell git describe --exact-match --tags 2>/dev/null),,--snapshot)

$(GORELEASER):
	@mkdir -p $(CACHE) $(KEPT)
	GOBIN=$(CACHE) go install github.com/goreleaser/goreleaser/v2@$(GORELEASER_VERSION)
	mv $(CACHE)/goreleaser $@

clean:
	rm -rf bin dist $(CACHE)
