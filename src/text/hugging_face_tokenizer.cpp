#include "hugging_face_tokenizer.h"

#include <fmt/format.h>
#include <utf8proc.h>
#include <algorithm>
#include <cstdlib>
#include <map>

#include "byte_pair_encoder.h"
#include "pre_tokenizer.h"
#include "sentencepiece_model.h"
#include "tiktoken.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/text/utf8.h"

namespace titan {
namespace {

/// The added tokens to match before normalisation, or those to match after it, with normalised content.
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
  for (const AddedToken& token : parts_.added) {
    added_names_[token.id] = token.content;
    if (!token.normalized || parts_.normalizer.empty()) continue;
    std::string normalized = parts_.normalizer.normalized(token.content);
    if (normalized != token.content) decoded_names_[token.id] = std::move(normalized);
  }
}

HuggingFaceTokenizer::~HuggingFaceTokenizer() = default;

void HuggingFaceTokenizer::encode_append(std::string_view text, std::vector<int32_t>& ids) const {
  encode_text(text, {.special = !parts_.splits_special}, ids);
}

void HuggingFaceTokenizer::encode_part(std::string_view text, bool at_start, std::vector<int32_t>& ids) const {
  encode_text(text, {.special = false, .at_start = at_start}, ids);
}

std::vector<std::pair<std::string, int32_t>> HuggingFaceTokenizer::special_tokens() const {
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (const AddedToken& token : parts_.added) tokens.emplace_back(token.content, token.id);
  for (const int32_t id : {parts_.bos, parts_.eos}) {  // for a vocab.json, which lists no added tokens
    if (id != kNoId && !added_names_.contains(id)) tokens.emplace_back(token_name(id), id);
  }
  return tokens;
}

/// The package follows the flags single_word and normalized. (The whitespace that lstrip and rstrip consume may hold
/// tokens, too: those without the two flags are not counted.)
std::string HuggingFaceTokenizer::misread_token(std::string_view text) const {
  std::map<int32_t, int64_t> missed;  // by id; below 0: found although its name is not there
  const auto count = [&](const AddedTokenFinder& finder, std::string_view in, int64_t sign, const auto& between) {
    std::vector<AddedTokenFinder::Part> parts;
    finder.split(in, parts);
    for (const AddedTokenFinder::Part& part : parts) {
      if (part.token) {
        missed[part.token->id] += sign;
      } else {
        between(part.text);
      }
    }
  };
  const auto ignore = [](std::string_view) {};
  std::vector<AddedToken> names;
  for (const AddedToken& token : parts_.added) names.push_back({.content = token.content, .id = token.id});
  count(AddedTokenFinder(std::move(names)), text, 1, ignore);
  count(raw_tokens_, text, -1, [&](std::string_view part) {
    const std::string read = parts_.normalizer.empty() ? std::string(part) : parts_.normalizer.normalized(part);
    count(normalized_tokens_, read, -1, ignore);
  });
  const auto found = std::find_if(parts_.added.begin(), parts_.added.end(), [&](const AddedToken& token) {
    const bool is_flagged = token.single_word || (token.normalized && !parts_.normalizer.empty());
    return is_flagged && missed[token.id] != 0;
  });
  return found == parts_.added.end() ? "" : found->content;
}

void HuggingFaceTokenizer::encode_text(std::string_view text, const Reading& reading, std::vector<int32_t>& ids) const {
  const PieceSplitter* splitter = parts_.pre_tokenizer.splitter();
  auto lease = pool_.borrow([&] { return std::make_unique<Scratch>(splitter); });
  Scratch& scratch = *lease;
  between_tokens(raw_tokens_, valid_utf8(text, scratch.repaired), reading.special, scratch.raw, ids,
                 [&](std::string_view part, size_t begin) {
                   encode_between(part, {reading.special, reading.at_start && begin == 0}, scratch, ids);
                 });
}

/// Appends the added tokens found by `finder` and calls encode(part, where it begins) for the text between them.
template <class Encode>
void HuggingFaceTokenizer::between_tokens(const AddedTokenFinder& finder, std::string_view text, bool special,
                                          std::vector<AddedTokenFinder::Part>& parts, std::vector<int32_t>& ids,
                                          const Encode& encode) {
  if (finder.empty()) return encode(text, 0);
  parts.clear();
  finder.split(text, parts, special);
  for (const AddedTokenFinder::Part& part : parts) {
    if (part.token) {
      ids.push_back(part.token->id);
    } else {
      encode(part.text, static_cast<size_t>(part.text.data() - text.data()));
    }
  }
}

/// Encodes the text between two added tokens that are matched before normalisation.
void HuggingFaceTokenizer::encode_between(std::string_view text, const Reading& reading, Scratch& scratch,
                                          std::vector<int32_t>& ids) const {
  std::string changed;
  size_t opening = reading.at_start && !text.empty() ? utf8_length(static_cast<unsigned char>(text[0])) : 0;
  if (!parts_.normalizer.empty()) text = changed = parts_.normalizer.normalized(text, opening);
  between_tokens(normalized_tokens_, text, reading.special, scratch.normalized, ids,
                 [&](std::string_view part, size_t begin) {
                   encode_normalized(part, std::max(begin, opening) - begin, scratch, ids);
                 });
}

/// `opening`: how many bytes at the start of `text`, or more, stem from the document's first character.
void HuggingFaceTokenizer::encode_normalized(std::string_view text, size_t opening, Scratch& scratch,
                                             std::vector<int32_t>& ids) const {
  if (text.empty()) return;  // a prefix is added only to what normalisation has left
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
    parts_.pre_tokenizer.split(text, opening, scratch.pre_tokenizer);
    for (std::string_view piece : scratch.pre_tokenizer.pieces) {
      for (size_t begin = 0, end; begin < piece.size(); begin = end) {
        end = words_stand_alone_ ? marked_word_end(piece, begin) : piece.size();
        pieces.add(piece, begin, end, encode);
      }
    }
  }
  pieces.flush();
}

