// What each template makes of a conversation, which ids count, and what is said where it makes nothing of one. Ids
// against `transformers` itself: tests/reference/chat_test.py.
#include "titan/text/chat.h"

#include <fstream>

#include "conversations.h"
#include "published_templates.h"

namespace titan {
namespace {

using nlohmann::json;
using test::byte_tokenizer;
using test::chatml_tokenizer;
using test::kChatml;
using test::kDate;
using test::kDialogue;
using test::kLlama2;
using test::kLlama3;
using test::kLlama31;
using test::kQwen25;
using test::message_of;
using test::of_source;
using test::replaced;
using test::with_system;
using test::written;
using test::Written;

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
  ChatTemplateOptions plain{
      .name = "custom",
      .custom = {.user_prefix = "Q: ", .user_suffix = "\n", .assistant_prefix = "A:\n", .assistant_suffix = "\n"}};
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
    const std::vector<int32_t> prompt = chat.prompt(messages).ids;
    messages.push_back(kDialogue[2]);
    const EncodedChat whole = chat.encode(messages);
    ASSERT_LT(prompt.size(), whole.ids.size());
    EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), whole.ids.begin())) << name;
    const auto first = std::find(whole.counts.begin(), whole.counts.end(), 1) - whole.counts.begin();
    EXPECT_EQ(std::ssize(prompt), first) << name;
    EXPECT_EQ(whole.ids.back(), chat.stop_ids()[0]) << name;
  }
}

TEST(ChatTemplate, ThatOfTheTokenizersFolderIsRun) {
  const std::string turns = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n";
  const auto says = [&](const json& jinja, const std::string& system) {
    const std::string folder = chatml_tokenizer({{"chat_template", jinja}});
    const auto tokenizer = open_tokenizer(folder);
    const ChatTemplate chat({.tokenizer = folder}, tokenizer);
    EXPECT_EQ(chat.name(), folder + "/tokenizer_config.json");
    const Written all = written(chat, *tokenizer, {{"user", "a"}, {"assistant", "b"}});
    EXPECT_EQ(all.text, (system.empty() ? "" : "<|im_start|>system\n" + system + "<|im_end|>\n") + turns);
    EXPECT_EQ(all.counted, "b<|im_end|>");
    EXPECT_EQ(written(chat, *tokenizer, {{"system", "s"}, {"assistant", "b"}}).text,
              "<|im_start|>system\ns<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n");
  };
  says(kChatml, "");
  says(json::array(
           {{{"name", "tool"}, {"template", "?"}},
            {{"name", "default"}, {"template", with_system("\"<|im_start|>system\\nIt's\\nme.<|im_end|>\\n\"")}}}),
       "It's\nme.");
  says(with_system("'<|im_start|>system\nA line feed as such.<|im_end|>\n'"), "A line feed as such.");
  says(kQwen25, "You are Qwen.");
  const std::string folder = chatml_tokenizer({{"chat_template", nullptr}});
  EXPECT_PRED_FORMAT2(
      test::contains,
      message_of(ExitCode::bad_config, [&] { ChatTemplate({.tokenizer = folder}, open_tokenizer(folder)); }),
      "there is no chat_template in a tokenizer_config.json or chat_template.jinja. Set data.chat_template to one of "
      "llama3, llama3_1, llama2, chatml, custom.");
}

TEST(ChatTemplate, PublishedOnesWriteWhatTheBuiltInOnesDo) {
  const std::string today =
      "{%- if strftime_now is defined %}{%- set date_string = strftime_now(\"%d %b %Y\") %}"
      "{%- else %}" +
      kDate + "{%- endif %}";
  const std::vector<ChatMessage> more{kDialogue[0],          kDialogue[1],  kDialogue[2],      {"user", "\n?"},
                                      {"assistant", " \n "}, {"user", " "}, {"assistant", "!"}};
  for (const auto& [name, jinja] :
       std::vector<std::pair<std::string, std::string>>{{"llama3", kLlama3},
                                                        {"llama3_1", replaced(kLlama31, "DATE", kDate)},
                                                        {"llama3_1", replaced(kLlama31, "DATE", today)},
                                                        {"llama2", kLlama2}}) {
    const ChatTemplate built_in = named(name), published = of_source(jinja);
    for (const std::vector<ChatMessage>& messages : {kDialogue, more, {more.begin() + 1, more.end()}}) {
      const EncodedChat expected = built_in.encode(messages), found = published.encode(messages);
      EXPECT_EQ(found.problem, "");
      EXPECT_EQ(found.ids, expected.ids) << name;
      EXPECT_EQ(found.counts, expected.counts) << name;
      EXPECT_GT(std::count(found.counts.begin(), found.counts.end(), 1), 1);
    }
    EXPECT_EQ(published.prompt({kDialogue[1]}).ids, built_in.prompt({kDialogue[1]}).ids) << name;
    EXPECT_EQ(published.stop_ids(), built_in.stop_ids()) << name;
  }
}

