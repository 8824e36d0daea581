// Ids as a file stores them: their integer type, and a view of some of them in a mapped file. Everywhere else in the
// program ids are int32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace titan {

/// Integer types of stored ids. This program writes uint16 and uint32; other programs write all of them.
enum class IdType { uint8, int8, uint16, int16, uint32, int32, int64 };

/// Bytes of one id.
int64_t size_of(IdType type);
/// As NumPy names it: "uint16".
std::string_view name_of(IdType type);

/// Ids are int32, so every vocabulary is at most this large.
inline constexpr int64_t kMostIds = int64_t{1} << 31;

struct TokenView {
  const void* data = nullptr;  ///< aligned for `type`
  size_t size = 0;             ///< ids
  IdType type = IdType::uint16;
  int64_t vocabulary = 0;                       ///< kMostIds: unknown
  const std::filesystem::path* file = nullptr;  ///< for messages
  /// Place of the first id in its file, if the file has no checksums: a bad id was then written by the file's maker.
  /// -1: the ids were verified, and a bad id was written later.
  int64_t unverified_place = -1;

  /// The id at `index` as it is stored, also if no vocabulary has it.
  int64_t at(size_t index) const;

  /// The ids outside the vocabulary: how many there are, and the index of the first.
  struct Outside {
    int64_t count = 0;
    size_t first = 0;
  };
  Outside outside() const;

  /// Appends the ids to `ids`. Throws Error(bad_data) for an id outside the vocabulary.
  void append_to(std::vector<int32_t>& ids) const;
};

}  // namespace titan
