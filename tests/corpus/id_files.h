// What the tests of other programs' files of ids share: opening what a user names, reading all of it, and the refusals.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/foreign_ids.h"
#include "titan/corpus/document_source.h"

namespace titan {

using test::contains;
using test::IdDocuments;
using test::message_of;
using test::TemporaryFolder;
namespace fs = std::filesystem;

inline const IdDocuments kDocuments{{1, 5, 100, 2}, {1, 2}, {}, {1, 7, 7, 7, 9, 2}};

inline std::vector<int64_t> wide(const Document& document) {
  std::vector<int32_t> ids;
  document.tokens->append_to(ids);
  return {ids.begin(), ids.end()};
}

inline IdDocuments all_of(DocumentSource& source) {
  source.seek({});
  IdDocuments all;
  for (Document document; source.next(document);) all.push_back(wide(document));
  return all;
}

/// Opens what a user names.
inline std::unique_ptr<DocumentSource> open_ids(const std::string& path, const Tokenizer* tokenizer = nullptr) {
  return open_dataset({.dataset = "text", .path = path, .tokenizer = tokenizer});
}

inline std::string refusal(const std::string& path, const Tokenizer* tokenizer = nullptr) {
  return message_of(ExitCode::bad_data, [&] {
    const auto source = open_ids(path, tokenizer);
    if (tokenizer) source->check_tokenizer(*tokenizer);
    all_of(*source);
  });
}

/// The documents are the same one by one in any order, and from the position of each on.
inline void expect_random_access(DocumentSource& source) {
  const IdDocuments all = all_of(source);
  ASSERT_EQ(source.count_documents(), std::ssize(all));
  Document document;
  for (auto i = std::ssize(all) - 1; i >= 0; --i) {
    ASSERT_TRUE(source.read(i, document));
    EXPECT_EQ(wide(document), all[static_cast<size_t>(i)]);
  }
  source.seek({});
  std::vector<SourcePosition> starts;
  while (source.next(document)) starts.push_back(document.start);
  for (size_t i = 0; i < starts.size(); ++i) {
    EXPECT_EQ(starts[i].document, static_cast<int64_t>(i));
    source.seek(starts[i]);
    ASSERT_TRUE(source.next(document));
    EXPECT_EQ(wide(document), all[i]);
  }
}

inline void write_megatron(const TemporaryFolder& folder, const std::string& prefix, const IdDocuments& documents) {
  folder.write(prefix + ".bin", test::id_bytes<int32_t>(documents));
  folder.write(prefix + ".idx", test::index_of(documents, 4, 4).bytes());
}

}  // namespace titan
