#include "titan/base/ordered_json.h"

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "titan/base/json.h"

namespace titan {
namespace {

using Json = nlohmann::ordered_json;

/// Builds a document from the events of nlohmann's parser. A container grows only while none of its members is open, so
/// the pointers stay valid.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(std::string* twice) : twice_(twice) {}
  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr), true; }
  bool boolean(bool value) override { return put(value), true; }
  bool number_integer(number_integer_t value) override { return put(value), true; }
  bool number_unsigned(number_unsigned_t value) override { return put(value), true; }
  bool number_float(number_float_t value, const string_t&) override { return put(value), true; }
  bool string(string_t& value) override { return put(std::move(value)), true; }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return open_.pop_back(), true; }
  bool end_object() override { return open_.pop_back(), places_.pop_back(), true; }

  bool key(string_t& name) override {
    auto& members = open_.back()->get_ref<Json::object_t&>();
    const auto [found, is_new] = places_.back().emplace(name, members.size());
    if (!is_new && twice_ && open_.size() == 1) *twice_ = name;
    if (is_new) static_cast<std::vector<Json::object_t::value_type>&>(members).emplace_back(name, nullptr);
    member_ = &(members.begin() + static_cast<std::ptrdiff_t>(found->second))->second;
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    // nlohmann passes the base class; throwing it as it is would slice off the position that the message needs.
    if (const auto* range = dynamic_cast<const Json::out_of_range*>(&error)) throw *range;
    if (const auto* syntax = dynamic_cast<const Json::parse_error*>(&error)) throw *syntax;
    return false;
  }

 private:
  Json& put(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back()->is_array()) return open_.back()->emplace_back(std::move(value));
    return *member_ = std::move(value);
  }

  bool open(Json container) {
    if (container.is_object()) places_.emplace_back();
    open_.push_back(&put(std::move(container)));
    return true;
  }

  Json root_;
  std::vector<Json*> open_;
  std::vector<std::unordered_map<std::string, size_t>> places_;  // of the keys of the open objects
  std::string* twice_;
  Json* member_ = nullptr;  // the value of the last key
};

}  // namespace

nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string* twice) {
  if (!is_shallow_json(text)) refuse_deep_json();
  Builder builder(twice);
  parse_json_events<Json>(text, &builder);
  return builder.take();
}

}  // namespace titan
