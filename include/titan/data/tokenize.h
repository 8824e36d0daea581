// What `titan_train data tokenize` does: a corpus of text, or of ids that another package made, becomes a .bin file of
// ids and its index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "titan/data/document_source.h"
#include "titan/data/tokenizer.h"
#include "titan/data/tokenizer_tools.h"

namespace titan {

/// Ids that another package made: their vocabulary, as far as it has to be known.
struct GivenIds {
  int64_t vocabulary = 0;
  int32_t bos = Tokenizer::kNoId, eos = Tokenizer::kNoId;
  std::string maker;  ///< whose ids they are, for people
};

struct Tokenization {
  DatasetOptions dataset;
  std::filesystem::path tokenizer;
  std::optional<GivenIds> ids;             ///< instead of a tokenizer: `dataset.text_field` holds lists of ids
  std::filesystem::path output;            ///< must end in .bin
  int64_t threads = 0;                     ///< 0: one per processor
  bool overwrite = false;                  ///< begin anew over what is there
  int64_t save_bytes = 64 << 20;           ///< of ids between two points from which a killed run resumes
  std::function<void()> on_saved = [] {};  ///< after each of them
};

/// Encodes the corpus with all cores into OUTPUT.part, notes now and then how far it has come, and gives the file its
/// name and its index at the end. Called again after having been killed it resumes from the last note; the file is the
/// same bytes then. Says on `out` what was made. Throws Error: bad_data as reading does, bad_config when the output is
/// already there, is another corpus's, falls into this one or is being written by another process, storage when it
/// cannot be written.
void tokenize_corpus(const Tokenization& wanted, std::ostream& out);

// What a command writes must not fall into the corpus that it reads. Private to data.

/// A file to be written, there already or not, and the option that named it.
struct NamedOutput {
  std::filesystem::path file;
  std::string_view option;
};

/// Throws Error(bad_config) when writing one of `outputs` would change the corpus that `path` (a file, a folder or a
/// glob) names: the output is one of its files (also by a link), or `path` would match the output afterwards. Throws as
/// find_text_files does, which looks through the corpus once for all outputs.
void refuse_outputs_in_corpus(const std::string& path, const std::vector<NamedOutput>& outputs);

// Whether what `tokenizer train` is to write can be written, judged before hours of learning. Private to data.

/// Throws Error(storage) where an output cannot be made, Error(bad_config) where one is there already (unless it may be
/// overwritten) or the two forms would fall on each other. Looks at no text.
void check_outputs(const TokenizerTraining& training);

/// Throws Error(bad_config) where an output falls on, or into, the corpus.
void check_outputs_against_corpus(const TokenizerTraining& training);

}  // namespace titan
