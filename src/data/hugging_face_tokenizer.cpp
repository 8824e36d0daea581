#include "titan/data/hugging_face_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "titan/base/error.h"
#include "titan/data/cached_pieces.h"
#include "titan/data/utf8.h"
#include "titan/data/word_marks.h"

namespace titan {
namespace {

/// The added tokens that are looked for before normalisation, or those after it, which are normalised themselves.
std::vector<AddedToken> tokens_to_find(const HuggingFaceParts& parts, bool normalized) {
  std::vector<AddedToken> tokens;
  for (const AddedToken& token : parts.added) {
    if (token.normalized != normalized) continue;
    tokens.push_back(token);
    if (normalized && !parts.normalizer.empty()) tokens.back().content = parts.normalizer.normalized(token.content);
  }
  return tokens;
}

}  // namespace

struct HuggingFaceTokenizer::Scratch {
  explicit Scratch(const PieceSplitter* splitter) {
    if (splitter) expression = std::make_unique<PieceSplitter::Scratch>(*splitter);
  }
  std::unique_ptr<PieceSplitter::Scratch> expression;
  PreTokenizer::Scratch pre_tokenizer;
  PieceCache cache;
  std::string repaired;
  std::vector<int32_t> parts;
  std::vector<AddedTokenFinder::Part> raw;
  std::vector<AddedTokenFinder::Part> normalized;
};

HuggingFaceTokenizer::HuggingFaceTokenizer(HuggingFaceParts parts)
    : parts_(std::move(parts)),
      raw_tokens_(tokens_to_find(parts_, false)),
      normalized_tokens_(tokens_to_find(parts_, true)),
      words_stand_alone_(parts_.model.words_stand_alone(kWordMark)) {
  for (const AddedToken& token : parts_.added) added_names_[token.id] = token.content;
}

HuggingFaceTokenizer::~HuggingFaceTokenizer() = default;

void HuggingFaceTokenizer::encode_append(std::string_view text, std::vector<int32_t>& ids) const {
  const PieceSplitter* splitter = parts_.pre_tokenizer.splitter();
  auto lease = pool_.borrow([&] { return std::make_unique<Scratch>(splitter); });
  Scratch& scratch = *lease;
  const std::string_view valid = valid_utf8(text, scratch.repaired);
  if (raw_tokens_.empty()) return encode_between(valid, true, scratch, ids);
  scratch.raw.clear();
  raw_tokens_.split(valid, scratch.raw);
  for (const AddedTokenFinder::Part& part : scratch.raw) {
    if (part.token) {
      ids.push_back(part.token->id);
    } else {
      encode_between(part.text, part.text.data() == valid.data(), scratch, ids);
    }
  }
}

/// Text between two added tokens that are found before normalisation.
void HuggingFaceTokenizer::encode_between(std::string_view text, bool at_start, Scratch& scratch,
                                          std::vector<int32_t>& ids) const {
  std::string changed;
  if (!parts_.normalizer.empty()) text = changed = parts_.normalizer.normalized(text);
  if (normalized_tokens_.empty()) return encode_normalized(text, at_start, scratch, ids);
  scratch.normalized.clear();
  normalized_tokens_.split(text, scratch.normalized);
  for (const AddedTokenFinder::Part& part : scratch.normalized) {
    if (part.token) {
      ids.push_back(part.token->id);
    } else {
      encode_normalized(part.text, at_start && part.text.data() == text.data(), scratch, ids);
    }
  }
}

void HuggingFaceTokenizer::encode_normalized(std::string_view text, bool at_start, Scratch& scratch,
                                             std::vector<int32_t>& ids) const {
  CachedPieces pieces(scratch.cache, ids);
  auto encode = [&](std::string_view piece, std::vector<int32_t>& to) {
    parts_.model.encode_piece(piece, scratch.parts, to);
  };
  if (const PieceSplitter* splitter = parts_.pre_tokenizer.splitter()) {
    for (size_t begin = 0, end; begin < text.size(); begin = end) {
      end = splitter->piece_end(text, begin, *scratch.expression);
      pieces.add(text, begin, end, encode);
    }
  } else {
    parts_.pre_tokenizer.split(text, at_start, scratch.pre_tokenizer);
    for (std::string_view piece : scratch.pre_tokenizer.pieces) {
      for (size_t begin = 0, end; begin < piece.size(); begin = end) {
        end = words_stand_alone_ ? marked_word_end(piece, begin) : piece.size();
        pieces.add(piece, begin, end, encode);
      }
    }
  }
  pieces.flush();
}

void HuggingFaceTokenizer::encode_framed(std::string_view text, bool bos, bool eos, std::vector<int32_t>& ids) const {
  auto holds = [](const std::vector<int32_t>& some, int32_t id) {
    return std::find(some.begin(), some.end(), id) != some.end();
  };
  if (bos) {
    if (bos_id() != kNoId && !holds(parts_.before, bos_id())) ids.push_back(bos_id());
    ids.insert(ids.end(), parts_.before.begin(), parts_.before.end());
  }
  encode_append(text, ids);
  if (eos) {
    ids.insert(ids.end(), parts_.after.begin(), parts_.after.end());
    if (eos_id() != kNoId && !holds(parts_.after, eos_id())) ids.push_back(eos_id());
  }
}

/// The token as the file writes it; empty for an id that the files leave out.
std::string HuggingFaceTokenizer::token_text(int32_t id) const {
  if (id < 0 || id >= parts_.most_ids) {
    throw Error(ExitCode::bad_data,
                fmt::format("token id {} is not in this tokenizer: its ids are 0 to {}", id, parts_.most_ids - 1));
  }
  if (auto added = added_names_.find(id); added != added_names_.end()) return added->second;
  return id < parts_.model.size() ? parts_.model.token(id) : std::string();
}

std::string HuggingFaceTokenizer::decode(std::span<const int32_t> ids) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (int32_t id : ids) {
    if (std::string token = token_text(id); !token.empty()) tokens.push_back(std::move(token));
  }
  return parts_.decoder.decode(std::move(tokens));
}

std::string HuggingFaceTokenizer::token_name(int32_t id) const { return token_text(id); }

std::string HuggingFaceTokenizer::description() const {
  return fmt::format("HuggingFaceTokenizer built: #words {}, BOS ID {}, EOS ID {}", vocabulary_size(),
                     shown_id(bos_id()), shown_id(eos_id()));
}

}  // namespace titan
