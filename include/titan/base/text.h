// Small pure functions over text: spelling suggestions, numbers as people read them, splitting and joining.
// Used by whatever speaks to the user or reads words of theirs. ASCII is all they know of letters; what is about UTF-8
// lies in data/utf8.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

/// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`: the optimal string alignment distance.
size_t edit_distance(std::string_view a, std::string_view b);

/// The candidates nearest to `word` whatever the case, best first, at most `limit`, none farther than about half of its
/// length.
std::vector<std::string> nearest(std::string_view word, std::span<const std::string> candidates, size_t limit = 3);

/// 1234567 → "1,234,567".
std::string with_thousands(int64_t value);

/// Bytes with a binary unit: 1536 → "1.50 KiB".
std::string human_bytes(double bytes);

/// Counts with a decimal unit: 8030261248 → "8.03 B".
std::string human_count(double count);

/// Seconds as "3h41m", "12m05s", "4.2s".
std::string human_duration(double seconds);

std::string join(std::span<const std::string> parts, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);
std::string trim(std::string_view text);
std::string to_lower(std::string_view text);

}  // namespace titan
