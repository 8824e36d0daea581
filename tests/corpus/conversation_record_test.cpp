// What a record of a conversation says is followed or refused by name. Labels and texts of the same kinds as
// transformers writes them: tests/reference/chat_test.py.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/corpus/text_files.h"
#include "support/files.h"
#include "support/texts.h"

namespace titan {
namespace {

using nlohmann::json;
using test::byte_tokenizer;
using test::contains;
using test::TemporaryFolder;

/// Writes "role(name):content|", before the content "[reasoning]", and the variable `style` first.
constexpr const char* kJinja = R"({{- style if style is defined else '' -}}
{%- for m in messages -%}
  {{- m.role[0] + ('(' + m.name + ')' if m.name else '') + ':' -}}
  {%- if m.reasoning_content -%}{{- '[' + m.reasoning_content + ']' -}}{%- endif -%}
  {{- m.content + '<|end_of_text|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'a:' -}}{%- endif -%})";
/// Writes the parts of a list one by one, with a "+" between them.
constexpr const char* kJinjaOfParts = R"({%- for m in messages -%}{{- m.role[0] + ':' -}}
  {%- if m.content is string -%}{{- m.content -}}
  {%- else -%}{%- for part in m.content -%}{{- part.text + ('' if loop.last else '+') -}}{%- endfor -%}{%- endif -%}
  {{- '<|end_of_text|>' -}}
{%- endfor -%})";

class ConversationRecord : public testing::Test {
 protected:
  RecordText read(const std::string& line, const std::vector<std::string>& ignored = {}, const char* jinja = kJinja,
                  bool all = false) const {
    folder_.write("chat_template.jinja", jinja);
    const ChatTemplate chat({.name = "auto", .tokenizer = folder_.string(), .all_count = all}, byte_tokenizer());
    return read_conversation(line, chat, ignored);
  }

  /// The text, "|" for end-of-text, and below it "^" for labels. Of a bad record: the problem.
  std::string shown(const std::string& line, const char* jinja = kJinja, bool all = false) const {
    const RecordText read = this->read(line, {}, jinja, all);
    if (!read.chat) return read.problem;
    std::string text, marks;
    for (size_t i = 0; i < read.chat->ids.size(); ++i) {
      text += read.chat->ids[i] == 257 ? '|' : static_cast<char>(read.chat->ids[i]);
      marks += read.chat->counts[i] ? '^' : ' ';
    }
    EXPECT_EQ(read.unused, std::vector<std::string>()) << line;
    return text + "\n" + marks;
  }

  TemporaryFolder folder_;
};

/// A record of messages: a user's, an assistant's with these further fields, and so on.
std::string talk(const std::string& of_first, const std::string& of_second, const std::string& of_record = "") {
  return fmt::format(
      R"({{"messages": [{{"role": "user", "content": "q"{0}}}, {{"role": "assistant", "content": "a"{0}}},
      {{"role": "user", "content": "r"}}, {{"role": "assistant", "content": "b"{1}}}]{2}}})",
      of_first, of_second, of_record);
}

TEST_F(ConversationRecord, WeightAndTrainDecideWhichTurnsAreLabels) {
  const std::string text = "u:q|a:a|u:r|a:b|\n";
  EXPECT_EQ(shown(talk("", "")), text + "      ^^      ^^");
  EXPECT_EQ(shown(talk(R"(, "weight": 0)", R"(, "weight": 1)")), text + "              ^^");
  EXPECT_EQ(shown(talk(R"(, "weight": 0.0)", R"(, "weight": null)")), text + "              ^^");
  EXPECT_EQ(shown(talk(R"(, "train": false)", R"(, "train": true)")), text + "              ^^");
  EXPECT_EQ(shown(talk(R"(, "train": true)", R"(, "train": 0)")), text + "  ^   ^^        ");
  EXPECT_EQ(shown(talk(R"(, "weight": 1)", R"(, "weight": false)")), text + "      ^^        ");
  EXPECT_EQ(shown(talk(R"(, "weight": 0)", ""), kJinja, /*all=*/true), text + "^^ ^^^  ^^^^^^^^");
  for (const char* weight : {"0.5", "2", "\"1\"", "NaN", "[]"}) {
    EXPECT_EQ(shown(talk("", fmt::format(R"(, "weight": {})", weight))),
              "the \"weight\" of message 4 is neither 0 nor 1");
  }
  EXPECT_PRED_FORMAT2(contains, shown(talk("", R"(, "weight": 1, "train": false)")), "message 4 contradict each other");
}