TEST(ChatTemplate, ConversationsThatCannotBeWrittenAreNamed) {
  const ChatTemplate chat = named("llama3"), alternating = named("llama2");
  EXPECT_EQ(chat.encode({}).problem, "this conversation has no messages");
  EXPECT_EQ(chat.encode({{"user", "a"}}).problem, "this conversation has no turn of the assistant");
  EXPECT_EQ(chat.encode({{"user", "a"}, {"tool", "b"}}).problem,
            "message 2 has the role \"tool\"; roles are system, user and assistant");
  EXPECT_EQ(chat.encode({{"assistant", "a"}, {"assistant", "b"}, {"system", "c"}}).problem, "");
  EXPECT_EQ(chat.prompt(kDialogue).problem, "the last message is not of the user");
  const EncodedChat refused = alternating.encode({{"system", "a"}, {"user", "b"}, {"user", "c"}, {"assistant", "d"}});
  EXPECT_EQ(
      refused.problem,
      "the chat template llama2 refuses message 3 (of the user): a conversation is a system message or none, then "
      "user and assistant in turn");
  EXPECT_EQ(refused.ids, std::vector<int32_t>());
  const auto said = [](const std::string& content, const std::string& system) {
    const ChatTemplate one = of_source("{% for m in messages %}{{ m.role + " + content + " + eos_token }}{% endfor %}");
    const std::string problem = one.encode({{"system", system}, {"user", "b"}, {"assistant", "c"}}).problem;
    return problem.substr(std::min(problem.size(), problem.rfind(".jinja") + 7));
  };
  EXPECT_EQ(said("(m.content if m.role != 'system' else '')", "a"), "leaves out message 1 (of the system)");
  EXPECT_EQ(said("(m.content + m.content if m.role == 'system' else m.content)", "a"),
            "repeats message 1 (of the system)");
  EXPECT_EQ(said("(m.content.zfill(3) if 'x' in m.content else m.content)", "x"),
            "cannot write it: the method \"zfill\" with 1 arguments is not supported");
  EXPECT_EQ(said("m.content", "a"), "");
  EXPECT_EQ(message_of(ExitCode::bad_config, [] { named("custom"); }),
            "a custom chat template needs a text that ends the assistant's turn. Set data.chat.assistant_suffix.");
  EXPECT_PRED_FORMAT2(
      test::contains,
      message_of(ExitCode::bad_config,
                 [] { ChatTemplate({.name = "custom", .custom = {.assistant_suffix = "<|end|>"}}, byte_tokenizer()); }),
      "the chat template custom needs <|end|> as special tokens");
}

TEST(ChatTemplate, ATokenThatTransformersFindsAtOtherPlacesIsRefusedByName) {
  const auto open = [](const std::string& flag, const json& normalizer, const std::string& jinja) {
    const std::string folder = chatml_tokenizer({{"chat_template", jinja}}), path = folder + "/tokenizer.json";
    json file = json::parse(std::ifstream(path));
    for (json& token : file["added_tokens"]) token[flag] = true;
    file["normalizer"] = normalizer;
    std::ofstream(path) << file;
    ChatTemplate({.tokenizer = folder}, open_tokenizer(folder));
  };
  const json prepend{{"type", "Prepend"}, {"prepend", "x"}}, nfc{{"type", "NFC"}}, nfkc{{"type", "NFKC"}};
  const auto said = [&](const std::string& flag, const json& normalizer, const std::string& jinja) {
    return message_of(ExitCode::bad_config, [&] { open(flag, normalizer, jinja); });
  };
  const std::string finds = "by its flags single_word and normalized, transformers finds ";
  EXPECT_PRED_FORMAT2(test::contains, said("single_word", nullptr, kChatml), finds + "<|im_start|> at other places");
  EXPECT_PRED_FORMAT2(test::contains, said("normalized", prepend, kChatml), finds + "<|im_start|> at other places");
  const std::string wide = replaced(kChatml, "<|im_end|>", "\uFF1C|im_end|>");
  EXPECT_PRED_FORMAT2(test::contains, said("normalized", nfkc, wide), finds + "<|im_end|> at other places");
  open("normalized", nullptr, kChatml);
  open("normalized", nfc, kChatml);
  open("lstrip", prepend, kChatml);
}

TEST(ChatTemplate, ACustomOnesTextsAreWrittenAsTheyAre) {
  const std::string odd = "it's {{ a }} {% b %} \\ \"c\" {#\r\n";
  const ChatTemplate chat(
      {.name = "custom", .custom = {.begin = odd, .user_prefix = odd, .user_suffix = "\n", .assistant_suffix = odd}},
      byte_tokenizer());
  EXPECT_EQ(written(chat, *byte_tokenizer(), {{"user", "a"}, {"assistant", "b"}}).text, odd + odd + "a\nb" + odd);
  EXPECT_EQ(chat.stop_text(), odd);
}

}  // namespace
}  // namespace titan
