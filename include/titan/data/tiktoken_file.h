// The tiktoken model file: one line per token, its bytes in base64, a space, its rank.
// Reading checks everything that encoding relies on, so that a damaged file is named here and not found out later.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

/// Token bytes by rank. Throws Error(bad_data) "FILE:LINE: what is wrong; what to do" for a line that is not
/// "base64 rank", a token or rank that comes twice, ranks with gaps, a missing single byte, an empty or missing file.
std::vector<std::string> read_tiktoken_file(const std::filesystem::path& path);

/// Writes `tokens[rank]` in rank order, whole or not at all.
void write_tiktoken_file(const std::filesystem::path& path, std::span<const std::string> tokens);

/// Whether the first line of these bytes looks like one of a tiktoken model file.
bool looks_like_tiktoken(std::string_view bytes);

}  // namespace titan
