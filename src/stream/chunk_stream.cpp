#include "titan/stream/chunk_stream.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <numeric>

#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/base/text.h"

namespace titan {

std::string ChunkSource::place_of(const StreamState& state) const { return fmt::format("chunk {}", state.chunk); }

ChunkStream::ChunkStream(std::unique_ptr<DocumentSource> source, std::shared_ptr<const Tokenizer> tokenizer,
                         ChunkOptions options)
    : source_(std::move(source)), tokenizer_(std::move(tokenizer)), options_(std::move(options)) {
  TITAN_CHECK(options_.sequence_length > 0, options_.sequence_length);
  source_->check_tokenizer(*tokenizer_);
  // A token offset is valid for one tokenizer only, so the fingerprint of a saved state includes the tokenizer.
  fingerprint_ = source_->fingerprint() ^ tokenizer_->fingerprint();
  corpus_ = record_corpus(source_->file_sizes(), source_->order(), tokenizer_->fingerprint());
}

bool ChunkStream::next(Chunk& chunk) {
  const bool found = packs_conversations() ? next_conversations(chunk) : next_packed(chunk);
  take_used_counters();
  return found;
}

bool ChunkStream::next_packed(Chunk& chunk) {
  auto wanted = static_cast<size_t>(options_.sequence_length) + 1;
  while (buffer_.size() - used_ < wanted) {
    if (!read_document()) return false;
  }
  auto begin = buffer_.begin() + static_cast<std::ptrdiff_t>(used_);
  chunk.tokens.assign(begin, begin + static_cast<std::ptrdiff_t>(wanted));
  chunk.document_starts.clear();
  chunk.counts.clear();
  chunk.ends_document = false;
  int64_t first = position();
  for (const Origin& origin : origins_) {
    int64_t index = origin.first_token - first;
    if (index == options_.sequence_length) chunk.ends_document = true;
    if (index >= 0 && index < options_.sequence_length) chunk.document_starts.push_back(static_cast<int32_t>(index));
  }
  move_on(advance());
  return true;
}

bool ChunkStream::next_conversations(Chunk& chunk) {
  const int64_t length = options_.sequence_length, first = position();
  const auto end_of_buffer = [this] { return erased_ + std::ssize(buffer_); };
  while (end_of_buffer() - first < length + 1 && read_document()) continue;
  chunk.document_starts.clear();
  int64_t used = 0;
  for (size_t i = 0; i < origins_.size(); ++i) {
    const int64_t begin = origins_[i].first_token - first;
    const int64_t end = (i + 1 < origins_.size() ? origins_[i + 1].first_token : end_of_buffer()) - first;
    if (begin < 0) continue;
    if (end > length + 1) break;
    chunk.document_starts.push_back(static_cast<int32_t>(begin));
    used = end;
  }
  if (used == 0) return false;
  const auto copy = [&](const auto& from, auto& to) {
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(used_);
    to.assign(begin, begin + static_cast<std::ptrdiff_t>(used));
    to.resize(static_cast<size_t>(length) + 1, 0);
  };
  copy(buffer_, chunk.tokens);
  copy(counts_, chunk.counts);
  if (used < length) chunk.document_starts.push_back(static_cast<int32_t>(used));
  chunk.ends_document = used == length;
  move_on(used);
  return true;
}

void ChunkStream::move_on(int64_t tokens) {
  used_ += static_cast<size_t>(tokens);
  ++chunk_;
  // Keep the document of the last used token and those after it: state() refers to it.
  while (origins_.size() > 1 && origins_[1].first_token < position()) origins_.pop_front();
}

bool ChunkStream::read_document() {
  Document document;
  while (!exhausted_ && !source_->next(document)) {
    take_source_counters();
    finish_pass();
  }
  if (exhausted_) return false;
  const size_t before = origins_.size();
  append_document(document);
  ++counters_.documents;
  take_source_counters();
  if (origins_.size() > before) origins_.back().counters = counters_;
  return true;
}

/// Truncates a conversation that is longer than a sequence. Returns false if the conversation must be dropped, because
/// of drops_long or because what remains has no labels.
bool ChunkStream::fits(EncodedChat& chat, const SourcePosition& start) {
  const auto most = static_cast<size_t>(options_.sequence_length) + 1;
  if (chat.ids.size() > most) {
    if (counters_.long_conversations++ == 0) {
      notices_.push_back(fmt::format(
          "{}: this conversation has {} tokens, but a sequence of {}.seq_len holds {}; such conversations are {} "
          "(data.long_conversations) and counted",
          source_->place_of(start), with_thousands(std::ssize(chat.ids)), options_.section,
          with_thousands(static_cast<int64_t>(most)), options_.drops_long ? "left out" : "cut"));
    }
    if (options_.drops_long) return false;
    chat.ids.resize(most);
    chat.counts.resize(most);
  }
  // The first token is never a label: its input would be in another conversation.
  if (!chat.counts.empty()) chat.counts[0] = 0;
  return std::find(chat.counts.begin(), chat.counts.end(), 1) != chat.counts.end();
}

void ChunkStream::append_document(Document& document) {
  if (document.chat && !fits(*document.chat, document.start)) return;
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(used_));
  if (document.chat) counts_.erase(counts_.begin(), counts_.begin() + static_cast<std::ptrdiff_t>(used_));
  erased_ += static_cast<int64_t>(used_);
  used_ = 0;
  size_t before = buffer_.size();
  origins_.push_back({document.start, epoch_, erased_ + static_cast<int64_t>(before)});
  if (document.chat) {
    buffer_.insert(buffer_.end(), document.chat->ids.begin(), document.chat->ids.end());
    counts_.insert(counts_.end(), document.chat->counts.begin(), document.chat->counts.end());
  } else if (document.tokens) {
    document.tokens->append_to(buffer_);
  } else {
    tokenizer_->encode_framed(document.text, true, true, buffer_);
  }
  auto added = static_cast<int64_t>(buffer_.size() - before);
  pass_tokens_ += added;
  counters_.tokens += added;
}

