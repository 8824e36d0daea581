// The options of torchtitan's Python data loader, which training and validation both have. Private to config.
// None of them does anything here; they are described so that a config that has them is read and told why.
#pragma once

#include <string>

#include "section.h"

namespace titan::detail {

inline void describe_dataloader(Schema& schema, const std::string& name) {
  const std::string why = "a background thread reads and packs the text (data.prefetch)";
  Section loader(
      schema, name, "Workers of a Python data loader.", [](auto& config) -> auto& { return config; });
  loader.accept("num_workers", ValueType::integer, Value(int64_t{0}))
      .later()
      .at_least(0)
      .no_effect(why)
      .help("worker processes");
  loader.accept("persistent_workers", ValueType::boolean, Value(false))
      .later()
      .no_effect(why)
      .help("keep workers between epochs");
  loader.accept("pin_memory", ValueType::boolean, Value(false))
      .later()
      .no_effect("batches are always pinned on the way to a GPU")
      .help("pin batches in host memory");
  loader.accept("prefetch_factor", ValueType::integer, Value())
      .later()
      .at_least(1)
      .no_effect(why)
      .help("batches kept ready per worker");
}

}  // namespace titan::detail