TEST_F(ConversationRecord, FieldsThatTheTemplateReadsAreItsFields) {
  EXPECT_EQ(shown(talk(R"(, "name": "Ann")", R"(, "reasoning_content": "why")")),
            "u(Ann):q|a(Ann):a|u:r|a:[why]b|\n                ^^      ^^^^^^^");
  EXPECT_EQ(shown(talk(R"(, "name": null)", R"(, "reasoning_content": "")")), shown(talk("", "")));
  for (const char* name : {"thinking", "reasoning"}) {  // other names for it
    const std::string line = talk("", fmt::format(R"(, "{}": "why")", name));
    EXPECT_EQ(shown(line), shown(talk("", R"(, "reasoning_content": "why")")));
    EXPECT_EQ(read(line).unused, std::vector<std::string>());
  }
  EXPECT_EQ(read(talk("", R"(, "reasoning": "x", "thinking": "y")")).unused,
            (std::vector<std::string>{"messages[].reasoning"}));
  const RecordText text = read(talk("", R"(, "reasoning_content": "<|end_of_text|>")"));
  ASSERT_TRUE(text.chat);
  EXPECT_EQ(std::count(text.chat->ids.begin(), text.chat->ids.end(), 257), 4) << "text of a record is no special token";
  EXPECT_EQ(shown(talk("", R"(, "name": NaN)")),
            "the \"name\" of message 4 is NaN, infinite or beyond double precision");
}

/// Writes the names of a message's fields, and its content.
constexpr const char* kJinjaOfNames =
    "{%- for m in messages -%}{{- m | join(',') ~ ':' ~ m.content + '<|end_of_text|>' -}}{%- endfor -%}";

TEST_F(ConversationRecord, ATemplateThatWalksOverAMessageSeesAllItsFieldsInTheOrderOfTheRecord) {
  const auto begins = [&](const std::string& line, const std::string& text) {
    EXPECT_EQ(shown(line, kJinjaOfNames).substr(0, text.size()), text);
  };
  begins(R"({"messages": [{"lang": "en", "role": "user", "content": "q", "id": 7, "tag": null},
                          {"content": "a", "title": "T", "role": "assistant"}]})",
         "lang,role,content,id:q|content,title,role:a|");
  begins(R"({"conversations": [{"value": "q", "id": 7, "from": "human"}, {"from": "gpt", "value": "a"}]})",
         "content,id,role:q|role,content:a|");
  begins(R"({"prompt": "q", "completion": "a"})", "role,content:q|role,content:a|");
  const RecordText key = read(talk("", R"(, "<|end_of_text|>": 1)"), {}, kJinjaOfNames);
  ASSERT_TRUE(key.chat) << key.problem;
  EXPECT_EQ(std::count(key.chat->ids.begin(), key.chat->ids.end(), 257), 4) << "a field's name is no special token";
}

TEST_F(ConversationRecord, ANumberThatNoTemplateCanPrintDoesNoHarmUntilOneDoes) {
  constexpr const char* kJinjaOfValues = R"({%- for m in messages -%}
  {%- if m.role == 'user' -%}{{- m | tojson -}}{%- else -%}{{- m.content -}}{%- endif -%}{{- '<|end_of_text|>' -}}
{%- endfor -%})";
  for (const char* number : {"NaN", "[{\"x\": Infinity}]", "12345678901234567890"}) {
    const std::string line = talk(fmt::format(R"(, "score": {})", number), "");
    EXPECT_EQ(shown(line), shown(talk("", "")));
    EXPECT_TRUE(read(line, {}, kJinjaOfNames).chat);
    EXPECT_PRED_FORMAT2(contains, read(line, {}, kJinjaOfValues).problem,
                        "a number that is NaN, infinite or beyond 64 bits cannot be written as JSON");
  }
}

