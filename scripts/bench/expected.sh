#!/usr/bin/env bash
# Writes docs/benchmarks/h200_expected.md: what each part of a step should take on an H200, from counted bytes and
# operations. Needs no GPU and measures nothing.
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

build_targets bench_expected
"$TITAN_BUILD/bench_expected" >"$TITAN_ROOT/docs/benchmarks/h200_expected.md"
say "docs/benchmarks/h200_expected.md"
