# Wayleave. `make help` lists what there is.
# ARGS passes through, as in: make demo ARGS="--headless --assert --json"

SHELL := bash
ARGS ?=
PREFIX ?= /usr/local
DESTDIR ?=
LAB := target/debug/wayleave-lab

.PHONY: help demo test check bench soak repeat fresh fuzz console build release install uninstall deb deb-source

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build ## play the whole exchange with real routers, about a minute after the first build
	@$(LAB) demo $(ARGS)

test: ## everything that must hold: formatting, lints, documentation, tests, the demo as a test
	@scripts/setup
	@scripts/toolchain
	@scripts/test

check: ## the quick part of `make test`: formatting, lints, documentation, scripts
	@scripts/toolchain
	@scripts/test check

bench: ## the benchmarks in their short form, to target/bench: JSON, plots, a page of all
	@scripts/toolchain
	@scripts/bench $(ARGS)

soak: ## the long tests (ARGS="NAME" picks some)
	@scripts/setup
	@scripts/toolchain
	@scripts/soak $(ARGS)

repeat: ## the tests that wait or start processes, 20 times under load; resumes (ROUNDS=, MINUTES=, JOBS=, ARGS="MODULE")
	@scripts/setup
	@scripts/toolchain
	@scripts/repeat $(ARGS)

fresh: ## both commands on a fresh Debian, in the background (ARGS="demo" or "test", "--wait" to wait); needs root
	@scripts/fresh-root $(ARGS)

console: build ## the console's page, built anew from web/ and played in Chromium (needs Node 20 and npm)
	@scripts/console build
	@scripts/console test

fuzz: ## every fuzz target for a while, or those of ARGS (SECONDS_EACH=60)
	@scripts/toolchain
	@scripts/fuzz $(ARGS)

release: ## what is installed, reproducibly: target/dist/release
	@scripts/setup demo
	@scripts/toolchain
	@scripts/release

install: ## after `make release`: programs, manual pages, completions, units (PREFIX=/usr/local, DESTDIR=)
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install

uninstall: ## removes what `make install` put there
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install --uninstall

deb: ## after `make release`: Debian packages, to target/dist/deb
	@scripts/deb

deb-source: ## a Debian source package of the last commit with all crates, to target/dist/deb-source
	@scripts/deb-source

build: ## what the demonstration runs: target/debug/wayleave and wayleave-lab
	@scripts/setup demo
	@scripts/toolchain
	@scripts/build
