// Chat templates in Jinja: which ids count, what is refused, and what the language means.
#include <gtest/gtest.h>

#include "conversations.h"
#include "published_templates.h"
#include "titan/text/chat.h"

namespace titan {
namespace {

using nlohmann::json;
using test::byte_tokenizer;
using test::chatml_tokenizer;
using test::kLlama3;
using test::message_of;
using test::of_source;
using test::replaced;
using test::written;

TEST(ChatTemplate, WhatCountsIsFoundInWhateverTheTemplateWrites) {
  const auto counted = [](const std::string& jinja, const std::vector<ChatMessage>& messages) {
    return written(of_source(jinja), *byte_tokenizer(), messages).counted;
  };
  const std::string loop = "{% for m in messages %}", end = "{% endfor %}";
  const std::string role = "{{ m.role + ': ' }}",
                    prompt = "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";
  const std::vector<ChatMessage> two{{"user", "Hi"}, {"assistant", "a"}, {"user", "More"}, {"assistant", " b\n"}};
  // Without a special token after the answer all that follows the last one counts.
  EXPECT_EQ(counted(loop + role + "{{ m.content }}###\n" + end + prompt, two), "a###\n| b\n###\n");
  EXPECT_EQ(of_source(loop + role + "{{ m.content }}###\n" + end).stop_text(), "###\n");
  // What is written of the turn between a prompt's end and the content counts; so do thoughts that are split off it.
  const std::string thinks =
      loop +
      "{% if '</t>' in m.content %}{{ m.role + ': <t>' + m.content.split('</t>')[0].split('<t>')[-1] "
      "+ '</t>' + m.content.split('</t>')[-1].lstrip('\\n') }}{% elif m.role == 'assistant' %}"
      "{{ m.role + ': <t></t>' + m.content }}{% else %}{{ m.role + ': ' + m.content }}{% endif %}"
      "{{ '<|eot_id|>' }}" +
      end + prompt;
  EXPECT_EQ(counted(thinks, {{"user", "a"}, {"assistant", "<t>b</t>\nc"}, {"user", "d"}, {"assistant", "e"}}),
            "<t>b</t>c<|eot_id|>|<t></t>e<|eot_id|>");
  // Blank contents have their place, with what ends the turn; where the template asks for them they have none.
  EXPECT_EQ(counted(kLlama3, {{"user", "a"}, {"assistant", " "}, {"user", "b"}, {"assistant", ""}}),
            "<|eot_id|>|<|eot_id|>");
  EXPECT_EQ(counted(replaced(kLlama3, "message['content']", "(message['content'] or '!')"),
                    {{"user", ""}, {"assistant", "b"}, {"user", "c"}, {"assistant", ""}}),
            "b<|eot_id|>");
  // Without a generation prompt the model writes the name of its role too. Here only the last turn has an end.
  EXPECT_EQ(counted("{% for m in messages %}{{ {'assistant': 'model'}.get(m.role, m.role) + m.content }}"
                    "{{ eos_token if loop.last and not add_generation_prompt }}{% endfor %}",
                    two),
            "modela|model b\n<|end_of_text|>");
}

TEST(ChatTemplate, ControlTokensThatAreNotOneIdAreRefusedAlsoWhereTheTemplateMakesThemOfPieces) {
  const auto refusal = [](const std::string& user) {
    const std::string turn = "{{ " + user + " + m.content + '<|im_end|>' }}";
    const std::string folder = chatml_tokenizer({{"chat_template", "{% for m in messages %}" + turn + "{% endfor %}"}});
    return message_of(ExitCode::bad_config, [&] { ChatTemplate({.tokenizer = folder}, open_tokenizer(folder)); });
  };
  const std::string splits = ", which the tokenizer splits into several ids";
  EXPECT_PRED_FORMAT2(test::contains, refusal("'<|' + m.role + '|>'"),
                      "it writes <|assistant|>, <|system|>, <|user|>" + splits);
  EXPECT_PRED_FORMAT2(test::contains, refusal("'<|turn|>' + m.role"), "it writes <|turn|>" + splits);
}

TEST(ChatTemplate, WhatCannotBeRunIsRefusedByItsName) {
  const std::string all = "{% for m in messages %}{{ m.role + m.content + eos_token }}{% endfor %}";
  std::string deep = all + "{{ ";
  for (int i = 0; i < 500; ++i) deep += "(";
  std::string filters = all + "{{ 'a'";
  for (int i = 0; i < 2000; ++i) filters += " | trim";
  for (const auto& [jinja, what] : std::vector<std::pair<std::string, std::string>>{
           {all + "{% trans %}", "line 1: the tag \"trans\" is not supported here"},
           {"\n" + all + "{% if true %}", "line 2: the template ends too early"},
           {all + "{% endfor %}", "the tag \"endfor\" is not supported here"},
           {all + "{% break %}", "the tag \"break\" is not supported here"},
           {all + "{{ 'a\\xq' }}", "an escape is damaged"},
           {all + "{{ 1 ? 2 }}", "unexpected \"?\""},
           {all + "{{ 'a }}", "the template ends too early"},
           {all + "{{", "the template ends too early"},
           {all + "{#", "a comment does not end"},
           {deep, "nesting of this depth is not supported"},
           {filters + " }}", "nesting of this depth is not supported"},
           {std::string(70'000, 'a'), "a template of this length is not supported"},
           {all + "{{ messages | pprint }}", "the filter \"pprint\" is not supported"},
           {all + "{{ cycler(3) }}", "the function \"cycler\" with these arguments is not supported"},
           {all + "{{ messages[0].content.zfill(9) }}", "the method \"zfill\" with 1 arguments is not supported"},
           {all + "{{ 1 is something }}", "the test \"something\" is not supported"},
           {all + "{% include 'other' %}", "the tag \"include\" is not supported"},
           {all + "{{ messages | map('string') }}", "printing a generator is not supported"},
           {all + "{{ 'ß' | upper }}", "upper of \"ß\" is not supported"},
           {all + "{{ '%d' % 3 }}", "formatting a text with % is not supported"},
           {all + "{{ '\\N{BULLET}' }}", "the escape \\N is not supported"},
           {all + "{{ 9223372036854775807 + 1 }}", "a whole number beyond 64 bits is not supported"},
           {all + "{{ pad_token + '' }}", "pad_token is undefined"},
           {all + "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nesting of this depth is not supported"},
           {all + "{% set ns = namespace(a='aaaaaaaa') %}" +
                [] {
                  std::string doubled;
                  for (int i = 0; i < 40; ++i) doubled += "{% set ns.a = ns.a + ns.a %}";
                  return doubled;
                }(),
            "a template that needs this much memory is not supported"},
           {all + "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}", "is not supported"},
           {"{{ raise_exception('never') }}", "refuses message 1 (of the user): never"},
           {"{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "leaves out message 2"}}) {
    const std::string said = message_of(ExitCode::bad_config, [&jinja = jinja] { of_source(jinja); });
    EXPECT_PRED_FORMAT2(test::contains, said, what);
    EXPECT_PRED_FORMAT2(test::contains, said, "/chat_template.jinja cannot be used with this tokenizer (");
    EXPECT_PRED_FORMAT2(test::contains, said,
                        "Set data.chat_template to another one of llama3, llama3_1, llama2, chatml, custom.");
  }
  const auto chatml = open_tokenizer(chatml_tokenizer(json::object()));
  EXPECT_PRED_FORMAT2(test::contains,
                      message_of(ExitCode::bad_config, [&] { ChatTemplate({.name = "llama3"}, chatml); }),
                      "the chat template llama3 needs <|start_header_id|>, <|end_header_id|>, <|eot_id|> as special "
                      "tokens, which the tokenizer (HuggingFaceTokenizer built:");
  EXPECT_PRED_FORMAT2(test::contains,
                      message_of(ExitCode::bad_config, [&] { ChatTemplate({.name = "llama2"}, chatml); }),
                      "bos_token is undefined");
}

/// What a template makes of a question and an answer.
std::string made_of(const std::string& jinja) {
  const std::string end = "{% for m in messages %}{{ m.content }}{% endfor %}";
  const std::string text =
      written(of_source(jinja + "|" + end), *byte_tokenizer(), {{"user", "Hi"}, {"assistant", "Ho"}}).text;
  EXPECT_TRUE(text.ends_with("|HiHo")) << text;
  return text.substr(0, text.rfind('|'));
}

// Expected values: of jinja2 3.1.6 with the settings of `transformers`. tests/reference/jinja_test.py has many more.
TEST(ChatTemplate, JinjaMeansWhatJinjaMeans) {
  EXPECT_EQ(made_of("{{ strftime_now is defined }}{{ raise_exception is defined }}{{ f is defined }}"
                    "{% macro f() %}{% endmacro %}{{ f is defined }}{{ strftime_now('%Y-%m-%d') }}"),
            "TrueTrueFalseTrue2024-07-26");
  EXPECT_EQ(made_of("{% for k, v in {'tone': 1, 'length': 2, 'answer': 3}.items() %}{{ k }}{{ v }}{% endfor %}"
                    "{{ {'z': 1, 'a': [none, 1.5, 'é']} | tojson }}{{ messages[0] | list }}"),
            "tone1length2answer3{\"z\": 1, \"a\": [null, 1.5, \"é\"]}['role', 'content']");
  EXPECT_EQ(made_of("{% set ns = namespace({'a': 1}, b=2) %}{% for i in [3] %}{% set ns.a = ns.a + i %}{% endfor %}"
                    "{{ ns.a }}{{ ns.b }}"),
            "42");
  EXPECT_EQ(made_of("{% for i in [1, 2] recursive %}{{ loop.depth }}{{ i }}{% if i < 2 %}({{ loop([5]) }}){% endif %}"
                    "{% endfor %}"),
            "11(25)12");
  EXPECT_EQ(
      made_of(
          "{% macro f(a, b=a) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1) }}{{ f(1, 2, 3, z=4) }}"),
      "11(){}12(3,){'z': 4}");
  EXPECT_EQ(made_of("{% macro f() %}[{{ caller('x') }}]{% endmacro %}{% call(a) f() %}{{ a | upper }}{% endcall %}"),
            "[X]");
  EXPECT_EQ(made_of("{% filter upper %}a{% endfilter %}{% set x | replace('a', 'b') %}aa{% endset %}{{ x }}"), "Abb");
  EXPECT_EQ(made_of("{{ 'one \\\n   line' }}{{ '\\x41\\u00e9' }}"), "one    lineAé");
  EXPECT_EQ(
      made_of(
          "{{ 1 < 2 < 3 }}{{ 6 is divisibleby 3 }}{{ 5 is in [5] }}{{ (1, 'a') }}{{ 7 // 2 }}{{ 7 / 2 }}{{ -7 % 3 }}"),
      "TrueTrueTrue(1, 'a')33.52");
  EXPECT_EQ(
      made_of("{{ {1: 'x', none: 'y'}[1] }}{% for k, v in {'b': 1, 'A': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}"),
      "xA2b1");
  EXPECT_EQ(made_of("{% if false %}{{ x | pprint }}{{ '\\N{BULLET}' }}{% include 'x' %}{{ 'a' % 1 }}{% endif %}ok"),
            "ok");
  EXPECT_EQ(made_of("{{ ('<a>' | safe) + '<b>' }}{{ none.x }}{{ 'abc'[::-1] }}{{ [1, 2, 3][5:1:-2] }}"),
            "<a>&lt;b&gt;cba[3]");
}

TEST(ChatTemplate, NumbersAtTheEdgeOf64BitsAreSafe) {
  EXPECT_EQ(made_of("{{ [1, 2, 3][::9223372036854775807] }}{{ [1, 2][9223372036854775807::-9223372036854775807] }}"
                    "{{ range(9223372036854775800, 9223372036854775807, 5) | list | length }}"),
            "[1][2]2");
}

TEST(ChatTemplate, MarksDecideWhatCounts) {
  const auto counted = [](const std::string& jinja, const std::vector<ChatMessage>& messages) {
    return written(of_source(jinja), *byte_tokenizer(), messages).counted;
  };
  const std::string begin = "{% for m in messages %}{{ m.role + ':' }}{% if m.role == 'assistant' %}";
  const std::string end = "{% else %}{{ m.content }}{% endif %}{{ '\n' }}{% endfor %}";
  const std::vector<ChatMessage> two{{"user", "Hi"}, {"assistant", "a"}, {"user", "More"}, {"assistant", "b"}};
  EXPECT_EQ(counted(begin + "{% generation %}<{{ m.content }}>{{ eos_token + '.' }}{% endgeneration %}" + end, two),
            "<a><|end_of_text|>.|<b><|end_of_text|>.");
  // Only the last turn, a part of it, and nothing at all.
  EXPECT_EQ(counted(begin +
                        "{% if loop.last %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}"
                        "{{ m.content }}{% endif %}" +
                        end,
                    two),
            "b");
  EXPECT_EQ(counted(begin + "{{ m.content }}{% if false %}{% generation %}{% endgeneration %}{% endif %}" + end, two),
            "");
  // All ids of a character count.
  EXPECT_EQ(counted(begin + "{% generation %}{{ m.content }}{% endgeneration %}" + end,
                    {{"user", "a"}, {"assistant", "é 🦊!"}}),
            "é 🦊!");
  const EncodedChat chat = of_source(begin + "{% generation %}{{ m.content }}{% endgeneration %}" + end)
                               .encode({{"user", "a"}, {"assistant", "b🦊"}});
  EXPECT_EQ(std::count(chat.counts.begin(), chat.counts.end(), 1), 5);
}

}  // namespace
}  // namespace titan
