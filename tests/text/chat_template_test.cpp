// What each template makes of a conversation, which ids count, and what is said where it makes nothing of one. Ids
// against `transformers` itself: tests/reference/chat_test.py.
#include "titan/text/chat.h"

#include <nlohmann/json.hpp>

#include "src/text/tiktoken.h"
#include "support/files.h"
#include "support/texts.h"

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

// Templates as they are published, with what they do for tools cut short.

const std::string kPrompt = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
const std::string kTurn = "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}";
const std::string kChatml = "{% for message in messages %}" + kTurn + "{% endfor %}" + kPrompt;

/// SmolLM2's and Qwen 1.5's, and Qwen 2's without tools.
std::string with_system(const std::string& turn) {
  return "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ " + turn +
         " }}{% endif %}" + kTurn + "{% endfor %}" + kPrompt;
}

const std::string kQwen25 = R"({%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}<|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.arguments | tojson }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)";

const std::string kLlama3 =
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

/// DATE: where the date comes from.
const std::string kLlama31 = R"({{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    DATE
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\n\n"}}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {%- for arg_name, arg_val in tool_call.arguments | items %}
            {{- arg_name + '="' + arg_val + '"' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- endif %}
        {%- endfor %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
)";
const std::string kDate = "{%- set date_string = \"26 Jul 2024\" %}";

const std::string kLlama2 =
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
    "messages[0]['content'] %}{% elif false == true and not '<<SYS>>' in messages[0]['content'] %}{% set loop_messages "
    "= messages %}{% set system_message = 'Be good.' %}{% else %}{% set loop_messages = messages %}{% set "
    "system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != "
    "(loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}{% if loop.index0 == 0 and "
    "system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + "
    "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' "
    "%}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'system' %}{{ '<<SYS>>\\n' "
    "+ content.strip() + '\\n<</SYS>>\\n\\n' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + "
    "' ' + eos_token }}{% endif %}{% endfor %}";

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const size_t at = text.find(what);
  EXPECT_NE(at, text.npos) << what;
  return at == text.npos ? text : text.replace(at, what.size(), by);
}

/// Of a folder that holds this chat_template.jinja. The tokenizer is another one's: bytes and Llama 3's special tokens.
ChatTemplate of_source(const std::string& jinja) {
  const TemporaryFolder folder;
  folder.write("chat_template.jinja", jinja);
  return ChatTemplate({.tokenizer = folder.string()}, byte_tokenizer());
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
           {all + "{{ a.b.c }}", "a is undefined"},
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