TEST_F(ConversationRecord, AnEmptyObjectIsNoNumberThatJsonDoesNotHave) {
  EXPECT_EQ(shown(talk("", R"(, "name": {})", R"(, "score": NaN)")), shown(talk("", "")));
  EXPECT_EQ(shown(talk("", R"(, "name": { })", R"(, "score": [1e999, -Infinity])")), shown(talk("", "")));
  EXPECT_EQ(shown(talk(R"(, "name": "[] {} NaN")", "", R"(, "score": NaN)")),
            shown(talk(R"(, "name": "[] {} NaN")", "")));
  EXPECT_EQ(shown(talk("", R"(, "name": [{}, 1e999])")),
            "the \"name\" of message 4 is NaN, infinite or beyond double precision");
  EXPECT_EQ(shown("NaN"),
            "this record has none of \"messages\", \"conversations\", \"prompt\" with \"completion\", and "
            "\"instruction\" with \"output\"");
}

TEST_F(ConversationRecord, AContentThatIsMissingOrAnEmptyListIsABadRecord) {
  EXPECT_EQ(shown(R"({"messages": [{"role": "user", "value": "q"}, {"role": "assistant", "value": "a"}]})"),
            "message 1 has no \"content\", but a \"value\": \"content\" goes with \"role\", \"value\" with \"from\"");
  EXPECT_EQ(shown(R"({"conversations": [{"from": "user", "content": "q"}]})"),
            "message 1 has no \"value\", but a \"content\": \"content\" goes with \"role\", \"value\" with \"from\"");
  EXPECT_EQ(shown(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null}]})"),
            "message 2 has no \"content\"");
  EXPECT_EQ(shown(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": []}]})"),
            "the \"content\" of message 2 is an empty list");
  EXPECT_EQ(shown(R"({"prompt": [{"role": "user", "content": "q"}], "completion": []})"),
            "the field \"completion\" of this record is an empty list");
  EXPECT_EQ(shown(R"({"instruction": "q", "input": [], "output": []})"),
            "the field \"output\" of this record is an empty list");
  EXPECT_EQ(shown(R"({"instruction": "q", "input": [], "output": ""})"), "u:q|a:|\n      ^");
}

TEST_F(ConversationRecord, AFieldOfAMessageIsNamedUnlessTheTemplateHasReadIt) {
  const auto unused = [&](const std::string& line, const char* jinja = kJinja) { return read(line, {}, jinja).unused; };
  using Names = std::vector<std::string>;
  constexpr const char* kOfOneRole = R"({%- for m in messages -%}
  {%- if m.role == 'assistant' -%}{{- m.name or '' -}}{%- endif -%}{{- m.content + '<|end_of_text|>' -}}
{%- endfor -%})";
  EXPECT_EQ(unused(R"({"messages": [{"role": "user", "content": "q"},
                       {"role": "assistant", "content": "a", "name": "Bob"}]})",
                   kOfOneRole),
            Names());
  const std::string ann = R"({"messages": [{"role": "user", "content": "q", "name": "Ann"},
                              {"role": "assistant", "content": "a", "name": "Bob"}]})";
  EXPECT_EQ(unused(ann, kOfOneRole), Names{"messages[].name"});
  EXPECT_EQ(unused(ann), Names());
  // The name is that of something else.
  constexpr const char* kOfCalls = R"({%- for m in messages -%}
  {%- if m.tool_calls -%}{{- m.tool_calls[0].name -}}{%- endif -%}{{- m.content + '<|end_of_text|>' -}}
{%- endfor -%})";
  EXPECT_EQ(unused(ann, kOfCalls), Names{"messages[].name"});
  // However a field is read.
  for (const std::string read :
       {"m['name']", "m.get('name', '')", "m.items() | list | length", "m | tojson | length", "m | join",
        "('name' in m) | string", "dict(m).name", "[m] | map(attribute='name') | join"}) {
    const std::string jinja =
        "{%- for m in messages -%}{{- " + read + " ~ m.content + '<|end_of_text|>' -}}{%- endfor -%}";
    EXPECT_EQ(unused(ann, jinja.c_str()), Names()) << read;
  }
  const std::string other = R"({"system": "s", "messages": [{"role": "user", "content": "q", "mood": "x"},
                                {"role": "assistant", "content": "a", "mood": "y"}], "rejected": "no"})";
  EXPECT_EQ(unused(other), (Names{"messages[].mood", "rejected"}));
}

