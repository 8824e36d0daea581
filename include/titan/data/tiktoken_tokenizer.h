// Llama 3's tokenizer over a tiktoken model file (torchtitan.md section 6): byte-pair encoding by rank and 256 special
// tokens after the base vocabulary. Encoding is the splitter, a cache of short pieces, and the byte-pair encoder.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "titan/data/byte_pair_encoder.h"
#include "titan/data/llama3_splitter.h"
#include "titan/data/tokenizer.h"

namespace titan {

class TiktokenTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kSpecialTokens = 256;

  /// `tokens[rank]`: what read_tiktoken_file gives.
  explicit TiktokenTokenizer(std::vector<std::string> tokens);
  ~TiktokenTokenizer() override;

  void encode_append(std::string_view text, std::vector<int32_t>& ids) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  int64_t vocabulary_size() const override { return encoder_.size() + kSpecialTokens; }
  int32_t bos_id() const override { return encoder_.size(); }
  int32_t eos_id() const override { return encoder_.size() + 1; }
  std::string name() const override { return "tiktoken"; }
  std::string description() const override;
  uint64_t fingerprint() const override { return fingerprint_; }

  /// Ids at which generated text ends: end_of_text and eot_id.
  std::vector<int32_t> stop_ids() const { return {eos_id(), bos_id() + 9}; }

  /// Name of special token `index` of 256: "<|begin_of_text|>" is 0.
  static std::string special_name(int32_t index);

 private:
  struct Scratch;  // what one encoding thread needs; kept between calls, because the cache gets better with use
  class Lease;

  void encode_segment(std::string_view segment, Scratch& scratch, std::vector<int32_t>& ids) const;

  BytePairEncoder encoder_;
  Llama3Splitter splitter_;
  uint64_t fingerprint_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace titan