/// At the end of the source: starts over, or marks the stream as exhausted.
void ChunkStream::finish_pass() {
  if (pass_is_whole_ && is_too_short()) fail_too_short();
  exhausted_ = !options_.infinite;
  if (options_.announces_passes) {
    notices_.push_back(
        fmt::format("Dataset {} {}", options_.dataset, exhausted_ ? "has run out of data" : "is being re-looped"));
  }
  if (exhausted_) return;
  ++counters_.re_loops;
  ++epoch_;
  pass_tokens_ = 0;
  pass_chunk_ = chunk_;
  pass_is_whole_ = true;
  source_->begin_pass(epoch_);
}

bool ChunkStream::is_too_short() const {
  return packs_conversations() ? pass_chunks() < options_.chunks_needed
                               : pass_tokens_ < tokens_of(options_.chunks_needed);
}

void ChunkStream::fail_too_short() const {
  if (pass_tokens_ == 0 && counters_.long_conversations > 0) {
    throw Error(ExitCode::bad_data,
                fmt::format("dataset {}: no conversation of {} fits into {}.seq_len = {}. Raise it.", options_.dataset,
                            source_->description(), options_.section, options_.sequence_length));
  }
  if (pass_tokens_ == 0) {
    throw Error(ExitCode::bad_data,
                fmt::format("dataset {}: there is no document in {}{}. Give a {}.dataset_path with text in it.",
                            options_.dataset, source_->description(),
                            counters_.bad_records > 0 ? fmt::format(" (all {} records were skipped as bad)",
                                                                    with_thousands(counters_.bad_records))
                                                      : "",
                            options_.section));
  }
  if (packs_conversations()) {
    const int64_t longer = counters_.long_conversations;
    throw Error(
        ExitCode::bad_data,
        fmt::format("dataset {}: the conversations of {} fill {} sequences, less than one global batch of {}{}. "
                    "Give more of them, {} {}.seq_len (now {}), or lower the batch size.",
                    options_.dataset, source_->description(), pass_chunks(), options_.chunks_needed,
                    longer > 0 ? fmt::format("; {} are too long", with_thousands(longer)) : "",
                    options_.drops_long && longer > 0 ? "raise" : "lower", options_.section, options_.sequence_length));
  }
  throw Error(
      ExitCode::bad_data,
      fmt::format(
          "dataset {}: {} holds {} tokens, less than one {}: {} × {}{} = {}. Give more text, or lower {}.seq_len{}.",
          options_.dataset, source_->description(), with_thousands(pass_tokens_),
          options_.chunks_needed == 1 ? "sequence" : "global batch", options_.chunks_needed, advance(),
          options_.packing == ChunkPacking::upstream ? "" : " + 1", with_thousands(tokens_of(options_.chunks_needed)),
          options_.section, options_.chunks_needed == 1 ? "" : " or the batch size"));
}

