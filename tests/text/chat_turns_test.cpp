// Which ids of a conversation are labels where a template, or the conversation, is not the simplest one. Marks against
// those of transformers: tests/reference/conversation_fields_test.py.
#include <gtest/gtest.h>

#include "conversations.h"
#include "published_templates.h"
#include "titan/text/chat.h"

namespace titan {
namespace {

using nlohmann::json;
using test::chatml_tokenizer;
using test::contains;
using test::message_of;
using test::replaced;
using test::written;

using Messages = std::vector<ChatMessage>;

const std::string kLoop = "{% for m in messages %}", kEnd = "{% endfor %}";
const std::string kOthers = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}";
const std::string kPrompt = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// `answer` writes what comes of the assistant.
std::string template_of(const std::string& answer) {
  return kLoop + "{% if m.role == 'assistant' %}" + answer + "{% else %}" + kOthers + "{% endif %}" + kEnd + kPrompt;
}

/// Marks the whole turn, with its header and the line feed after it.
const std::string kMarked =
    template_of("{% generation %}{{ '<|im_start|>assistant\n' + m.content + '<|im_end|>\n' }}{% endgeneration %}");
/// Writes the reasoning before the content.
const std::string kReasons = template_of(
    "{{ '<|im_start|>assistant\n' }}{% if m.thinking %}{{ '<t>' + m.thinking + '</t>' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}");

struct Shown {
  ChatTemplate chat;
  std::shared_ptr<const Tokenizer> tokenizer;

