// The directions of `titan_train convert`, without the parsing of the command line: weights between checkpoints and the
// files of other programs. A conversion is fully checked before writing, streamed in bounded memory, and read back
// before the output gets its final name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>

#include "titan/config/job_config.h"

namespace titan {

/// Throws Error(storage) if `folder` is not a folder; the message says what to name instead.
void expect_folder(const std::filesystem::path& folder);

struct WeightConversion {
  std::filesystem::path from, to;  // `to` must not exist yet
  const JobConfig& config;         // names the model, training.dtype, the tokenizer
  bool names_model = false;        // the user named the model; else it is recognised, or model.from_hf describes it
  bool names_tokenizer = false;    // the user named one; else it is that of the run that saved the checkpoint
  std::string dtype;               // to-hf: float32, bfloat16, float16; empty: as stored
  int64_t shard_bytes = 0;         // to-hf: maximum file size; 0: as in transformers
  int64_t data_ranks = 0;          // to-2024, to-2026: data-parallel ranks of the run that loads it; 0: as saved
};

/// Prints what it found and wrote to `out`. Throws Error: bad_config if the files contain another model than the
/// config's, storage for files that are missing, damaged or cannot be written.
void convert_from_hugging_face(const WeightConversion& conversion, std::ostream& out);
void convert_to_hugging_face(const WeightConversion& conversion, std::ostream& out);
void convert_from_meta(const WeightConversion& conversion, std::ostream& out);
void convert_to_2024(const WeightConversion& conversion, std::ostream& out);
void convert_to_2026(const WeightConversion& conversion, std::ostream& out);

/// Prints the contents of `from`, a checkpoint or a Hugging Face folder, and reads all of it. Throws Error(storage) for
/// damage and for tensor names that do not belong to the model.
void verify_weights(const WeightConversion& conversion, std::ostream& out);

}  // namespace titan
