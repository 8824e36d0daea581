#!/usr/bin/env bash
# An option is one row of the schema and one member of a section: the fields that hold one again are counted.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"

# The number may only fall.
kMost=60

bounded() {
  expect 0 python3 "$checkout/scripts/option_copies.py" --most "$kMost"
}

finds_a_copy() {
  mkdir -p src/config include/titan/plan
  cat >src/config/schema_a.cpp <<'END'
  Section training(schema, "training", "", access);
  training.add("loss_chunks", &S::loss_chunks, 8);
  training.add("enable_cpu_offload", &S::enable_cpu_offload, false);
END
  cat >include/titan/plan/plan.h <<'END'
struct PlanRequest {
  int64_t loss_chunks = 8;  // as in the config
  bool cpu_offload = false;
  int64_t shards() const { return 1; }
  TrainingSection training;
};
class Loss {
  int64_t loss_chunks_ = 8, rows_ = 0;
};
END
  expect 0 python3 "$checkout/scripts/option_copies.py" . --most 2
  expect_text "2  include/titan/plan/plan.h: PlanRequest  loss_chunks, cpu_offload"
  expect 1 python3 "$checkout/scripts/option_copies.py" . --most 1
  expect_text "more than 1"
  expect 0 python3 "$checkout/scripts/option_copies.py" . --others
  expect_text "1  include/titan/plan/plan.h: Loss  loss_chunks_"
  expect_text "1  fields in 1 types"
}

check "no more than $kMost fields hold an option of a job again" bounded
check "a field that holds an option again is found by name and by words, in other types on request" finds_a_copy

finish
