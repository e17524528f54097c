# `make check` is what CI runs, no more and no less.

GO          ?= go
STATICCHECK  = honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK  = golang.org/x/vuln/cmd/govulncheck@v1.9.0
NFPM         = github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.4
FUZZTIME    ?= 5s
ROUNDS      ?= 4

.PHONY: check tidy format vet staticcheck vuln race test build package fuzz bench

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
bench:
	$(GO) test -run '^$$' -bench . -benchtime $(ROUNDS)x -timeout 2h ./bench
	$(GO) test -run '^$$' -bench Forward -benchmem ./relaycore