TEST_F(ConversationRecord, WhatDecidesTheTrainingReachesTheTemplateAsItIs) {
  constexpr const char* kJinjaOfMarks =
      "{%- for m in messages -%}{{- m.weight ~ m.train ~ m.masked ~ m.function_call ~ "
      "('calls' if 'tool_calls' in m else '') ~ ':' ~ m.content + '<|end_of_text|>' -}}{%- endfor -%}";
  const std::string text = "1TrueFalse[]calls:q|1TrueFalse[]calls:a|:r|0:b|";
  const std::string marks = R"(, "weight": 1, "train": true, "masked": false, "function_call": "[]", "tool_calls": [])";
  EXPECT_EQ(shown(talk(marks, R"(, "weight": 0, "train": null)"), kJinjaOfMarks).substr(0, text.size()), text);
}

TEST_F(ConversationRecord, VariablesOfTheTemplateAreFollowed) {
  EXPECT_EQ(shown(talk("", "", R"(, "chat_template_kwargs": {"style": "S"})")).substr(0, 5), "Su:q|");
  EXPECT_EQ(shown(talk("", "", R"(, "chat_template_kwargs": {"tools": []})")),
            "\"chat_template_kwargs\" of this record sets \"tools\"");
  EXPECT_EQ(read(talk("", "", R"(, "chat_template_kwargs": {"mood": 1})")).unused,
            std::vector<std::string>{"chat_template_kwargs.mood"});
}

TEST_F(ConversationRecord, DictionariesReachTheTemplateInTheOrderOfTheRecord) {
  constexpr const char* kJinjaOfDictionaries = R"({{- spec | tojson if spec is defined else '' -}}
{%- for m in messages -%}
  {{- m.role[0] + ':' -}}{%- for key, value in (m.args or {}).items() -%}{{- key ~ '=' ~ value ~ ';' -}}{%- endfor -%}
  {{- m.content + '<|end_of_text|>' -}}
{%- endfor -%})";
  const std::string line = R"({"messages": [{"role": "user", "content": "q", "args": {"z": 1, "a": {"y": 2, "b": 3}}},
      {"role": "assistant", "content": "a", "args": {"b": 1, "a": 2, "b": 3}}],
      "chat_template_kwargs": {"spec": {"tone": "calm", "answer": 1}}})";
  const std::string text = R"({"tone": "calm", "answer": 1}u:z=1;a={'y': 2, 'b': 3};q|a:b=3;a=2;a|)";
  EXPECT_EQ(shown(line, kJinjaOfDictionaries).substr(0, text.size()), text);
}

TEST_F(ConversationRecord, ASystemBesideTheMessagesIsTheSystemMessage) {
  const std::string two = R"("messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])";
  const std::string expected = "s:be|u:q|a:a|\n           ^^";
  EXPECT_EQ(shown(R"({"system": "be", )" + two + "}"), expected);
  EXPECT_EQ(shown(R"({"system": [{"type": "text", "text": "be"}], )" + two + "}"), expected);
  EXPECT_EQ(shown(R"({"system": "be", "prompt": "q", "completion": "a"})"), expected);
  EXPECT_EQ(shown(R"({"system": "", )" + two + "}"), "u:q|a:a|\n      ^^");
  const std::string with = R"("messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "q"},
                              {"role": "assistant", "content": "a"}])";
  EXPECT_EQ(shown(R"({"system": "be", )" + with + "}"), expected);
  EXPECT_EQ(shown(R"({"system": "is", )" + with + "}"),
            "this record has \"system\" and a message of the system with another text");
}