bool HuggingFaceTokenizer::adds_bos() const {
  return std::find(parts_.before.begin(), parts_.before.end(), bos_id()) != parts_.before.end();
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

std::vector<int32_t> HuggingFaceTokenizer::encode_by_default(std::string_view text) const {
  std::vector<int32_t> ids = parts_.before;
  encode_append(text, ids);
  ids.insert(ids.end(), parts_.after.begin(), parts_.after.end());
  return ids;
}

std::string HuggingFaceTokenizer::token_name(int32_t id) const {
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
    std::string token = token_name(id);
    if (auto other = decoded_names_.find(id); other != decoded_names_.end()) token = other->second;
    if (!token.empty()) tokens.push_back(std::move(token));
  }
  return parts_.decoder.decode(std::move(tokens));
}

std::string HuggingFaceTokenizer::description() const {
  return fmt::format("HuggingFaceTokenizer built: #words {}, BOS ID {}, EOS ID {}", vocabulary_size(),
                     shown_id(bos_id()), shown_id(eos_id()));
}

namespace {

using Tokens = std::vector<std::string>;

std::string concatenated(const Tokens& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  return all;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

/// Tokens that are not in the byte alphabet (added ones) keep their own bytes.
void join_bytes(Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += from_byte_alphabet(token).value_or(token);
  repair_utf8(bytes);
  tokens.assign(1, std::move(bytes));
}

/// Converts runs of byte tokens to text if they are valid UTF-8, else each byte to U+FFFD.
void join_fallback_bytes(Tokens& tokens) {
  Tokens joined;
  std::string bytes;
  auto flush = [&] {
    if (valid_utf8_length(bytes) == bytes.size()) {
      if (!bytes.empty()) joined.push_back(bytes);
    } else {
      joined.insert(joined.end(), bytes.size(), "\xEF\xBF\xBD");
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const int byte = byte_of_piece(token); byte >= 0) {
      bytes.push_back(static_cast<char>(byte));
      continue;
    }
    flush();
    joined.push_back(std::move(token));
  }
  flush();
  tokens = std::move(joined);
}

/// Removes up to `start` copies of `content` from the front of each token and up to `stop` from its end.
void strip(Tokens& tokens, const std::string& content, int64_t start, int64_t stop) {
  for (std::string& token : tokens) {
    for (int64_t i = 0; i < start && token.starts_with(content); ++i) token.erase(0, content.size());
    for (int64_t i = 0; i < stop && token.ends_with(content); ++i) token.resize(token.size() - content.size());
  }
}

void undo_metaspace(Tokens& tokens, const std::string& replacement, bool drop_first) {
  for (size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], replacement, i == 0 && drop_first ? "" : " ");
}

}  // namespace

