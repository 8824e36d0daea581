#include "src/text/chat_control_tokens.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/files.h"
#include "support/texts.h"
#include "tests/text/sentencepiece_files.h"
#include "titan/text/chat.h"
#include "titan/text/tokenizer.h"

namespace titan {
namespace {

using Names = std::vector<std::string>;

TEST(ControlTokens, AreThoseThatATemplateItselfWrites) {
  const auto split = [](const char* written, const std::set<std::string>& known, bool ends) {
    return split_control_tokens({written}, known, /*held=*/{"<|endoftext|>"}, ends);
  };
  const char* chatml = "<|im_start|>user\nhello<|im_end|>\n";
  EXPECT_EQ(split(chatml, {"<|im_start|>", "<|im_end|>"}, true), Names{});
  EXPECT_EQ(split(chatml, {"<|im_end|>"}, true), Names{"<|im_start|>"});
  EXPECT_EQ(split(chatml, {}, false), (Names{"<|im_end|>", "<|im_start|>"}));
  // Zephyr's are plain text, and its turns end in the eos_token, a variable.
  EXPECT_EQ(split("<|user|>\nhello<|endoftext|>", {"<|endoftext|>"}, true), Names{});
  EXPECT_EQ(split("<|user|>\nhello", {}, false), Names{"<|user|>"});
  EXPECT_EQ(split("<｜User｜>hello<|endoftext|>", {"<｜User｜>"}, true), Names{});
}

/// What a template writes around the turns of a conversation.
struct Turns {
  const char* model;
  std::string user, assistant, end;
  Names refused;
};

Names split_in(const Turns& turns, bool ends_in_token) {
  const std::string middle = turns.end + turns.assistant;
  return split_control_tokens({turns.user, middle, turns.end}, /*known=*/{}, /*held=*/{"<|endoftext|>"}, ends_in_token);
}

TEST(ControlTokens, OfEveryPublishedShapeAreRefusedWhereTheyAreSplit) {
  const char* eos = "<|endoftext|>";
  const std::vector<Turns> all = {
      {"DeepSeek",
       "<｜User｜>",
       "<｜Assistant｜>",
       "<｜end▁of▁sentence｜>",
       {"<｜Assistant｜>", "<｜User｜>", "<｜end▁of▁sentence｜>"}},
      {"DeepSeek, with another end", "<｜User｜>", "<｜Assistant｜>", eos, {"<｜Assistant｜>", "<｜User｜>"}},
      {"Hunyuan", "<｜hy_User｜>", "<｜hy_Assistant｜>", eos, {"<｜hy_Assistant｜>", "<｜hy_User｜>"}},
      {"Gemma",
       "<start_of_turn>user\n",
       "<start_of_turn>model\n",
       "<end_of_turn>\n",
       {"<end_of_turn>", "<start_of_turn>"}},
      {"Gemma 4", "<|turn>user\n", "<|turn>model\n", "<turn|>\n", {"<turn|>", "<|turn>"}},
      {"SmolVLM", "User: ", "Assistant: ", "<end_of_utterance>\n", {"<end_of_utterance>"}},
      {"Nemotron", "<extra_id_1>User\n", "<extra_id_1>Assistant\n", "\n", {"<extra_id_1>"}},
      {"Nemotron-H",
       "<SPECIAL_11>User\n",
       "<SPECIAL_11>Assistant\n",
       "\n<SPECIAL_12>\n",
       {"<SPECIAL_11>", "<SPECIAL_12>"}},
      {"Baichuan", "<reserved_106>", "<reserved_107>", eos, {"<reserved_106>", "<reserved_107>"}},
      {"Seed", "<seed:bos>user\n", "<seed:bos>assistant\n", "<seed:eos>", {"<seed:bos>", "<seed:eos>"}},
      {"MiniMax",
       "<beginning_of_sentence>user\n",
       "<beginning_of_sentence>ai\n",
       "<end_of_sentence>\n",
       {"<beginning_of_sentence>", "<end_of_sentence>"}},
      {"TeleChat", "<_user>", "<_bot>", "<_end>", {"<_bot>", "<_end>", "<_user>"}},
      {"LongCat", "[Round 0] USER:", " ASSISTANT:", "</longcat_s>", {"</longcat_s>"}},
      {"tekken", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT][INST]", eos, {"[/SYSTEM_PROMPT]", "[SYSTEM_PROMPT]"}},
      {"GLM", "[gMASK]<sop>user\n", "assistant\n", eos, {"<sop>", "[gMASK]"}},
      {"InternLM", "User:", "Bot:", "<eoa>\n", {"<eoa>"}},
      {"Reka", "human: ", " assistant: ", " <sep> ", {"<sep>"}},
  };
  for (const Turns& turns : all) {
    EXPECT_EQ(split_in(turns, /*ends_in_token=*/true), turns.refused) << turns.model;
  }
}

TEST(ControlTokens, OfAShapeThatMayBePlainTextAreRefusedUnlessATurnEndsInAToken) {
  const std::vector<Turns> all = {
      {"Zephyr", "<|user|>\n", "<|assistant|>\n", "</s>\n", {"</s>", "<|assistant|>", "<|user|>"}},
      {"Exaone", "[|user|]", "[|assistant|]", "[|endofturn|]\n", {"[|assistant|]", "[|endofturn|]", "[|user|]"}},
  };
  for (const Turns& turns : all) {
    EXPECT_EQ(split_in(turns, /*ends_in_token=*/true), Names{}) << turns.model;
    EXPECT_EQ(split_in(turns, /*ends_in_token=*/false), turns.refused) << turns.model;
  }
}

TEST(ControlTokens, AreNotTagsAndWordsThatPublishedTokenizersSplit) {
  const char* eos = "<|endoftext|>";
  const std::vector<Turns> all = {
      {"Llama 2", "[INST] <<SYS>>\nrule\n<</SYS>>\n\n", " [/INST] ", eos, {}},
      {"reasoning", "User: ", "Assistant: <think>\n\n</think>\n\n", eos, {}},
      {"reasoning that the prompt begins", "User: ", "<think>\n", eos, {}},
      {"tools", "<tool_response>\nUser: ", "<tool_call>\n", eos, {}},
      {"pairs", "<user_turn>", "</user_turn><bot_turn>", "</bot_turn>", {}},
      {"Ling without its tokens", "<role>HUMAN</role>", "<role>ASSISTANT</role>", eos, {}},
      {"OpenChatKit", "<human>: ", "<bot>: ", eos, {}},
      {"HTML", "<b>User:</b> ", "<br>", eos, {}},
      {"a sentence", "Write a <first_plan> for [YOUR_NAME] here.\nUser: ", "### Answer:\n", eos, {}},
      {"Alpaca", "### Instruction:\n", "\n\n### Response:\n", eos, {}},
  };
  for (const Turns& turns : all) {
    EXPECT_EQ(split_in(turns, /*ends_in_token=*/true), turns.refused) << turns.model;
    EXPECT_EQ(split_in(turns, /*ends_in_token=*/false), turns.refused) << turns.model;
  }
}

TEST(ControlTokens, MayBePiecesOfTheVocabularyThatAreNoSpecialTokens) {
  test::TemporaryFolder folder;
  folder.write("chat_template.jinja",
               "{% for m in messages %}{{ ('<user_turn>' if m.role == 'user' else '<bot_turn>') + m.content + '</s>' }}"
               "{% endfor %}{% if add_generation_prompt %}<bot_turn>{% endif %}");
  const auto open = [&](const std::string& pieces) {
    using enum SentencePiece::Type;
    folder.write("tokenizer.model",
                 test::model_file(test::byte_pieces() + test::piece("<user_turn>", 0, user_defined) + pieces,
                                  SentencePieceModel::Kind::bpe, false, /*byte_fallback=*/true));
    ChatTemplate({.name = "auto", .tokenizer = folder.string()}, open_tokenizer(folder.string()));
  };
  EXPECT_NO_THROW(open(test::piece("<bot_turn>", 0, SentencePiece::Type::user_defined)));
  EXPECT_PRED_FORMAT2(test::contains, test::message_of(ExitCode::bad_config, [&] { open(""); }),
                      "it writes <bot_turn>, which the tokenizer splits into several ids");
}

}  // namespace
}  // namespace titan
