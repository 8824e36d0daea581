#include "titan/job/parameter_groups.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <regex>
#include <set>

#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// The names here of parameters that have others in Hugging Face's models.
struct TheirName {
  std::string_view theirs, ours;
};
constexpr std::array kTheirNames{TheirName{"qkv_proj", "wq, wk and wv"},  // Phi's: joined
                                 TheirName{"gate_up_proj", "w1 and w3"},
                                 TheirName{"q_proj", "wq"},
                                 TheirName{"k_proj", "wk"},
                                 TheirName{"v_proj", "wv"},
                                 TheirName{"o_proj", "wo"},
                                 TheirName{"gate_proj", "w1"},
                                 TheirName{"down_proj", "w2"},
                                 TheirName{"up_proj", "w3"},
                                 TheirName{"self_attn", "attention"},
                                 TheirName{"mlp", "feed_forward"},
                                 TheirName{"post_attention_layernorm", "ffn_norm"},
                                 TheirName{"input_layernorm", "attention_norm"},
                                 TheirName{"embed_tokens", "tok_embeddings"},
                                 TheirName{"lm_head", "output"},
                                 TheirName{"model.layers", "layers"},
                                 TheirName{"model.norm", "norm"}};

/// "wq (there q_proj), layers (there model.layers)" for the names of Hugging Face in a pattern; empty: it has none.
std::string names_of_theirs(std::string pattern) {
  std::erase(pattern, '\\');
  std::vector<std::string> ours;
  for (const auto& [theirs, name] : kTheirNames) {
    for (size_t at; (at = pattern.find(theirs)) != std::string::npos;) {
      const std::string words = fmt::format("{} (there {})", name, theirs);
      if (std::find(ours.begin(), ours.end(), words) == ours.end()) ours.push_back(words);
      pattern.replace(at, theirs.size(), 1, ' ');  // v_proj is also the end of qkv_proj
    }
  }
  return join(ours, ", ");
}

/// What the user may have meant by a pattern that matches nothing: names of another program, or parts of names between
/// dots that are spelled like it.
std::string names_near(const std::string& pattern, const std::vector<std::string>& names) {
  if (const std::string ours = names_of_theirs(pattern); !ours.empty()) {
    return fmt::format("names here are not Hugging Face's; write {}", ours);
  }
  std::string word;
  for (const char letter : pattern) {
    if (std::string_view("^$\\()[]*+?|{}").find(letter) == std::string_view::npos) word += letter;
  }
  const auto dots = std::count(word.begin(), word.end(), '.');
  std::set<std::string> parts;  // of as many components as the pattern: others are too far from it
  for (const std::string& name : names) {
    const std::vector<std::string> components = split(name, '.');
    const auto length = static_cast<size_t>(dots) + 1;
    for (size_t first = 0; first + length <= components.size(); ++first) {
      const std::vector<std::string> part(components.begin() + static_cast<std::ptrdiff_t>(first),
                                          components.begin() + static_cast<std::ptrdiff_t>(first + length));
      parts.insert(join(part, "."));
    }
  }
  const std::vector<std::string> all(parts.begin(), parts.end()), close = nearest(word, all);
  if (!close.empty()) return fmt::format("did you mean {}?", join(close, ", "));
  return fmt::format("names look like {}", names.empty() ? "(none)" : names.front());
}

}  // namespace

std::vector<ParameterGroup> assign_parameter_groups(const std::vector<std::string>& names,
                                                    const std::vector<ParamGroup>& patterns) {
  std::vector<ParameterGroup> groups(1);
  std::vector<std::string> problems;
  std::vector<std::optional<size_t>> owner(names.size());
  for (size_t p = 0; p < patterns.size(); ++p) {
    ParameterGroup group{patterns[p].match, patterns[p].lr_multiplier, patterns[p].weight_decay_multiplier, {}};
    // By the earlier pattern: a name that two patterns match is an error, and one line for each pair of patterns is
    // enough.
    std::map<size_t, std::vector<std::string>> shared;
    try {
      const std::regex pattern(patterns[p].match);
      for (size_t i = 0; i < names.size(); ++i) {
        if (!std::regex_search(names[i], pattern)) continue;
        if (owner[i]) {
          shared[*owner[i]].push_back(names[i]);
          continue;
        }
        owner[i] = p;
        group.members.push_back(i);
      }
      for (const auto& [earlier, doubly] : shared) {
        const std::string others = doubly.size() > 2    ? fmt::format(", as are {} others", doubly.size() - 1)
                                   : doubly.size() == 2 ? ", as is one other"
                                                        : "";
        problems.push_back(fmt::format("{} is matched by both \"{}\" and \"{}\"{}; make one pattern narrower",
                                       doubly[0], patterns[earlier].match, patterns[p].match, others));
      }
      if (group.members.empty() && shared.empty()) {
        problems.push_back(fmt::format("the pattern \"{}\" matches no parameter; {}", patterns[p].match,
                                       names_near(patterns[p].match, names)));
      }
    } catch (const std::regex_error&) {
      problems.push_back(fmt::format("\"{}\" is not a regular expression", patterns[p].match));
    }
    groups.push_back(std::move(group));
  }
  if (!problems.empty()) {
    throw Error(ExitCode::bad_config, "optimizer.param_groups: " + join(problems, "; "));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (!owner[i]) groups[0].members.push_back(i);
  }
  return groups;
}

}  // namespace titan
