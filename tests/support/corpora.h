// Small corpora for the tests of sources and streams.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "titan/corpus/document_source.h"

namespace titan::test {

/// Documents from memory, in order.
class ListSource : public DocumentSource {
 public:
  explicit ListSource(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  bool next(Document& document) override {
    if (next_ >= static_cast<int64_t>(texts_.size())) return false;
    document.start = {};
    document.start.document = next_;
    document.text = texts_[static_cast<size_t>(next_++)];
    return true;
  }
  void seek(const SourcePosition& start) override { next_ = start.document; }
  std::string reading() const override { return "the list"; }
  std::string description() const override { return "the list"; }
  uint64_t fingerprint() const override { return texts_.size() + 1; }

 private:
  std::vector<std::string> texts_;
  int64_t next_ = 0;
};

/// Of all documents from the source's position.
inline std::vector<std::string> texts_of(DocumentSource& source) {
  std::vector<std::string> texts;
  for (Document document; source.next(document);) texts.push_back(document.text);
  return texts;
}

/// Each of `documents`, all of the source's, is found again from its start, and those after it follow.
inline void expect_found_again(DocumentSource& source, const std::vector<Document>& documents) {
  for (size_t i = documents.size(); i-- > 0;) {
    source.seek(documents[i].start);
    for (size_t j = i; j < documents.size(); ++j) {
      Document again;
      ASSERT_TRUE(source.next(again));
      EXPECT_EQ(again.text, documents[j].text);
      EXPECT_EQ(again.start, documents[j].start);
    }
  }
}

}  // namespace titan::test

namespace titan {

/// Lines of JSON whose texts are `prefix` with a number, an empty line after every third.
inline std::string records(int count, const std::string& prefix = "d") {
  std::string lines;
  for (int i = 0; i < count; ++i) lines += "{\"text\": \"" + prefix + std::to_string(i) + "\"}\n" + (i % 3 ? "" : "\n");
  return lines;
}

/// Of that path.
inline DatasetOptions text(const std::string& path) {
  DatasetOptions options;
  options.dataset = "text";
  options.path = path;
  return options;
}

}  // namespace titan
