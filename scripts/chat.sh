#!/usr/bin/env bash
# Fine-tunes the debug model on conversations and talks with it: trains what is not trained yet (about 90 seconds for the
# model and for its fine-tuning on two cores), then each line that you type is answered.
#   scripts/chat.sh [--prompt "What happens first?"] [options of titan_train generate]
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

cd -- "$TITAN_ROOT"
if [ ! -e outputs/debug_model/checkpoint/step-200 ]; then
  scripts/train.sh configs/debug_model.toml --checkpoint.enable --checkpoint.last_save_model_only
fi
if [ ! -e outputs/finetune_chat/checkpoint/step-100 ]; then
  scripts/train.sh configs/finetune_chat.toml
fi
"$TITAN_ROOT/scripts/setup.sh"
build_targets "$(program_target)"
exec "$TITAN_BUILD/titan_train" generate outputs/finetune_chat --chat "$@"