HuggingFaceDecoder::HuggingFaceDecoder(const std::optional<JsonNode>& node) : joined_by_spaces_(!node) {
  if (node) add(*node);
}

HuggingFaceDecoder HuggingFaceDecoder::byte_level() {
  HuggingFaceDecoder made;
  made.steps_.emplace_back(join_bytes);
  return made;
}

void HuggingFaceDecoder::add(const JsonNode& node) {
  const std::string type = node.text("type");
  if (type == "Sequence") {
    const JsonNode all = node.at("decoders");
    for (size_t i = 0; i < all.size(); ++i) add(all.at(i));
  } else if (type == "ByteLevel") {
    steps_.emplace_back(join_bytes);
  } else if (type == "ByteFallback") {
    steps_.emplace_back(join_fallback_bytes);
  } else if (type == "Fuse") {
    steps_.emplace_back([](Tokens& tokens) { tokens.assign(1, concatenated(tokens)); });
  } else if (type == "Replace" && node.at("pattern").find("String")) {
    const std::string from = node.at("pattern").text("String");
    if (from.empty()) node.fail("replaces an empty text. Give a text to replace.");
    steps_.emplace_back([from, to = node.text("content")](Tokens& tokens) {
      for (std::string& token : tokens) replace_all(token, from, to);
    });
  } else if (type == "Strip") {
    const std::string content = node.text("content");
    if (content.empty()) node.fail("strips an empty text. Give a character.");
    steps_.emplace_back([content, start = node.at("start").number(), stop = node.at("stop").number()](Tokens& tokens) {
      strip(tokens, content, start, stop);
    });
  } else if (type == "Metaspace") {
    std::optional<JsonNode> scheme = node.find("prepend_scheme");
    const bool drop = scheme ? scheme->text() != "never" : node.flag("add_prefix_space", true);
    const std::string replacement = node.text("replacement");
    if (replacement.empty()) node.fail("has an empty replacement. Give the character that stands for a space.");
    steps_.emplace_back([=](Tokens& tokens) { undo_metaspace(tokens, replacement, drop); });
  } else {
    node.fail(fmt::format("is of type {}, which {}.", type, kTokenizeOffline));
  }
}

std::string HuggingFaceDecoder::decode(std::vector<std::string> tokens) const {
  if (joined_by_spaces_) return fmt::format("{}", fmt::join(tokens, " "));
  for (const Step& step : steps_) step(tokens);
  return concatenated(tokens);
}

namespace {

/// Bytes that a normalizer may make of a text of so many. Unicode's longest decompositions are 18 characters for one; a
/// short text may get a prefix of any length.
size_t most_normalized(size_t bytes) { return (size_t{1} << 20) + 100 * bytes; }

/// A stranger's rules may double a text again and again.
void expect_room(size_t bytes, size_t most) {
  if (bytes <= most) return;
  throw Error(ExitCode::bad_data,
              fmt::format("the tokenizer's normalizer makes more than {} of a text, over 100 times as much; take a "
                          "tokenizer whose normalizer does not repeat its replacements",
                          human_bytes(static_cast<double>(most))));
}

/// A text with matches replaced one after another. As in the package, what replaces a match stems from the match's last
/// character. `opening`: bytes at the start of the text, and then of the result, that stem from a document's first one.
class Replacement {
 public:
  Replacement(std::string_view text, std::string_view to, size_t most, size_t& opening)
      : text_(text), to_(to), most_(most), opening_(opening) {
    out_.reserve(text.size() + text.size() / 4);
  }

  void match(size_t begin, size_t end) {
    copy(begin);
    out_.append(to_);
    settled_ = end;
    if (opening_ > 0 && end <= opening_) opened_ = out_.size();
    expect_room(out_.size(), most_);
  }

  std::string finish() {
    copy(text_.size());
    opening_ = opened_;
    return std::move(out_);
  }

 private:
  void copy(size_t end) {
    if (settled_ < opening_) opened_ = out_.size() + std::min(end, opening_) - settled_;
    out_.append(text_.substr(settled_, end - settled_));
  }