StreamState ChunkStream::state() const {
  StreamState state;
  state.chunk = chunk_;
  state.fingerprint = fingerprint_;
  state.corpus = corpus_;
  // Always refers to the document of the last used token, even if that was its EOS: a position has one representation,
  // whether or not the next document has been read.
  if (!origins_.empty() && origins_.front().first_token < position()) {
    state.epoch = origins_.front().epoch;
    state.document = origins_.front().start;
    // Conversations are used whole, so 1 stands for "used" whatever the length in tokens.
    state.token_offset = packs_conversations() ? 1 : position() - origins_.front().first_token;
  }
  return state;
}

std::string ChunkStream::place_of(const StreamState& state) const {
  const bool is_beginning = state.token_offset == 0 && state.document == SourcePosition();
  if (is_beginning) return "the beginning of " + source_->description();
  const std::string document =
      fmt::format("document {} ({})", state.document.document, source_->place_of(state.document));
  return packs_conversations() ? document : fmt::format("token {} of {}", state.token_offset, document);
}

void ChunkStream::restore(const StreamState& state) {
  if (!state.sources.empty()) {
    throw Error(ExitCode::bad_data,
                fmt::format("dataset {}: the saved position belongs to a mixture of {} sources. Give the same data as "
                            "before, or restart the data with checkpoint.exclude_from_loading = [\"dataloader\"].",
                            options_.dataset, state.sources.size()));
  }
  check_saved_corpus(state, {*source_, *tokenizer_, fingerprint_, corpus_, options_.dataset});
  buffer_.clear();
  counts_.clear();
  origins_.clear();
  used_ = 0;
  erased_ = 0;
  chunk_ = pass_chunk_ = state.chunk;
  epoch_ = state.epoch;
  exhausted_ = false;
  counters_ = used_counters_ = {};
  notices_.clear();
  source_->seek(state.document);
  pass_tokens_ = 0;
  pass_is_whole_ = state.token_offset == 0 && state.document == SourcePosition();
  if (state.token_offset > 0) skip_to(state.token_offset);
  source_before_ = source_->counters();
}

void check_saved_corpus(const StreamState& state, const StreamIdentity& now) {
  const CorpusFiles files = now.source.file_sizes();
  const CorpusRecord& then = state.corpus;
  if (state.fingerprint == 0) return;
  if (then.files.empty() || files.empty()) {
    if (state.fingerprint == now.fingerprint) return;
    throw Error(
        ExitCode::bad_data,
        fmt::format("dataset {}: the saved position belongs to another corpus or tokenizer than {} with {}. Give the "
                    "same ones (file names and sizes count), or restart the data with "
                    "checkpoint.exclude_from_loading = [\"dataloader\"].",
                    now.dataset, now.source.description(), now.tokenizer.description()));
  }
  const std::string corpus = now.source.description();
  if (then.tokenizer != now.corpus.tokenizer) {
    refuse_corpus(corpus, fmt::format("the position was saved with another tokenizer than {}, and it counts tokens",
                                      now.tokenizer.description()));
  }
  // Some orders include the number of documents, so check first for changes of the corpus: that error says more.
  check_same_corpus(then, files, corpus);
  if (then.order == now.corpus.order) return;
  if (now.other_order.empty()) {
    refuse_corpus(corpus, fmt::format("it was read as {}, but is now read as {}", then.order, now.corpus.order));
  }
  throw Error(ExitCode::bad_data, fmt::format("corpus {}: {}", corpus, now.other_order));
}

