# `make check` is what CI runs, no more and no less.

GO          ?= go
STATICCHECK  = honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK  = golang.org/x/vuln/cmd/govulncheck@v1.9.0
NFPM         = github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.4
FUZZTIME    ?= 5s

comma       := ,

.PHONY: check tidy format vet staticcheck vuln race test build package fuzz bench bench-edge bench-quick bench-relay bench-publish

# The tests come last, so that their lines end the output.
check: tidy format vet staticcheck vuln race

tidy:
	$(GO) mod tidy -diff
	$(GO) mod verify

format:
	@unformatted=$$(gofmt -l .) && if [ -n "$$unformatted" ]; then echo "gofmt -w is wanted for:"; echo "$$unformatted"; exit 1; fi

vet:
	$(GO) vet ./...
	$(GO) fix -diff ./...

staticcheck:
	$(GO) run $(STATICCHECK) ./...

# A finding (exit status 3) fails. A database that does not answer is no finding; it is said.
vuln:
	@out=$$(timeout 300 $(GO) run $(GOVULNCHECK) ./... 2>&1) && { echo "$$out"; exit 0; }; \
	echo "$$out"; \
	case "$$out" in \
	*"exit status 3"*) exit 1;; \
	*) echo "govulncheck: NOT RUN to its end, see above";; \
	esac

# The tests meet real programs; a slow machine may take its time for them.
race:
	$(GO) test -race -shuffle=on -timeout 20m ./...

test:
	$(GO) test ./...

# Static binaries, with nothing of this machine in them.
build:
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/...

# A Debian package in bin/package, the same bytes wherever it is made; see docs/install.md.
package:
	deploy/package.sh bin/package

# A short run of every fuzz target there is.
fuzz:
	@set -e; for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "$$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

# What the programs cost, as docs/benchmarks.md has it, on a machine that is at rest.
# The edge's is best run as root: in namespaces of its own, with peers by debootstrap.
bench: bench-edge bench-relay

# All of these may be given: make bench-edge ROUNDS=3 OPS=echo64,paced PEERS=nginx ENGINE=loop OUT=run.json
EDGE = $(GO) run ./bench/edge -rounds $(or $(ROUNDS),$(1)) -engine $(or $(ENGINE),auto) -out $(or $(OUT),$(2)) \
	$(if $(or $(OPS),$(3)),-ops $(or $(OPS),$(3))) $(if $(PEERS),-peers $(PEERS)) $(EDGEFLAGS)

bench-edge:
	@mkdir -p bin
	$(call EDGE,5,bin/bench-edge.json,)

bench-quick:
	@mkdir -p bin
	$(call EDGE,3,bin/bench-quick.json,handshake$(comma)echo64$(comma)paced$(comma)refusal)

bench-relay:
	$(GO) test -run '^$$' -bench . -benchtime $(or $(ROUNDS),4)x -timeout 2h ./bench
	$(GO) test -run '^$$' -bench Forward -benchmem ./relaycore

# Puts the runs that are kept into docs/benchmarks.md and its chart.
bench-publish:
	$(GO) run ./bench/edge publish bench/testdata/edge-*.json
