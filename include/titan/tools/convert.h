// What the directions of `titan_train convert` do, apart from reading the command line: weights between checkpoints and
// the files of other programs. Everything is checked before anything is written, streamed in a bounded memory, and
// read back before it gets its name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>

#include "titan/config/job_config.h"

namespace titan {

/// Throws Error(storage) with what to name instead, unless `folder` is a folder.
void expect_folder(const std::filesystem::path& folder);

struct WeightConversion {
  std::filesystem::path from, to;  // `to`: what must not be there yet
  const JobConfig& config;         // names the model, training.dtype, the tokenizer
  bool names_model = false;        // the user said which; else it is recognised, or what model.from_hf describes
  bool names_tokenizer = false;    // the user said which tokenizer; else it is that of the run that saved a checkpoint
  std::string dtype;               // to-hf: float32, bfloat16, float16; empty: as stored
  int64_t shard_bytes = 0;         // to-hf: of a file, at most; 0: as transformers does
  int64_t data_ranks = 0;          // to-2024, to-2026: data-parallel ranks of the run that will load; 0: as saved
};

/// What was found and done goes to `out`. Throws Error: bad_config when the files are another model than the config's,
/// storage for files that are missing, damaged or cannot be written.
void convert_from_hugging_face(const WeightConversion& conversion, std::ostream& out);
void convert_to_hugging_face(const WeightConversion& conversion, std::ostream& out);
void convert_from_meta(const WeightConversion& conversion, std::ostream& out);
void convert_to_torch(const WeightConversion& conversion, std::ostream& out);
void convert_to_2024(const WeightConversion& conversion, std::ostream& out);
void convert_to_2026(const WeightConversion& conversion, std::ostream& out);

/// Says what is in `from`, a checkpoint or a folder of Hugging Face's, and reads all of it. Throws Error(storage) for
/// damage and for names that are not the model's.
void verify_weights(const WeightConversion& conversion, std::ostream& out);

}  // namespace titan
