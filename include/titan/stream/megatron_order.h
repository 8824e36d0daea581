// The order of Megatron-LM: which samples its GPTDataset draws from one file of Megatron-LM (megatron-core
// 0.16, core/datasets), and a stream of them. Everything about the order is computed when it is made, as Megatron does
// before it saves its indices; a position is the number of samples before it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "titan/stream/chunk_stream.h"

namespace titan {

/// The shuffles of NumPy's RandomState(seed): MT19937, seeded as std::mt19937 is.
class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed) : bits_(seed) {}

  /// A number in [0, most], with rejection under the smallest mask of ones that covers `most`.
  uint32_t below_or_at(uint32_t most);

  /// Fisher-Yates from the last element down, as RandomState.shuffle does with an array of one dimension and any type.
  template <typename Element>
  void shuffle(std::span<Element> elements) {
    for (size_t i = elements.size(); i > 1; --i) {
      std::swap(elements[i - 1], elements[below_or_at(static_cast<uint32_t>(i - 1))]);
    }
  }

 private:
  std::mt19937 bits_;
};

/// A part of the entries of a file's index: [first, second) of 1. Nothing: the part is empty.
using FilePart = std::optional<std::pair<double, double>>;

/// Megatron's --split as the parts of training, validation and test, at most three shares: "969, 30, 1". They are
/// computed in float64 as Megatron does, since the rounding decides to which part an entry belongs. Throws
/// Error(bad_config) with what is wrong.
std::array<FilePart, 3> parse_megatron_split(std::string_view shares);

/// What an order is made from.
struct MegatronOrderRequest {
  FilePart part = {{0.0, 1.0}};      ///< of the file
  std::string subject = "the file";  ///< of messages: "the training part of a.bin"
  int64_t sequence_length = 0;       ///< T
  std::optional<int64_t> samples;    ///< the number that the run will read; nothing: one epoch
  uint32_t seed = 0;
  std::string section = "training";  ///< config section of the options in messages
  std::optional<int64_t> memory;     ///< bytes that this process can still allocate; nothing: unknown
};

/// Megatron's document, sample and shuffle indices, where "entries" are those of the file's index. Where sample i
/// begins follows from i, since samples are T tokens apart; what is kept instead is where some of the entries begin. So
/// an order takes 4 bytes for every entry, 4 for every entry in every epoch, and 4 for every sample.
class MegatronOrder {
 public:
  /// `lengths`: ids of each entry of the file. Throws Error(bad_data) if the part has too few ids, if the order has
  /// more than 2³² − 2 samples or entries; Error(out_of_memory) if it does not fit into the memory.
  MegatronOrder(std::vector<int32_t> lengths, const MegatronOrderRequest& request);

  /// Samples in the order: at least as many as were asked for.
  int64_t samples() const { return static_cast<int64_t>(shuffled_.size()); }
  int64_t epochs() const { return epochs_; }
  /// How long it took to compute the order.
  double seconds() const { return seconds_; }

  /// The numbers of the entries of all epochs, in the order in which they are joined.
  const std::vector<int32_t>& entries() const { return entries_; }

  struct Place {
    int64_t position = 0;  ///< index into entries()
    int64_t offset = 0;    ///< ids of it before the place

    bool operator==(const Place&) const = default;
  };
  /// Where sample `index` begins; it has T + 1 ids from there on.
  Place place_of(int64_t index) const;

  /// Everything that determines the order, apart from the file: for a saved position.
  std::string description() const;

 private:
  /// For every kStride-th position the first token is kept: looking for a place adds at most as many lengths.
  static constexpr int64_t kStride = 64;

  void count_epochs();
  void check_memory() const;
  void fill_entries(NumpyRandom& random);
  void fill_starts();
  void fill_samples(NumpyRandom& random);
  int64_t tokens(int64_t epochs) const { return epochs * tokens_per_epoch_; }
  /// Samples in that many epochs: their last ids that fill no sample are dropped.
  int64_t samples_in(int64_t epochs) const { return (tokens(epochs) - 1) / request_.sequence_length; }
  [[noreturn]] void fail(const std::string& what, const std::string& remedy) const;

  std::vector<int32_t> lengths_;
  MegatronOrderRequest request_;
  int64_t begin_ = 0, end_ = 0;  // the entries of the part
  int64_t tokens_per_epoch_ = 0;
  int64_t epochs_ = 1;
  /// The last epoch is shuffled by itself, after all others, because less than 80 % of it was asked for.
  bool separate_ = false;
  double seconds_ = 0;
  std::vector<int32_t> entries_;
  std::vector<int64_t> starts_;  // in the joined ids: of positions 0, kStride, 2·kStride, … in entries_
  std::vector<uint32_t> shuffled_;
};

/// The samples of one file in Megatron's order, as chunks. A state is the number of samples before it.
class MegatronStream : public ChunkSource {
 public:
  /// `request.sequence_length` is T. Throws Error(bad_data) if `source` is not a single file of Megatron-LM, or see
  /// MegatronOrder; `dataset`: for messages.
  MegatronStream(std::unique_ptr<DocumentSource> source, std::shared_ptr<const Tokenizer> tokenizer,
                 const MegatronOrderRequest& request, std::string dataset);

  bool next(Chunk& chunk) override;
  bool skip(Chunk& chunk) override;
  StreamState state() const override;
  void restore(const StreamState& state) override;
  const DataCounters& counters() const override { return counters_; }
  std::vector<std::string> take_notices() override { return source_->take_notices(); }
  std::string reading() const override { return source_->reading(); }
  std::string place_of(const StreamState& state) const override;

  /// For messages: the file, and the order of its samples.
  std::string description() const;
  const MegatronOrder& order() const { return order_; }

 private:
  std::unique_ptr<DocumentSource> source_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string dataset_;
  int64_t sequence_length_;
  EntryIndex* entries_;
  MegatronOrder order_;
  uint64_t fingerprint_ = 0;
  CorpusRecord corpus_;
  int64_t next_ = 0;
  DataCounters counters_;
};

}  // namespace titan
