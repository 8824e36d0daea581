#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/base/text.h"
#include "titan/stream/megatron_order.h"

namespace titan {
namespace {

EntryIndex* entries_of(DocumentSource& source) {
  if (EntryIndex* entries = source.entry_index()) return entries;
  throw Error(
      ExitCode::bad_data,
      fmt::format("data.order = \"megatron\" reads one .bin file of Megatron-LM with its .idx, and {} is {}. Name "
                  "such a file, or leave data.order at \"documents\".",
                  source.description(), source.format().empty() ? "another source" : source.format()));
}

/// `count` ids of `all` from `first` on.
TokenView part_of(const TokenView& all, int64_t first, int64_t count) {
  TITAN_CHECK(first >= 0 && count >= 0 && first + count <= static_cast<int64_t>(all.size), first, count, all.size);
  TokenView part = all;
  part.data = static_cast<const std::byte*>(all.data) + first * size_of(all.type);
  part.size = static_cast<size_t>(count);
  if (part.unverified_place >= 0) part.unverified_place += first;
  return part;
}

/// The words of an order in two parts: those that follow from the number of samples asked for, such as "2 epochs with
/// the last one separate", and the rest. Both are empty if the order is not Megatron's.
std::pair<std::string, std::string> split_epochs(const std::string& order) {
  constexpr std::string_view kBegin = ", ";
  const size_t end = order.rfind(", seed ");
  const size_t begin = end == order.npos || end == 0 ? order.npos : order.rfind(kBegin, end - 1);
  if (begin == order.npos) return {};
  const std::string epochs = order.substr(begin + kBegin.size(), end - begin - kBegin.size());
  if (epochs.find(" epoch") == epochs.npos) return {};
  return {epochs, order.substr(0, begin) + order.substr(end)};
}

/// If the orders differ in their epochs alone: why, and what to do; else empty.
std::string describe_other_length(const std::string& then, const std::string& now) {
  const auto [old_epochs, old_rest] = split_epochs(then);
  const auto [new_epochs, new_rest] = split_epochs(now);
  if (old_epochs.empty() || old_epochs == new_epochs || old_rest != new_rest) return {};
  return fmt::format(
      "training.steps and training.global_batch_size say how many of Megatron's samples the run reads, and so how many "
      "epochs are shuffled together. The position was saved in the order of {}, and the order is now that of {}. Set "
      "both options as they were, or restart the data with checkpoint.exclude_from_loading = [\"dataloader\"].",
      old_epochs, new_epochs);
}

}  // namespace

MegatronStream::MegatronStream(std::unique_ptr<DocumentSource> source, std::shared_ptr<const Tokenizer> tokenizer,
                               const MegatronOrderRequest& request, std::string dataset)
    : source_(std::move(source)),
      tokenizer_(std::move(tokenizer)),
      dataset_(std::move(dataset)),
      sequence_length_(request.sequence_length),
      entries_(entries_of(*source_)),
      order_(entries_->lengths(), request) {
  source_->check_tokenizer(*tokenizer_);
  const std::string order = fmt::format("{}, {}", source_->order(), order_.description());
  fingerprint_ = source_->fingerprint() ^ tokenizer_->fingerprint() ^ name_key(order);
  corpus_ = record_corpus(source_->file_sizes(), order, tokenizer_->fingerprint());
}

bool MegatronStream::next(Chunk& chunk) {
  if (!skip(chunk)) return false;
  const int64_t wanted = sequence_length_ + 1;
  MegatronOrder::Place place = order_.place_of(next_ - 1);
  for (int64_t have = 0; have < wanted; ++place.position, place.offset = 0) {
    const TokenView ids = entries_->entry(order_.entries()[static_cast<size_t>(place.position)]);
    const int64_t taken = std::min(wanted - have, static_cast<int64_t>(ids.size) - place.offset);
    if (taken == 0) continue;  // an empty entry
    part_of(ids, place.offset, taken).append_to(chunk.tokens);
    if (place.offset == 0 && have < sequence_length_) chunk.document_starts.push_back(static_cast<int32_t>(have));
    if (place.offset == 0 && have == sequence_length_) chunk.ends_document = true;
    have += taken;
    ++counters_.documents;
  }
  counters_.tokens += sequence_length_;
  return true;
}

bool MegatronStream::skip(Chunk& chunk) {
  if (next_ == order_.samples()) return false;
  chunk.tokens.clear();
  chunk.document_starts.clear();
  chunk.counts.clear();  // empty: every token but the first is a label
  chunk.ends_document = false;
  ++next_;
  return true;
}

StreamState MegatronStream::state() const {
  StreamState state;
  state.chunk = next_;
  state.fingerprint = fingerprint_;
  state.corpus = corpus_;
  return state;
}

void MegatronStream::restore(const StreamState& state) {
  if (!state.sources.empty()) {
    refuse_corpus(source_->description(),
                  "the position was saved in a mixture, and data.order = \"megatron\" reads one "
                  "file");
  }
  check_saved_corpus(state, {*source_, *tokenizer_, fingerprint_, corpus_, dataset_,
                             describe_other_length(state.corpus.order, corpus_.order)});
  if (state.chunk > order_.samples()) {
    refuse_corpus(source_->description(), fmt::format("{} samples had been read, and its order has {}",
                                                      with_thousands(state.chunk), with_thousands(order_.samples())));
  }
  next_ = state.chunk;
  counters_ = {};
}

std::string MegatronStream::description() const {
  return fmt::format("{}: {}", source_->description(), order_.description());
}

std::string MegatronStream::place_of(const StreamState& state) const {
  return fmt::format("sample {} of {} in Megatron's order of {}", with_thousands(state.chunk),
                     with_thousands(order_.samples()), source_->description());
}

}  // namespace titan
