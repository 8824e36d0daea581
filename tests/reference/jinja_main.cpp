// Renders templates for tests/reference/jinja_test.py: one JSON object per line of standard input with "template",
// "messages" and "variables"; one per line of standard output with "text" and "marks", or "error" and "kind". With an
// argument: prints as many random templates that are not wild, one JSON string per line.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "src/text/chat_jinja.h"
#include "tests/jinja/random_template.h"

namespace {

using nlohmann::ordered_json;

std::vector<titan::ChatField> fields_of(const ordered_json& object) {
  std::vector<titan::ChatField> fields;
  for (auto at = object.begin(); at != object.end(); ++at) {
    if (at.key() != "role" && at.key() != "content") fields.push_back({at.key(), at.value().dump()});
  }
  return fields;
}

ordered_json rendered(const ordered_json& asked) {
  const char* const kKinds[] = {"unsupported", "mistaken", "raised"};
  std::vector<titan::ChatMessage> messages;
  for (const ordered_json& message : asked["messages"]) {
    titan::ChatMessage one{message["role"].get<std::string>(), message["content"].get<std::string>()};
    one.fields = fields_of(message);
    messages.push_back(std::move(one));
  }
  try {
    const titan::jinja::Template source(asked["template"].get<std::string>());
    const titan::jinja::Rendered made =
        source.write(messages, asked.value("generate", false), {}, fields_of(asked["variables"]));
    ordered_json marks = ordered_json::array();
    for (const auto& mark : made.marks) marks.push_back({mark.begin, mark.characters});
    return {{"text", made.output.text}, {"marks", marks}};
  } catch (const titan::jinja::TemplateError& error) {
    return {{"error", error.what()}, {"kind", kKinds[static_cast<int>(error.kind)]}};
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) {
    int64_t left = std::stoll(arguments[1]);
    for (uint64_t seed = 0; left > 0; ++seed) {
      const titan::test::RandomTemplate made(seed, seed * 7, 7);
      if (made.is_wild()) continue;
      std::cout << ordered_json(made.source()).dump() << '\n';
      --left;
    }
    return 0;
  }
  for (std::string line; std::getline(std::cin, line);) std::cout << rendered(ordered_json::parse(line)).dump() << '\n';
}
