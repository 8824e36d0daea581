// Damaged indexes, headers and ids of other programs: documents or one clear error, never a signal.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/foreign_ids.h"
#include "support/random_sequence.h"
#include "titan/corpus/document_source.h"

namespace titan {
namespace {

using test::IdDocuments;
using test::TemporaryFolder;

int mutations() { return std::getenv("TITAN_TEST_FULL") ? 2000 : 200; }

/// A few bits, bytes or whole numbers are others, or bytes are missing or more.
std::string mutated(std::string bytes, PhiloxSequence& random) {
  for (uint32_t change = 1 + random.below(3); change > 0; --change) {
    const auto size = static_cast<uint32_t>(bytes.size());
    const uint32_t at = random.below(size + 1), length = std::min(size - at, 1 + random.below(8));
    switch (random.below(5)) {
      case 0:
        if (at < size) bytes[at] = static_cast<char>(bytes[at] ^ 1 << random.below(8));
        break;
      case 1:
        for (uint32_t i = at; i < at + length; ++i) bytes[i] = static_cast<char>(random.next());
        break;
      case 2:
        // Numbers around zero and the largest ones are those at which sums overflow.
        for (uint32_t i = at; i < at + length; ++i) bytes[i] = static_cast<char>(random.below(2) ? 0xFF : 0x7F);
        break;
      case 3:
        bytes.erase(at, random.below(40));
        break;
      default:
        bytes.insert(at, std::string(random.below(40), static_cast<char>(random.next())));
    }
  }
  return bytes;
}

IdDocuments some_documents() {
  PhiloxSequence random(11);
  IdDocuments documents(40);
  for (auto& document : documents) {
    for (uint32_t i = random.below(30); i > 0; --i) document.push_back(random.below(300));
  }
  return documents;
}

/// Reads all that `path` names, in order, then the last document and from the middle on.
void read_all(const std::string& path) {
  const auto source = open_dataset({.dataset = "text", .path = path});
  std::vector<int32_t> ids;
  std::vector<SourcePosition> starts;
  Document document;
  while (source->next(document)) {
    starts.push_back(document.start);
    document.tokens->append_to(ids);
  }
  if (starts.empty()) return;
  const std::optional<int64_t> count = source->count_documents();
  ASSERT_EQ(count, std::ssize(starts));
  ASSERT_TRUE(source->read(*count - 1, document));
  source->seek(starts[starts.size() / 2]);
  ASSERT_TRUE(source->next(document));
}

/// Mutates the file `name` of `folder` and reads `path`. At least some mutations are refused.
void mutate(const TemporaryFolder& folder, const std::string& name, const std::string& whole, const std::string& path) {
  PhiloxSequence random(23);
  int refused = 0;
  for (int i = 0; i < mutations(); ++i) {
    folder.write(name, mutated(whole, random));
    try {
      read_all((folder / path).string());
    } catch (const Error& error) {
      ++refused;
      const std::string message = error.what();
      ASSERT_EQ(error.code(), ExitCode::bad_data) << message;
      ASSERT_GT(message.size(), 30u);
      ASSERT_LT(message.size(), 1000u);
      ASSERT_EQ(message.find('\n'), message.npos) << message;
    }
  }
  EXPECT_GT(refused, mutations() / 4);
  folder.write(name, whole);
  read_all((folder / path).string());
}

TEST(DamagedForeignIds, MegatronsIndexesAndIds) {
  const TemporaryFolder folder;
  const IdDocuments documents = some_documents();
  const std::string ids = test::id_bytes<int32_t>(documents), index = test::index_of(documents, 4, 4).bytes();
  folder.write("a.bin", ids);
  mutate(folder, "a.idx", index, "a.bin");
  mutate(folder, "a.bin", ids, "a");
}

TEST(DamagedForeignIds, DatatrovesIndexes) {
  const TemporaryFolder folder;
  const IdDocuments documents = some_documents();
  folder.write("a.ds", test::id_bytes<uint16_t>(documents));
  mutate(folder, "a.ds.index", test::datatrove_index(documents), "a.ds");
}

TEST(DamagedForeignIds, HeadersOfLlmC) {
  const TemporaryFolder folder;
  const IdDocuments documents{{50256, 1, 2}, {50256, 3}};
  mutate(folder, "a.bin", test::llm_c_header(20240520, 1, 5) + test::id_bytes<uint16_t>(documents), "a.bin");
}

}  // namespace
}  // namespace titan
