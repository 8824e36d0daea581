#include "titan/base/text.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <streambuf>
#include <utility>

namespace titan {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t replace = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({replace, cost[i - 1][j] + 1, cost[i][j - 1] + 1});
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

std::vector<std::string> nearest(std::string_view word, std::span<const std::string> candidates, size_t limit) {
  std::vector<std::pair<size_t, std::string>> ranked;
  for (const std::string& candidate : candidates) {
    size_t distance = edit_distance(to_lower(word), to_lower(candidate));
    if (distance <= std::max<size_t>(2, word.size() / 2)) ranked.emplace_back(distance, candidate);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> best;
  for (size_t i = 0; i < std::min(limit, ranked.size()); ++i) best.push_back(ranked[i].second);
  return best;
}

std::string with_thousands(int64_t value) {
  std::string digits = fmt::format("{}", value < 0 ? -value : value);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return value < 0 ? "-" + digits : digits;
}

std::string human_bytes(double bytes) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  for (; std::abs(bytes) >= 1024 && unit + 1 < units.size(); ++unit) bytes /= 1024;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, units[unit]);
}

std::string human_count(double count) {
  constexpr std::array units{"", " K", " M", " B", " T"};
  size_t unit = 0;
  for (; std::abs(count) >= 1000 && unit + 1 < units.size(); ++unit) count /= 1000;
  return unit == 0 ? fmt::format("{:.0f}", count) : fmt::format("{:.2f}{}", count, units[unit]);
}

std::string human_duration(double seconds) {
  if (!(seconds >= 0)) return "?";
  if (seconds < 60) return fmt::format("{:.1f}s", seconds);
  auto whole = static_cast<int64_t>(seconds);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  if (whole < int64_t{48} * 3600) return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
  return fmt::format("{}d{:02}h", whole / 86400, whole / 3600 % 24);
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts.begin(), parts.end(), separator));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t start = 0;
  for (size_t at; (at = text.find(separator, start)) != std::string_view::npos; start = at + 1) {
    parts.emplace_back(text.substr(start, at - start));
  }
  parts.emplace_back(text.substr(start));
  return parts;
}

std::string trim(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n";
  size_t first = text.find_first_not_of(blank);
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(blank) - first + 1));
}

std::string to_lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
  return lower;
}

namespace {

/// The first character of `text` and its length in bytes; length 0: invalid UTF-8.
std::pair<char32_t, size_t> first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t length = lead < 0xC2 || lead > 0xF4 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (length == 0 || length > text.size()) return {lead, 0};
  char32_t character = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {lead, 0};
    character = character << 6 | (byte(i) & 0x3F);
  }
  return {character, length};
}

std::string escape(char32_t character) {
  constexpr std::string_view kNamed = "\n\t\r", kLetters = "ntr";
  const size_t named = character < 0x80 ? kNamed.find(static_cast<char>(character)) : kNamed.npos;
  if (named != kNamed.npos) return {'\\', kLetters[named]};
  return character < 0x80 ? fmt::format("\\x{:02x}", static_cast<uint32_t>(character))
                          : fmt::format("\\u{:04x}", static_cast<uint32_t>(character));
}

class PrintableBuffer : public std::streambuf {
 public:
  explicit PrintableBuffer(std::streambuf& target) : target_(target) {}

 protected:
  std::streamsize xsputn(const char* bytes, std::streamsize count) override {
    std::string_view rest(bytes, static_cast<size_t>(count));
    while (!rest.empty()) {
      const size_t end = std::min(rest.find_first_of("\n\t"), rest.size());
      const std::string shown = printable(rest.substr(0, end)) + std::string(rest.substr(end, 1));
      const auto size = static_cast<std::streamsize>(shown.size());
      if (target_.sputn(shown.data(), size) != size) return 0;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return count;
  }
  int_type overflow(int_type character) override {
    const char byte = traits_type::to_char_type(character);
    return xsputn(&byte, 1) == 1 ? character : traits_type::eof();
  }
  int sync() override { return target_.pubsync(); }

 private:
  std::streambuf& target_;
};

}  // namespace

bool disturbs_a_line(char32_t character) {
  const auto is_within = [&](char32_t first, char32_t last) { return character >= first && character <= last; };
  return character < 0x20 || is_within(0x7F, 0x9F) || is_within(0x200E, 0x200F) || is_within(0x2028, 0x202E) ||
         is_within(0x2066, 0x2069);
}

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const auto [character, length] = first_character(text);
    if (length == 0) {
      shown += fmt::format("\\x{:02x}", static_cast<uint32_t>(character));
    } else if (disturbs_a_line(character)) {
      shown += escape(character);
    } else {
      shown += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(1, length));
  }
  return shown;
}

std::string printable_lines(std::string_view text) {
  std::string shown;
  for (size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1)) {
    shown += printable(text.substr(0, end)) + "\n  ";
  }
  return shown + printable(text);
}

PrintableStream::PrintableStream(std::ostream& stream)
    : stream_(stream),
      buffer_(std::make_unique<PrintableBuffer>(*stream.rdbuf())),
      before_(stream.rdbuf(buffer_.get())) {}

PrintableStream::~PrintableStream() { stream_.rdbuf(before_); }

}  // namespace titan