TEST_F(ConversationRecord, PartsOfAContentGoToATemplateThatReadsThem) {
  const std::string line = R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}, {"text": "r"}]},
                              {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]})";
  EXPECT_EQ(shown(line), "u:qr|a:a|\n       ^^");
  EXPECT_EQ(shown(line, kJinjaOfParts).substr(0, 10), "u:q+r|a:a|");
  constexpr const char* kJinjaOfTheirNames = R"({%- for m in messages -%}
  {%- if m.content is string -%}{{- m.content -}}
  {%- else -%}{%- for part in m.content -%}{{- part | join(',') ~ '=' ~ part.text -}}{%- endfor -%}{%- endif -%}
  {{- '<|end_of_text|>' -}}
{%- endfor -%})";
  const std::string text = "text=q|text,id,type=a|", odd = R"({"messages": [
      {"role": "user", "content": [{"text": "q"}]},
      {"role": "assistant", "content": [{"text": "a", "id": 1, "type": "text"}]}]})";
  EXPECT_EQ(shown(odd, kJinjaOfTheirNames).substr(0, text.size()), text);
}

TEST_F(ConversationRecord, TheFormsOfOtherTrainersAreRead) {
  const std::string expected = "u:q|a:a|\n      ^^";
  EXPECT_EQ(shown(R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})"), expected);
  EXPECT_EQ(shown(R"({"conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
                      "messages": null})"),
            expected);
  EXPECT_EQ(shown(R"({"conversations": [{"role": null, "from": "human", "value": "q", "content": null},
                                        {"from": "gpt", "value": "a", "role": null}]})"),
            expected);
  EXPECT_EQ(shown(R"({"conversations": [{"from": "human", "value": "q"}, {"from": "observation", "value": "a"}]})"),
            "message 2 has the role \"observation\"; roles are system, user and assistant");
  EXPECT_EQ(shown(R"({"instruction": "q", "input": "", "output": "a"})"), expected);
  EXPECT_EQ(shown(R"({"instruction": "q", "input": "in", "output": "a", "history": [["x", "y"]], "system": "s"})"),
            "s:s|u:x|a:y|u:q\nin|a:a|\n          ^^         ^^");
  EXPECT_EQ(shown(R"({"instruction": "q", "output": 1})"), "the field \"output\" of this record is not text");
  EXPECT_EQ(
      shown(R"({"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]})"),
      expected);
  // As trl's loss on completions: the assistant's turns of the prompt are no labels.
  EXPECT_EQ(shown(R"({"prompt": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"},
                                 {"role": "user", "content": "q"}], "completion": "a"})"),
            "u:x|a:y|u:q|a:a|\n              ^^");
}

TEST_F(ConversationRecord, MessagesComeBeforeOtherFormsWhichAreNamed) {
  const RecordText both = read(talk("", "", R"(, "prompt": "p", "completion": "c")"));
  ASSERT_TRUE(both.chat);
  EXPECT_EQ(both.chat->ids.size(), 16u);
  EXPECT_EQ(both.unused, (std::vector<std::string>{"completion", "prompt"}));
}

