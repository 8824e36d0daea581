// Peak memory of LlamaBlock::forward and LlamaHead::forward when nothing is saved for backward: the live tensors at
// each step.
#include <algorithm>

#include "titan/model/llama/llama.h"

namespace titan {

int64_t llama_block_forward_bytes(const LlamaArguments& a, const ActivationShape& shape) {
  const int64_t tokens = shape.tokens() / shape.tensor_ranks;
  const int64_t stream = tokens * a.dim * shape.element_size;  // also of queries, attention's output
  const int64_t gathered = shape.tensor_ranks > 1 ? stream * shape.tensor_ranks : 0;
  const int64_t key_value = 2 * tokens * a.kv_heads * a.head_dim() * shape.element_size;
  const int64_t hidden = tokens * a.hidden * shape.element_size;
  const int64_t log_sum_exp = 4 * tokens * a.heads;
  // The block's input is live throughout.
  return stream + std::max({
                      stream + gathered + stream + key_value,                   // norm → queries, keys and values
                      2 * stream + key_value + log_sum_exp + shape.ring_bytes,  // queries → attention
                      stream + gathered + stream,                               // attention → output product
                      2 * stream + gathered + 2 * hidden,                       // sum and its norm → gate and up
                      stream + 3 * hidden,                                      // gate and up → their activation
                      stream + hidden + gathered + stream,                      // activation → down
                      stream + hidden + 2 * stream,                             // down → the closing sum
                  });
}

int64_t llama_head_forward_bytes(const LlamaArguments& a, const ActivationShape& shape) {
  const int64_t stream = shape.tokens() / shape.tensor_ranks * a.dim * shape.element_size;
  return 2 * stream + (shape.tensor_ranks > 1 ? stream * shape.tensor_ranks : 0);
}

}  // namespace titan
