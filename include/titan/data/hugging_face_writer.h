// Writes a byte-level vocabulary the way Hugging Face's programs read it. What reads it back: hugging_face_tokenizer.h.
#pragma once

#include <array>
#include <filesystem>
#include <span>
#include <string>

namespace titan {

/// What is written into the folder.
inline constexpr std::array kHuggingFaceFiles{"tokenizer.json", "tokenizer_config.json"};

/// Makes `folder` with these two: the vocabulary `tokens` (by rank) with Llama 3's
/// splitting, and after it the special tokens `special`, of which the first begins a text and the second ends it. Every
/// text gets the ids of the tiktoken form, what looks like a special token included. Throws Error(storage) when it
/// cannot be written.
void write_hugging_face_tokenizer(const std::filesystem::path& folder, std::span<const std::string> tokens,
                                  std::span<const std::string> special);

}  // namespace titan
