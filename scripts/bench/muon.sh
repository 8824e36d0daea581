#!/usr/bin/env bash
# Muon's step against torch.optim.Muon, or losses with AdamW and Muon; docs/muon.md
#   scripts/bench/muon.sh [--pairs 7] [--rows "block of 1B/float32"] [--threads N] [--losses] [--quick] [--check]
# TITAN_TEST_PYTHON names the Python with torch 2.11.0; without it the tests' own environment is used.
. "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

build_targets titan_train bench_muon
python=$("$TITAN_ROOT/scripts/test_python.sh")
exec "$python" "$TITAN_ROOT/scripts/bench/muon.py" --binary "$TITAN_BUILD/titan_train" \
  --bench "$TITAN_BUILD/bench_muon" --python "$python" "$@"
