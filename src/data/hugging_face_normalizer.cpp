#include "titan/data/hugging_face_normalizer.h"

#include <fmt/format.h>

#include "titan/data/pre_tokenizer.h"

namespace titan {
namespace {

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  size_t settled = 0;
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, settled)) {
    out.append(text.substr(settled, at - settled)).append(to);
    settled = at + from.size();
  }
  return out.append(text.substr(settled));
}

}  // namespace

HuggingFaceNormalizer::HuggingFaceNormalizer(const std::optional<JsonNode>& node) {
  if (node) add(*node);
}

void HuggingFaceNormalizer::add(const JsonNode& node) {
  const std::string type = node.text("type");
  if (type == "Sequence") {
    const JsonNode all = node.at("normalizers");
    for (size_t i = 0; i < all.size(); ++i) add(all.at(i));
  } else if (type == "Prepend") {
    steps_.push_back({"", node.text("prepend")});
  } else if (type == "Replace" && node.at("pattern").find("String")) {
    steps_.push_back({node.at("pattern").text("String"), node.text("content")});
    if (steps_.back().from.empty()) node.fail("replaces an empty text. Give a text to replace.");
  } else {
    node.fail(fmt::format("is of type {}, which {}.", type, kTokenizeOffline));
  }
}

std::string HuggingFaceNormalizer::normalized(std::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) {
    if (!step.from.empty()) {
      out = replaced(out, step.from, step.to);
    } else if (!out.empty()) {
      out.insert(0, step.to);
    }
  }
  return out;
}

}  // namespace titan
