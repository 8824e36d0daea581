#include "titan/base/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <streambuf>
#include <utility>

namespace titan {
namespace {

/// The character at the front of `text` and its bytes; no bytes: it is not UTF-8.
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