  std::string labels(const Messages& messages) const { return written(chat, *tokenizer, messages).counted; }
  std::string problem(const Messages& messages) const {
    const std::string problem = chat.encode(messages).problem;
    return problem.substr(std::min(problem.size(), problem.rfind(".json") + 6));
  }
};

Shown of_template(const std::string& jinja) {
  const std::string folder = chatml_tokenizer({{"chat_template", jinja}});
  auto tokenizer = open_tokenizer(folder);
  return {ChatTemplate({.tokenizer = folder}, tokenizer), tokenizer};
}

ChatMessage user(const std::string& text) { return {"user", text}; }
ChatMessage answer(const std::string& text) { return {"assistant", text}; }
ChatMessage no_label(ChatMessage message) {
  message.is_label = false;
  return message;
}
ChatMessage thinks(const std::string& text, const std::string& thought) {
  return {.role = "assistant", .content = text, .fields = {{"thinking", '"' + thought + '"'}}};
}

TEST(ChatTemplate, NothingThatIsMarkedInATurnThatIsNoLabelCounts) {
  const Shown marked = of_template(kMarked);
  const std::string all = "<|im_start|>assistant\nZz<|im_end|>\n";
  EXPECT_EQ(marked.labels({user("Hi"), no_label(answer("Yo"))}), "");
  EXPECT_EQ(marked.labels({user("Hi"), no_label(answer("Yo")), user("So"), answer("Zz")}), all);
  EXPECT_EQ(marked.labels({user("Hi"), answer("Zz"), no_label(answer("Yo"))}), all);
  EXPECT_EQ(marked.labels({no_label(answer("Yo")), answer("Zz")}), all);
  EXPECT_EQ(marked.labels({no_label(user("Hi")), no_label(answer("Yo")), no_label(user("So")), answer("Zz")}), all);
  // Contents that cannot be seen in what is written.
  EXPECT_EQ(marked.labels({user("Hi"), no_label(answer(" "))}), "");
  EXPECT_EQ(marked.labels({user("Hi"), no_label(answer("")), answer("Zz")}), all);
  const Shown strict = of_template(replaced(kMarked, "m.content +", "(m.content or '-') +"));
  EXPECT_EQ(strict.labels({user("Hi"), no_label(answer("")), answer("Zz")}), all);
  const std::string counter = "{% for i in range(messages | length) %}{% set m = messages[i] %}";
  const Shown counted = of_template(replaced(kMarked, kLoop, counter));
  EXPECT_EQ(counted.labels({user("Hi"), no_label(answer("")), answer("Zz")}), all);
  EXPECT_EQ(counted.labels({no_label(answer("Yo")), answer("Zz"), user("Hi"), no_label(answer(""))}), all);
  // In a block that is captured transformers finds marks at other places; they are still those of their messages.
  const Shown captured = of_template("{% set text %}" + kMarked + "{% endset %}{{ text }}");
  EXPECT_EQ(captured.labels({user("Hi"), no_label(answer("Yo"))}), "");
  EXPECT_EQ(captured.labels({no_label(answer("Yo")), answer("Zz")}),
            captured.labels({no_label(answer("Yo")), answer("zz")}));
  // Marks that hold no content are those of the turn that they are written with.
  const Shown apart =
      of_template(template_of("{% generation %}{{ '<|im_start|>assistant\n' }}{% endgeneration %}{{ m.content }}"
                              "{% generation %}{{ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"));
  EXPECT_EQ(apart.labels({no_label(answer("Yo")), answer("Zz")}), "<|im_start|>assistant\n|<|im_end|>");
  EXPECT_EQ(apart.labels({answer("Zz"), no_label(answer("Yo"))}), "<|im_start|>assistant\n|<|im_end|>");
}

TEST(ChatTemplate, NothingThatIsMarkedInAMessageOfTheUserThatIsNoLabelCounts) {
  const Shown all = of_template(kLoop + "{% generation %}" + kOthers + "{% endgeneration %}" + kEnd + kPrompt);
  const std::string yo = "<|im_start|>assistant\nYo<|im_end|>\n";
  EXPECT_EQ(all.labels({no_label(user("Hi")), answer("Yo")}), yo);
  EXPECT_EQ(all.labels({no_label(user("Hi")), answer("Yo"), no_label(user("So")), no_label(answer("Zz"))}), yo);
  EXPECT_EQ(all.labels({no_label(user("Hi")), no_label(answer("Yo"))}), "");
}

TEST(ChatTemplate, MarksWithoutALoopAreThoseOfTheAnswerBesideThemOrRefused) {
  const auto one = [](int i) {
    const std::string content = "messages[" + std::to_string(i) + "].content";
    return "{% if messages | length > " + std::to_string(i) + " %}{% generation %}{{ '[' + " + content +
           " + '<|im_end|>' }}{% endgeneration %}{% endif %}";
  };
  const Shown unrolled = of_template("{{ messages[0].content }}" + one(1) + one(2) + one(3));
  EXPECT_EQ(unrolled.labels({user("a"), answer("b"), answer("c")}), "[b<|im_end|>[c<|im_end|>");
  EXPECT_EQ(unrolled.labels({user("a"), no_label(answer("b"))}), "");
  EXPECT_EQ(unrolled.labels({user("a"), no_label(answer("b")), no_label(answer("c"))}), "");
  EXPECT_EQ(unrolled.problem({user("a"), no_label(answer("b")), answer("c")}),
            "does not show which marked text is that of message 2 (of the assistant), which is no label");
}

TEST(ChatTemplate, ReasoningIsALabelWhateverMessageIsBeforeTheTurn) {
  const Shown reasons = of_template(kReasons);
  const std::string first = "<t>R</t>Yo<|im_end|>";
  EXPECT_EQ(reasons.labels({thinks("Yo", "R"), user("Hi"), answer("Zz")}), first + "|Zz<|im_end|>");
  EXPECT_EQ(reasons.labels({{"system", "S"}, thinks("Yo", "R")}), first);
  EXPECT_EQ(reasons.labels({user("Hi"), answer("a"), {"system", "S"}, thinks("Yo", "R")}), "a<|im_end|>|" + first);
  EXPECT_EQ(reasons.labels({user("Hi"), thinks("a", "Q"), thinks("Yo", "R")}), "<t>Q</t>a<|im_end|>|" + first);
  EXPECT_EQ(reasons.labels({user("Hi"), no_label(thinks("a", "Q")), thinks("Yo", "R")}), first);
  EXPECT_EQ(reasons.labels({thinks("Yo", "<|im_start|>assistant\\n"), user("Hi")}),
            "<t><|im_start|>assistant\n</t>Yo<|im_end|>");
  EXPECT_EQ(reasons.labels({user("Hi"), answer(""), thinks("Yo", "R")}), "<|im_end|>|" + first);
}

TEST(ChatTemplate, TheEndOfEveryTurnIsALabelAlsoIfTheLastOneHasAnother) {
  const auto ends = [](const std::string& last, const std::string& before) {
    return of_template(template_of("{{ '<|im_start|>assistant\n' + m.content + ('" + last + "' if loop.last else '" +
                                   before + "') }}"));
  };
  const Messages two{user("Hi"), answer("Yo"), user("So"), answer("Zz")};
  EXPECT_EQ(ends("<tool>\n", "<|im_end|>\n").labels(two), "Yo<|im_end|>|Zz<tool>");
  EXPECT_EQ(ends("", "<|im_end|>\n").labels(two), "Yo<|im_end|>|Zz");
  EXPECT_EQ(ends("<|im_end|>\n", "\n").labels(two), "Yo|Zz<|im_end|>");
  // A token that begins the user's turn ends none.
  const std::string begins = "{{ ('<|im_start|>' if m.role == 'user' else '<|im_end|>') + m.content }}";
  EXPECT_EQ(
      of_template(kLoop + begins + kEnd + "{% if add_generation_prompt %}{{ '<|im_end|>' }}{% endif %}").labels(two),
      "Yo|Zz");
}

TEST(ChatTemplate, WhatIsWrittenBetweenAContentAndItsEndIsALabel) {
  const std::string after =
      "{{ '<|im_start|>assistant\n' + m.content }}{% if m.thinking %}{{ '<t>' + m.thinking + '</t>' }}{% endif %}";
  const Messages two{user("Hi"), thinks("Yo", "R"), user("So"), answer("Zz")};
  EXPECT_EQ(of_template(template_of(after + "{{ '<|im_end|>\n' }}")).labels(two), "Yo<t>R</t><|im_end|>|Zz<|im_end|>");
  EXPECT_EQ(of_template(template_of(after + "{{ '###\n' }}")).labels(two), "Yo<t>R</t>###\n|Zz###\n");
}

TEST(ChatTemplate, AFieldThatATemplateNeedsOfEveryMessageIsTheRecords) {
  const auto with = [](ChatMessage message, const std::string& name, const std::string& value) {
    message.fields = {{name, value}};
    return message;
  };
  for (const std::string needed : {"{{ messages | sum(attribute='n') }}", "{{ messages[0].n + 2 }}"}) {
    const Shown chat = of_template(needed + kReasons);
    EXPECT_EQ(chat.labels({with(user("Hi"), "n", "3"), with(answer("Yo"), "n", "4")}), "Yo<|im_end|>") << needed;
    EXPECT_EQ(chat.problem({user("Hi"), answer("Yo")}), "cannot write it: n is undefined");
  }
  const Shown named = of_template(replaced(kReasons, "m.role + '\n'", "m.role + ' ' + m.name + '\n'"));
  EXPECT_EQ(named.labels({with(user("Hi"), "name", "\"Ann\""), answer("Yo")}), "Yo<|im_end|>");
  const auto refusal = [](const std::string& jinja) {
    return message_of(ExitCode::bad_config, [&] { of_template(jinja + kReasons); });
  };
  EXPECT_PRED_FORMAT2(contains, refusal("{{ messages[1].k.size + 1 }}"),
                      "cannot write a sample conversation of a user and an assistant, with role and content alone: "
                      "k is undefined. Set data.chat_template to another one of llama3");
  EXPECT_PRED_FORMAT2(contains, refusal("{{ pad_token + '' }}"), "cannot be used with this tokenizer (");
}

}  // namespace
}  // namespace titan
