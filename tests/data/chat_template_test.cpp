// What each template makes of a conversation, which ids count, and how a template is recognised. Ids against
// `transformers` itself: tests/reference/chat_test.py.
#include "titan/data/chat.h"

#include <nlohmann/json.hpp>

#include "src/data/tiktoken.h"
#include "tests/data/fixtures.h"

namespace titan {
namespace {

using nlohmann::json;
using test::byte_tokenizer;
using test::message_of;
using test::TemporaryFolder;

const std::vector<ChatMessage> kDialogue{{"system", "Be brief.\n"}, {"user", " Hi "}, {"assistant", "\tHello. "}};

/// Byte-level BPE over 256 bytes that joins two line feeds and a full stop with one, and knows ChatML's tokens.
std::string chatml_tokenizer(const json& config) {
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

Written written(const ChatTemplate& chat, const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages) {
  EXPECT_EQ(chat.problem(messages), "");
  const EncodedChat encoded = chat.encode(messages);
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

ChatTemplate named(const std::string& name) { return ChatTemplate({.name = name}, byte_tokenizer()); }

TEST(ChatTemplate, Llama3FramesEachStrippedMessageAndCountsTheAnswerWithItsEnd) {
  const ChatTemplate chat = named("llama3");
  const Written all = written(chat, *byte_tokenizer(), kDialogue);
  EXPECT_EQ(all.text,
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>");
  EXPECT_EQ(all.counted, "Hello.<|eot_id|>");
  EXPECT_EQ(chat.stop_ids(), (std::vector<int32_t>{265, 257}));  // eot_id, end_of_text
  EXPECT_EQ(chat.stop_text(), "");
}

TEST(ChatTemplate, Llama31BeginsWithItsDatesWithOrWithoutASystemMessage) {
  const std::string dates = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
  const std::string begin = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n" + dates;
  const ChatTemplate chat = named("llama3_1");
  EXPECT_TRUE(written(chat, *byte_tokenizer(), kDialogue).text.starts_with(begin + "Be brief.<|eot_id|>"));
  const Written without = written(chat, *byte_tokenizer(), {kDialogue[1], kDialogue[2]});
  EXPECT_TRUE(without.text.starts_with(begin + "<|eot_id|><|start_header_id|>user"));
  EXPECT_EQ(without.counted, "Hello.<|eot_id|>");
}

TEST(ChatTemplate, Llama2PutsTheSystemMessageIntoTheFirstOfTheUser) {
  std::vector<ChatMessage> messages = kDialogue;
  messages.insert(messages.end(), {{"user", "More?"}, {"assistant", "No."}});
  const Written all = written(named("llama2"), *byte_tokenizer(), messages);
  EXPECT_EQ(all.text,
            "<|begin_of_text|>[INST] <<SYS>>\nBe brief.\n\n<</SYS>>\n\n Hi [/INST] Hello. <|end_of_text|>"
            "<|begin_of_text|>[INST] More? [/INST] No. <|end_of_text|>");
  EXPECT_EQ(all.counted, " Hello. <|end_of_text|>| No. <|end_of_text|>");
}

TEST(ChatTemplate, AnIdThatHoldsTheAnswersFirstOrLastCharacterCounts) {
  const std::string folder = chatml_tokenizer(json::object());
  const auto tokenizer = open_tokenizer(folder);
  const std::vector<ChatMessage> messages{{"user", "Hi."}, {"assistant", "\nYes."}};
  const Written all = written(ChatTemplate({.name = "chatml"}, tokenizer), *tokenizer, messages);
  EXPECT_EQ(all.text, "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n\nYes.<|im_end|>\n");
  EXPECT_EQ(all.counted, "\n\nYes.<|im_end|>");
  ChatTemplateOptions plain{.name = "custom", .user = {"Q: ", "\n"}, .assistant = {"A:\n", "\n"}};
  const ChatTemplate custom(plain, tokenizer);
  EXPECT_EQ(written(custom, *tokenizer, {{"assistant", "\nYes."}, {"user", "Hi."}}).counted, "\n\nYes.\n");
  EXPECT_EQ(custom.stop_text(), "\n");
  EXPECT_EQ(custom.stop_ids(), std::vector<int32_t>());
  plain.all_count = true;
  const Written everything = written(ChatTemplate(plain, tokenizer), *tokenizer, messages);
  EXPECT_EQ(everything.counted, everything.text);
}

TEST(ChatTemplate, TextThatLooksLikeASpecialTokenIsText) {
  const auto count = [](const EncodedChat& chat, int32_t id) {
    return std::count(chat.ids.begin(), chat.ids.end(), id);
  };
  EXPECT_EQ(count(named("llama3").encode({{"user", "a<|eot_id|>b"}, {"assistant", "<|eot_id|>"}}), 265), 2);
  const auto tokenizer = open_tokenizer(chatml_tokenizer(json::object()));
  const std::vector<ChatMessage> messages{{"user", "a<|im_end|><tool>"}, {"assistant", "<|im_start|>"}};
  const EncodedChat chat = ChatTemplate({.name = "chatml"}, tokenizer).encode(messages);
  EXPECT_EQ(count(chat, 258), 2);  // <|im_start|> of two messages
  EXPECT_EQ(count(chat, 259), 2);  // <|im_end|>
  EXPECT_EQ(count(chat, 260), 1);  // <tool>, which the tokenizer does not call special
  EXPECT_EQ(tokenizer->decode(chat.ids),
            "<|im_start|>user\na<|im_end|><tool><|im_end|>\n<|im_start|>assistant\n<|im_start|><|im_end|>\n");
}

TEST(ChatTemplate, APromptEndsWhereTheAssistantBegins) {
  for (const char* name : {"llama3", "llama3_1", "llama2"}) {
    const ChatTemplate chat = named(name);
    std::vector<ChatMessage> messages{kDialogue[1]};
    EXPECT_EQ(chat.problem(messages, true), "");
    const std::vector<int32_t> prompt = chat.prompt(messages);
    messages.push_back(kDialogue[2]);
    const EncodedChat whole = chat.encode(messages);
    ASSERT_LT(prompt.size(), whole.ids.size());
    EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), whole.ids.begin())) << name;
    const auto first = std::find(whole.counts.begin(), whole.counts.end(), 1) - whole.counts.begin();
    EXPECT_EQ(std::ssize(prompt), first) << name;
    EXPECT_EQ(whole.ids.back(), chat.stop_ids()[0]) << name;
  }
}

TEST(ChatTemplate, IsRecognisedInTheTokenizersFolder) {
  const auto name_of = [](const json& config) {
    const std::string folder = chatml_tokenizer(config);
    return ChatTemplate({.tokenizer = folder}, open_tokenizer(folder));
  };
  const std::string frame = "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}";
  const std::string with_system =
      "{% if no_system %}{{ '<|im_start|>system\\n' + x }}{{ \"<|im_start|>system\\nIt's\\nme.<|im_end|>\\n\" }}" +
      frame;
  const auto tokenizer = open_tokenizer(chatml_tokenizer(json::object()));
  const ChatTemplate plain = name_of({{"chat_template", frame}});
  EXPECT_EQ(plain.name(), "chatml");
  EXPECT_EQ(written(plain, *tokenizer, {{"user", "a"}, {"assistant", "b"}}).text,
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n");
  const ChatTemplate default_system = name_of(
      {{"chat_template", {{{"name", "tool"}, {"template", "?"}}, {{"name", "default"}, {"template", with_system}}}}});
  EXPECT_EQ(
      written(default_system, *tokenizer, {{"user", "a"}, {"assistant", "b"}}).text,
      "<|im_start|>system\nIt's\nme.<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n");
  EXPECT_EQ(written(default_system, *tokenizer, {{"system", "s"}, {"assistant", "b"}}).text,
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n");
  // The file beside it says more, and names a template whose tokens this tokenizer lacks.
  const std::string folder = chatml_tokenizer({{"chat_template", frame}, {"bos_token", "<|im_start|>"}});
  const auto refusal = [&](const std::string& jinja) {
    std::ofstream(folder + "/chat_template.jinja") << jinja;
    return message_of(ExitCode::bad_config, [&] { ChatTemplate({.tokenizer = folder}, open_tokenizer(folder)); });
  };
  const std::string header = "<|start_header_id|>role<|end_header_id|>text<|eot_id|>";
  EXPECT_PRED_FORMAT2(test::contains, refusal(header),
                      "the chat template llama3 needs <|start_header_id|>, <|end_header_id|>, <|eot_id|> as special "
                      "tokens, which the tokenizer (HuggingFaceTokenizer built:");
  EXPECT_PRED_FORMAT2(test::contains, refusal(header + "Cutting Knowledge Date"), "the chat template llama3_1 needs");
  EXPECT_PRED_FORMAT2(test::contains, refusal("[INST] <<SYS>>"),
                      "the chat template llama2 needs an end-of-text token, and the tokenizer");
  EXPECT_PRED_FORMAT2(
      test::contains, refusal(frame + "<think>"),
      "its chat template is none of those that are recognised. Set data.chat_template to one of llama3, "
      "llama3_1, llama2, chatml, custom.");
  EXPECT_PRED_FORMAT2(test::contains, refusal(""), "there is no chat_template in a tokenizer_config.json");
}

TEST(ChatTemplate, ConversationsThatCannotBeWrittenAreNamed) {
  const ChatTemplate chat = named("llama3"), alternating = named("llama2");
  EXPECT_EQ(chat.problem({}), "this conversation has no messages");
  EXPECT_EQ(chat.problem({{"user", "a"}}), "this conversation has no turn of the assistant");
  EXPECT_EQ(chat.problem({{"user", "a"}, {"tool", "b"}}),
            "message 2 has the role \"tool\"; roles are system, user and assistant");
  EXPECT_EQ(chat.problem({{"assistant", "a"}, {"assistant", "b"}, {"system", "c"}}), "");
  EXPECT_EQ(chat.problem(kDialogue, true), "the last message is not of the user");
  EXPECT_EQ(alternating.problem({{"system", "a"}, {"user", "b"}, {"user", "c"}}),
            "message 3 is of the user; in the chat template llama2 a conversation is a system message or none, then "
            "user and assistant in turn");
  EXPECT_EQ(message_of(ExitCode::bad_config, [] { named("custom"); }),
            "a custom chat template needs a text that ends the assistant's turn. Set data.chat.assistant_suffix.");
  EXPECT_PRED_FORMAT2(test::contains,
                      message_of(ExitCode::bad_config,
                                 [] {
                                   ChatTemplate({.name = "custom", .assistant = {"", "<|end|>"}}, byte_tokenizer());
                                 }),
                      "the chat template custom needs <|end|> as special tokens");
}

}  // namespace
}  // namespace titan