  std::string_view text_, to_;
  size_t most_;
  size_t& opening_;
  std::string out_;
  size_t settled_ = 0;  // the text before it has been copied or replaced
  size_t opened_ = 0;   // the opening of out_
};

std::string replaced(std::string_view text, std::string_view from, std::string_view to, size_t most, size_t& opening) {
  Replacement replacement(text, to, most, opening);
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + from.size())) {
    replacement.match(at, at + from.size());
  }
  return replacement.finish();
}

std::string replaced(std::string_view text, const Pattern& pattern, std::string_view to, size_t most, size_t& opening) {
  Replacement replacement(text, to, most, opening);
  Pattern::Scratch scratch(pattern);
  Pattern::Walk walk;
  for (Pattern::Match match; pattern.next(text, walk, scratch, match);) replacement.match(match.begin, match.end);
  return replacement.finish();
}

std::optional<utf8proc_option_t> form_named(std::string_view name) {
  if (name == "NFC") return UTF8PROC_COMPOSE;
  if (name == "NFD") return UTF8PROC_DECOMPOSE;
  if (name == "NFKC") return static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
  if (name == "NFKD") return static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  return std::nullopt;
}

/// Normalises valid UTF-8 text. ASCII is unchanged by every form.
std::string in_form(const std::string& text, utf8proc_option_t form) {
  if (std::all_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x80; })) return text;
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), std::ssize(text),
                                             &made, static_cast<utf8proc_option_t>(form | UTF8PROC_STABLE));
  TITAN_CHECK(size >= 0, utf8proc_errmsg(size));
  std::string out(reinterpret_cast<const char*>(made), static_cast<size_t>(size));
  std::free(made);
  return out;
}

/// How many bytes of `whole`, the normal form of a text, stem from the text's start, whose own normal form is `start`.
size_t opening_of(std::string_view whole, std::string_view start) {
  const auto characters =
      std::count_if(start.begin(), start.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  return advance_characters(whole, 0, characters);
}

}  // namespace

HuggingFaceNormalizer::HuggingFaceNormalizer(const std::optional<JsonNode>& node) {
  if (node) add(*node);
}

void HuggingFaceNormalizer::add(const JsonNode& node) {
  const std::string type = node.text("type");
  if (type == "Sequence") {
    const JsonNode all = node.at("normalizers");
    for (size_t i = 0; i < all.size(); ++i) add(all.at(i));
  } else if (type == "Prepend") {
    steps_.push_back({"", node.text("prepend")});
  } else if (type == "Replace" && node.at("pattern").find("String")) {
    steps_.push_back({node.at("pattern").text("String"), node.text("content")});
    if (steps_.back().from.empty()) node.fail("replaces an empty text. Give a text to replace.");
  } else if (type == "Replace") {
    const std::string expression = node.at("pattern").text("Regex");
    try {
      auto pattern = std::make_shared<const Pattern>(expression, Pattern::Anchor::anywhere);
      steps_.push_back({expression, node.text("content"), /*is_form=*/false, std::move(pattern)});
    } catch (const Error& error) {
      node.fail(fmt::format("{}: {}.", kTokenizeOffline, error.what()));
    }
  } else if (form_named(type)) {
    steps_.push_back({type, "", /*is_form=*/true});
  } else {
    node.fail(fmt::format("is of type {}, which {}.", type, kTokenizeOffline));
  }
}

std::string HuggingFaceNormalizer::normalized(std::string_view text, size_t& opening) const {
  std::string out(text);
  const size_t most = most_normalized(text.size());
  for (const Step& step : steps_) {
    if (step.is_form) {
      const utf8proc_option_t form = *form_named(step.from);
      const std::string start = in_form(out.substr(0, opening), form);
      out = in_form(out, form);
      opening = opening_of(out, start);
    } else if (step.pattern) {
      out = replaced(out, *step.pattern, step.to, most, opening);
    } else if (!step.from.empty()) {
      out = replaced(out, step.from, step.to, most, opening);
    } else if (!out.empty()) {
      out.insert(0, step.to);
      if (opening > 0) opening += step.to.size();
    }
    expect_room(out.size(), most);
  }
  return out;
}

}  // namespace titan
