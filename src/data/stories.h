// The embedded corpus: simple English stories, written by a seeded grammar, so that a first training needs no download.
// Story `index` is a pure function of (seed, index); the sequence has no end and can be entered anywhere.
#pragma once

#include <cstdint>
#include <string>

#include "titan/data/document_source.h"

namespace titan {

/// One story of about 100 to 350 words in several paragraphs. Names, objects, places, counts, weather and tense agree
/// from its first sentence to its last, which is what a small model goes on learning after it has learned the words.
std::string write_story(uint64_t seed, uint64_t index);

class StorySource : public DocumentSource {
 public:
  /// Documents in the validation set: about a million bytes.
  static constexpr int64_t kValidationStories = 1000;

  /// Training: stories 0, 1, 2, … without end. Validation: a finite set with other indices under the same seed.
  explicit StorySource(uint64_t seed, bool validation = false) : seed_(seed), validation_(validation) {}

  bool next(Document& document) override;
  void seek(const SourcePosition& start) override { next_ = start.document; }
  std::string reading() const override { return description(); }
  std::string description() const override;
  uint64_t fingerprint() const override;

 private:
  uint64_t seed_;
  bool validation_;
  int64_t next_ = 0;
};

}  // namespace titan
