#!/usr/bin/env bash
# Loss curves of one model in one dimension (FSDP) and in two (FSDP and tensor parallel), drawn over each other.
#   scripts/bench/loss_curves.sh [OPTION of loss_compare.sh...]
# Without options: the debug model on 4 ranks of this machine, 200 steps. On a cluster, e.g. for the curves of rows A and B:
#   scripts/bench/loss_curves.sh --steps 3000 --baseline-ngpus 64 --test-ngpus 64 --baseline-config configs/bench/A1.toml \
#     --test-config configs/bench/A1.toml --baseline-options "--training.global_batch_size=64" --test-options \
#     "--training.global_batch_size=64 --parallelism.data_parallel_shard_degree=8 --parallelism.tensor_parallel_degree=8"
case " $* " in
  *" -h "* | *" --help "*) sed -n '2,/^case/{/^case/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit ;;
esac
folder=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
exec "$folder/loss_compare.sh" . . --steps 200 --baseline-ngpus 4 --test-ngpus 4 --output-folder outputs/loss_curves \
  --baseline-options "--training.local_batch_size=2" \
  --test-options "--training.local_batch_size=4 --parallelism.data_parallel_shard_degree=2 --parallelism.tensor_parallel_degree=2" "$@"
