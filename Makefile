# `make check` is what CI runs, no more and no less.

GO          ?= go
STATICCHECK  = honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK  = golang.org/x/vuln/cmd/govulncheck@v1.9.0
# Where the vulnerability database is, and how many seconds it has to answer.
VULNDB      ?= https://vuln.go.dev
VULNDB_WAIT ?= 10
FUZZTIME    ?= 5s

.PHONY: check tidy format vet staticcheck vuln race test build fuzz

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

# A finding fails. A database that does not answer is no finding; it is said.
vuln:
	@if curl -fsS --max-time $(VULNDB_WAIT) -o /dev/null $(VULNDB)/index/db.json; then \
		echo "$(GO) run $(GOVULNCHECK) ./..."; \
		timeout 300 $(GO) run $(GOVULNCHECK) -db $(VULNDB) ./...; \
	else \
		echo "govulncheck: NOT RUN, the vulnerability database $(VULNDB) does not answer"; \
	fi

race:
	$(GO) test -race -shuffle=on ./...

test:
	$(GO) test ./...

# Static binaries, with nothing of this machine in them.
build:
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/...

# A short run of every fuzz target there is.
fuzz:
	@set -e; for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "$$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done