TEST_F(ConversationRecord, WhatDecidesTheTrainingAndIsNotFollowedIsRefusedByName) {
  const std::string call = R"(, "function_call": {"name": "f"})";
  EXPECT_EQ(shown(talk("", call, R"(, "functions": [{"name": "f"}])")),
            "this record has \"functions\", \"function_call\" of message 4, which are not followed here");
  EXPECT_EQ(shown(talk("", R"(, "masked": true)")),
            "this record has \"masked\" of message 4, which is not followed here");
  EXPECT_EQ(shown(talk(R"(, "masked": false)", R"(, "function_call": null)", R"(, "tools": "[]")")),
            shown(talk("", "")));
  EXPECT_TRUE(read(talk("", call), {"function_call"}).chat) << "unless data.ignore_fields names it";
  for (const char* name : {"loss", "training", "trainable"}) {
    for (const char* no : {"false", "0"}) {
      EXPECT_EQ(shown(talk("", fmt::format(R"(, "{}": {})", name, no))),
                fmt::format("this record has \"{}\" of message 4, which is not followed here", name));
    }
    EXPECT_EQ(shown(talk(fmt::format(R"(, "{}": true)", name), "")),
              fmt::format("this record has \"{}\" of message 1, which is not followed here", name));
    EXPECT_EQ(shown(talk("", fmt::format(R"(, "{}": true)", name))), shown(talk("", "")));
  }
  EXPECT_EQ(read(talk("", R"(, "loss": 0.5)")).unused, std::vector<std::string>{"messages[].loss"});
  EXPECT_EQ(shown(R"({"messages": [{"role": "tool", "content": "q"}]})"),
            "message 1 has the role \"tool\"; roles are system, user and assistant");
}

TEST_F(ConversationRecord, FieldsThatNothingReadsAreNamedUnlessTheyAreHarmlessOrEmpty) {
  EXPECT_EQ(read(talk("", "", R"(, "id": 3, "source": "x", "score": 1.5, "notes": null, "extra": [])")).unused,
            std::vector<std::string>());
  const std::string line = talk("", R"(, "mood": "t")", R"(, "id": 3, "rejected": "no")");
  EXPECT_EQ(read(line).unused, (std::vector<std::string>{"messages[].mood", "rejected"}));
  EXPECT_EQ(read(line, {"mood", "rejected"}).unused, std::vector<std::string>());
}

TEST_F(ConversationRecord, AHistoryThatIsNoListIsRefused) {
  for (const char* history : {R"({"x": ["q", "a"]})", R"("q")", R"([["q"]])", R"([["q", 1]])"}) {
    EXPECT_EQ(shown(fmt::format(R"({{"instruction": "q", "output": "a", "history": {}}})", history)),
              "the field \"history\" of this record is not a list of pairs of texts")
        << history;
  }
}

TEST_F(ConversationRecord, WhatDecidesAboutAMessageIsNamedBesideTheMessages) {
  const std::string more = R"(, "weight": 0, "train": false, "thinking": "t", "prompt": "p", "completion": "c")";
  EXPECT_EQ(read(talk("", "", more)).unused,
            (std::vector<std::string>{"completion", "prompt", "thinking", "train", "weight"}));
  EXPECT_PRED_FORMAT2(test::contains, read(talk("", "", R"(, "masked": true)")).problem, "this record has \"masked\"");
}

TEST_F(ConversationRecord, AFieldIsNamedOncePerCorpus) {
  folder_.write("chat_template.jinja", kJinja);
  std::string lines;
  for (int i = 0; i < 5; ++i) lines += json::parse(talk("", "", R"(, "chosen": "no")")).dump() + "\n";
  lines += json::parse(talk("", "", R"(, "rejected": "no", "chosen": "no")")).dump() + "\n";
  DatasetOptions options{.dataset = "chat", .path = folder_.write("a.jsonl", lines)};
  options.chat = std::make_shared<ChatTemplate>(ChatTemplateOptions{.name = "auto", .tokenizer = folder_.string()},
                                                byte_tokenizer());
  const auto notices = [&] {
    const auto source = open_dataset(options);
    Document document;
    for (int pass = 0; pass < 2; ++pass, source->seek({})) {
      while (source->next(document)) continue;
    }
    return source->take_notices();
  };
  const std::string end = ", which is not used; if that is right, name it in data.ignore_fields";
  EXPECT_EQ(notices(), (std::vector<std::string>{options.path + ":1: this conversation has \"chosen\"" + end,
                                                 options.path + ":6: this conversation has \"rejected\"" + end}));
  options.ignore_fields = {"chosen", "rejected"};
  EXPECT_EQ(notices(), std::vector<std::string>());
}

}  // namespace
}  // namespace titan
