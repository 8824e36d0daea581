#!/usr/bin/env bash
# What the control plane sends, holds and computes for each rank, with up to 1,024 ranks on this machine
#   scripts/bench/control_plane.sh [--ranks 64,256,1024] [--per-process 16] [--quick] [--check]
# docs/benchmarks/control_plane.md has the method and what follows for 16,384 ranks.
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

build_targets bench_control_plane
exec python3 "$TITAN_ROOT/scripts/bench/control_plane.py" --binary "$TITAN_BUILD/bench_control_plane" "$@"
