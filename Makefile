# make build | run | test | check | bench | clean

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo development)
LDFLAGS := -s -w -X main.version=$(VERSION)
CACHE   := $(CURDIR)/.cache

LINT_VERSION := v2.10.1
LINT         := $(CACHE)/golangci-lint-$(LINT_VERSION)

.PHONY: build run test check bench clean

build:
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/headroom ./cmd/headroom

# Trains the gpt preset from the start, whatever an earlier run of it came to.
run: build
	bin/headroom run --again configs/presets/gpt.yaml

# Every test, with the race detector and nothing shortened. Fetches modules
# first, so that a slow network is not taken for a slow test.
test:
	@mkdir -p $(CACHE)
	@go mod download
	@status=0; go test -race -timeout 20m -v ./... >$(CACHE)/test.log 2>&1 || status=$$?; \
	if [ $$status -ne 0 ]; then \
		grep -vE '^(=== (RUN|PAUSE|CONT|NAME)|[[:space:]]*--- PASS)' $(CACHE)/test.log || true; \
	else \
		grep -E '^(ok|\?)|--- SKIP' $(CACHE)/test.log || true; \
	fi; \
	count() { grep -cE "^[[:space:]]*--- $$1:" $(CACHE)/test.log || true; }; \
	passed=$$(count PASS); failed=$$(count FAIL); skipped=$$(count SKIP); \
	echo "tests run: $$((passed + failed)), failed: $$failed, skipped: $$skipped (all output: .cache/test.log)"; \
	if [ $$status -eq 0 ] && [ $$passed -gt 0 ]; then echo "make test: all passed"; else echo "make test: FAILED"; exit 1; fi

check: $(LINT)
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "gofmt: run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	$(LINT) run ./...

$(LINT):
	@mkdir -p $(CACHE)
	GOBIN=$(CACHE) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv $(CACHE)/golangci-lint $@

bench:
	go test -run '^$$' -bench . -benchmem ./...

clean:
	rm -rf bin $(CACHE)
