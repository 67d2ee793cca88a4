# Wayleave. `make help` lists what there is.
# ARGS passes through, as in: make demo ARGS="--headless --assert --json"

SHELL := bash
ARGS ?=

.PHONY: help demo test check bench soak fuzz build

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build ## play the whole exchange with real routers, about a minute after the first build
	@target/debug/wayleave demo $(ARGS)

test: ## everything that must hold: formatting, lints, documentation, tests, the demo as a test
	@scripts/toolchain
	@scripts/setup
	@scripts/test

check: ## the quick part of `make test`: formatting, lints, documentation
	@scripts/toolchain
	@scripts/test check

bench: ## the benchmarks in their short form, to target/bench: JSON, plots, a page of all
	@scripts/toolchain
	@scripts/bench $(ARGS)

soak: ## the long tests (ARGS="NAME" picks some)
	@scripts/toolchain
	@scripts/setup
	@scripts/soak $(ARGS)

fuzz: ## every fuzz target for a while (SECONDS_EACH=60)
	@scripts/toolchain
	@scripts/fuzz

build: ## the binary, target/debug/wayleave
	@scripts/toolchain
	@scripts/setup
	@echo "building (the first time takes some minutes)"
	@# With the features that all crates' tests have together, as in scripts/test: what one of them has built, the other need not.
	@cargo build --quiet --workspace --profile test --bin wayleave --example fetch_routers
