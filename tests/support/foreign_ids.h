// Files of ids in the layouts that other programs publish, byte by byte, without their code.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace titan::test {

/// The ids of each document.
using IdDocuments = std::vector<std::vector<int64_t>>;

template <typename Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

/// All ids as numbers of this type.
template <typename Id>
std::string id_bytes(const IdDocuments& documents) {
  std::vector<Id> ids;
  for (const auto& document : documents) {
    for (const int64_t id : document) ids.push_back(static_cast<Id>(id));
  }
  return bytes_of(ids);
}

/// The numbers of a Megatron index, which a test may set wrongly.
struct MegatronIndex {
  std::string magic{"MMIDIDX\0\0", 9};
  uint64_t version = 1;
  uint8_t type = 4;  ///< int32
  std::vector<int32_t> lengths;
  std::vector<int64_t> places, boundaries{0};
  std::string modes;
  uint64_t more_entries = 0;  ///< that the header says and that are not there

  std::string bytes() const {
    const std::vector<uint64_t> counts{lengths.size() + more_entries, boundaries.size()};
    return magic + bytes_of(std::vector{version}) + static_cast<char>(type) + bytes_of(counts) + bytes_of(lengths) +
           bytes_of(places) + bytes_of(boundaries) + modes;
  }
};

/// The index of documents of these entries, whose ids have `width` bytes.
inline MegatronIndex megatron_index(const std::vector<std::vector<int32_t>>& documents, uint8_t type, int64_t width) {
  MegatronIndex index;
  index.type = type;
  int64_t place = 0;
  for (const auto& lengths : documents) {
    for (const int32_t length : lengths) {
      index.lengths.push_back(length);
      index.places.push_back(place);
      place += length * width;
    }
    index.boundaries.push_back(static_cast<int64_t>(index.lengths.size()));
  }
  return index;
}

/// The index of these documents, each one entry.
inline MegatronIndex index_of(const IdDocuments& documents, uint8_t type, int64_t width) {
  std::vector<std::vector<int32_t>> lengths;
  for (const auto& document : documents) lengths.push_back({static_cast<int32_t>(document.size())});
  return megatron_index(lengths, type, width);
}

/// datatrove's .ds.index.
inline std::string datatrove_index(const IdDocuments& documents) {
  std::vector<uint64_t> ends;
  uint64_t end = 0;
  for (const auto& document : documents) ends.push_back(end += document.size());
  return bytes_of(ends);
}

/// llm.c's header for so many ids.
inline std::string llm_c_header(int32_t magic, int32_t version, int32_t ids) {
  std::vector<int32_t> header(256);
  header[0] = magic, header[1] = version, header[2] = ids;
  return bytes_of(header);
}

}  // namespace titan::test
