// Conversations, and what a chat template makes of them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/text/tiktoken.h"
#include "support/files.h"
#include "support/texts.h"
#include "titan/text/chat.h"

namespace titan::test {

using nlohmann::json;

inline const std::vector<ChatMessage> kDialogue{
    {"system", "Be brief.\n"}, {"user", " Hi "}, {"assistant", "\tHello. "}};

/// Byte-level BPE over 256 bytes that joins two line feeds and a full stop with one, and knows ChatML's tokens.
inline std::string chatml_tokenizer(const json& config) {
  static const TemporaryFolder folder;
  static int folders = 0;
  json vocabulary = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    vocabulary[to_byte_alphabet({&c, 1})] = byte;
  }
  vocabulary["ĊĊ"] = 256;
  vocabulary[".Ċ"] = 257;
  json added = json::array();
  for (const char* name : {"<|im_start|>", "<|im_end|>", "<tool>"}) {
    const bool special = name != std::string("<tool>");
    added.push_back({{"id", 258 + added.size()}, {"content", name}, {"special", special}, {"normalized", false}});
  }
  const json split{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const json file{{"added_tokens", added},
                  {"pre_tokenizer", split},
                  {"decoder", {{"type", "ByteLevel"}}},
                  {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"Ċ Ċ", ". Ċ"}}}}};
  const std::string name = std::to_string(folders++);
  folder.write(name + "/tokenizer_config.json", config.dump());
  return std::filesystem::path(folder.write(name + "/tokenizer.json", file.dump())).parent_path().string();
}

struct Written {
  std::string text;     // of all ids
  std::string counted;  // of those that count, with a bar where some between them do not
};

inline Written written(const ChatTemplate& chat, const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages) {
  const EncodedChat encoded = chat.encode(messages);
  EXPECT_EQ(encoded.problem, "");
  EXPECT_EQ(encoded.ids.size(), encoded.counts.size());
  Written all{tokenizer.decode(encoded.ids), {}};
  std::vector<int32_t> run;
  for (size_t i = 0; i <= encoded.ids.size(); ++i) {
    if (i < encoded.ids.size() && encoded.counts[i] != 0) {
      run.push_back(encoded.ids[i]);
    } else if (!run.empty()) {
      all.counted += (all.counted.empty() ? "" : "|") + tokenizer.decode(run);
      run.clear();
    }
  }
  return all;
}
/// Of a folder that holds this chat_template.jinja. The tokenizer is another one's: bytes and Llama 3's special tokens.
inline ChatTemplate of_source(const std::string& jinja) {
  const TemporaryFolder folder;
  folder.write("chat_template.jinja", jinja);
  return ChatTemplate({.tokenizer = folder.string()}, byte_tokenizer());
}

}  // namespace titan::test