/// Reads the document where the stream stopped and drops its used tokens.
void ChunkStream::skip_to(int64_t token_offset) {
  Document document;
  bool found = source_->next(document);
  if (found && packs_conversations()) {
    buffer_.assign(1, 0);
    counts_.assign(1, 0);
    origins_.push_back({document.start, epoch_, 0});
    counters_.tokens = 1;
  } else if (found) {
    append_document(document);
  }
  if (!found || token_offset > static_cast<int64_t>(buffer_.size())) {
    throw Error(ExitCode::bad_data,
                fmt::format("dataset {}: {} no longer holds the text at which the stream stopped. Put the "
                            "files back as they were, or restart the data with "
                            "checkpoint.exclude_from_loading = [\"dataloader\"].",
                            options_.dataset, source_->description()));
  }
  used_ = static_cast<size_t>(token_offset);
  counters_.tokens -= token_offset;
}

void ChunkStream::take_source_counters() {
  const SourceCounters& now = source_->counters();
  counters_.bad_records = now.bad_records - source_before_.bad_records;
  counters_.invalid_utf8 = now.invalid_utf8 - source_before_.invalid_utf8;
}

void ChunkStream::take_used_counters() {
  const bool is_all = exhausted_ || origins_.empty();
  used_counters_ = is_all ? counters_ : origins_.front().counters;
  used_counters_.documents = counters_.documents;
  used_counters_.tokens = counters_.tokens;
}

std::vector<std::string> ChunkStream::take_notices() {
  std::vector<std::string> all = source_->take_notices();
  std::move(notices_.begin(), notices_.end(), std::back_inserter(all));
  notices_.clear();
  return all;
}

FoundPosition find_position(DocumentSource& source, const Tokenizer& tokenizer, int64_t documents,
                            std::span<const int32_t> left) {
  // `left` comes from as many documents as it has BOS ids, plus one if it starts inside a document. If `left` is empty,
  // the position is the end of the last document read.
  const bool begins_inside = left.empty() || left.front() != tokenizer.bos_id();
  const int64_t whole = std::count(left.begin(), left.end(), tokenizer.bos_id());
  const int64_t first = documents - whole - (begins_inside ? 1 : 0);
  if (documents == 0 && left.empty()) return {StreamState(), {}};
  if (first < 0) return {{}, "the corpus had just restarted, and the remaining tokens belong to the previous pass"};

  source.seek({});
  StreamState state;
  std::vector<int32_t> ids;
  Document document;
  for (int64_t i = 0; i < documents; ++i) {
    if (!source.next(document)) {
      return {{},
              fmt::format("the corpus holds {} documents, and {} had been read", with_thousands(i),
                          with_thousands(documents))};
    }
    if (i < first) continue;
    if (i == first) state.document = document.start;
    if (document.tokens) {
      document.tokens->append_to(ids);
    } else {
      tokenizer.encode_framed(document.text, true, true, ids);
    }
    // For now the offset holds the length of the first document; the real offset depends on how many ids follow.
    if (i == first) state.token_offset = std::ssize(ids);
  }
  const int64_t offset = std::ssize(ids) - std::ssize(left);
  const bool inside = offset >= 0 && offset <= state.token_offset;
  if (!inside || !std::equal(left.begin(), left.end(), ids.end() - std::ssize(left))) {
    return {{}, "the tokens left over are not those that this corpus and tokenizer give there"};
  }
  state.token_offset = offset;
  return {state, {}};
}

DataCounters& DataCounters::operator+=(const DataCounters& other) {
  documents += other.documents;
  tokens += other.tokens;
  bad_records += other.bad_records;
  invalid_utf8 += other.invalid_utf8;
  re_loops += other.re_loops;
  long_conversations += other.long_conversations;
  return *this;
}

}  // namespace titan
