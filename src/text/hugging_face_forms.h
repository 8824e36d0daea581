// What transformers builds of a vocabulary that is not a tokenizer.json: the same content in the form of one. Each
// class of transformers has its own rules around the vocabulary. Knows no files.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "piece_splitter.h"
#include "sentencepiece_model.h"
#include "tokenizer_settings.h"

namespace titan {

inline constexpr std::string_view kSaveAsOneFile =
    "Write a tokenizer.json into the folder: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of "
    "transformers does so";

/// Throws Error(bad_data) about the tokenizer at `path`.
[[noreturn]] void refuse_tokenizer(const std::filesystem::path& path, std::string_view what,
                                   std::string_view remedy = kSaveAsOneFile);

/// Pre-tokenizer and decoder of a byte-level vocabulary.
nlohmann::json byte_level_form(PieceSplitter::Rule rule, bool add_prefix_space);

/// What the class `reader` has around a vocabulary, without it. `gpt2` also serves a vocab.json whose class is not
/// named.
nlohmann::json form_of(TokenizerSettings::Class reader, const TokenizerSettings& settings);

/// `pre_tokenizer`, which is not null, with the expression that transformers puts in the place of the one of Mistral's
/// early files.
nlohmann::json corrected_for_mistral(nlohmann::json pre_tokenizer);

/// Sets the flags of `model` that a class of its own sets.
void set_model_flags(TokenizerSettings::Class reader, nlohmann::json& model);

/// A SentencePiece model as the class LlamaTokenizer reads it.
nlohmann::json llama_form_of(const SentencePieceModel& source, const TokenizerSettings& settings);

/// The same for any class that has no rules of its own: what surrounds the vocabulary follows the model's settings.
/// Throws Error(bad_data) for a model that this cannot express, with `path` in the message.
nlohmann::json generic_form_of(const std::filesystem::path& path, const SentencePieceModel& source,
                               const TokenizerSettings& settings);

}  // namespace titan
