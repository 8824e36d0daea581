// For the files that declare options (schema_*.cpp): limits; Section, which binds options to the fields of one section
// of JobConfig; and the data loader's options, shared by training and validation. Other parts use kMostRanks only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "titan/config/schema.h"

namespace titan {

/// The maximum number of ranks: products of three such numbers fit in 64 bits.
inline constexpr int64_t kMostRanks = int64_t{1} << 20;

}  // namespace titan

namespace titan::detail {

// Private to config. Section::add takes a pointer to the field and derives type, reader and writer from it.

// Upper limits exist only where a larger value would break something.
/// Is multiplied by the number of ranks; see kMostRanks.
inline constexpr double kMostSequences = 1 << 20;
/// float32 rotary tables represent integer positions exactly up to this limit.
inline constexpr double kLongestSequence = 1 << 24;
/// The number of weights, and the bytes of all layers together, must fit in 64 bits.
inline constexpr double kWidestModel = 1 << 17;
inline constexpr double kLargestVocabulary = 1 << 24;
/// Describing every layer takes time, and a bad config must be reported within a second.
inline constexpr double kMostLayers = 4096;
/// Ready batches occupy host memory, and a longer queue gains nothing.
inline constexpr double kMostBatchesReady = 1024;
/// Every step reads the whole window, and every checkpoint stores it as text.
inline constexpr double kMostGuardedSteps = 1 << 14;

template <class T>
struct is_optional : std::false_type {};
template <class T>
struct is_optional<std::optional<T>> : std::true_type {};

template <class Field>
constexpr ValueType value_type_of() {
  if constexpr (is_optional<Field>::value) {
    return value_type_of<typename Field::value_type>();
  } else if constexpr (std::is_same_v<Field, bool>) {
    return ValueType::boolean;
  } else if constexpr (std::is_same_v<Field, int64_t>) {
    return ValueType::integer;
  } else if constexpr (std::is_same_v<Field, double>) {
    return ValueType::number;
  } else if constexpr (std::is_same_v<Field, std::string> || std::is_enum_v<Field>) {
    return ValueType::text;
  } else if constexpr (std::is_same_v<Field, std::vector<std::string>>) {
    return ValueType::text_list;
  } else if constexpr (std::is_same_v<Field, std::vector<int64_t>>) {
    return ValueType::integer_list;
  } else if constexpr (std::is_same_v<Field, std::vector<double>>) {
    return ValueType::number_list;
  } else {
    static_assert(std::is_same_v<Field, std::vector<std::vector<std::string>>>);
    return ValueType::text_table;
  }
}

/// A default as the schema writes it (2048, DecayType::linear, 1e-8, {"a", "b"}), converted to Value's alternative.
template <class Field>
Value default_value(const Field& value) {
  if constexpr (is_optional<Field>::value) {
    return value ? default_value(*value) : Value();
  } else if constexpr (std::is_enum_v<Field>) {
    return Value(std::string(word_of(value)));
  } else {
    return Value(value);
  }
}

/// The inverse, for a value that was checked.
template <class Field>
Field field_of(const Value& value) {
  if constexpr (is_optional<Field>::value) {
    if (std::holds_alternative<std::monostate>(value)) return {};
    return field_of<typename Field::value_type>(value);
  } else if constexpr (std::is_enum_v<Field>) {
    return choice_of<Field>(std::get<std::string>(value));
  } else {
    return std::get<Field>(value);
  }
}

/// The words of an enumeration, in the order of help.
template <class Choice>
std::vector<std::string> words_of() {
  std::vector<std::string> words;
  for (const auto& [value, word] : kChoiceWords<Choice>) words.emplace_back(word);
  return words;
}

/// Describes the options of one section; `Access` returns the section's struct of a JobConfig, const or not:
/// `[](auto& config) -> auto& { return config.training; }`.
template <class Access>
class Section {
 public:
  using S = std::remove_cvref_t<std::invoke_result_t<Access, JobConfig&>>;

  Section(Schema& schema, std::string name, std::string description, Access access)
      : schema_(schema), name_(std::move(name)), access_(std::move(access)) {
    schema.add_section(name_, std::move(description));
  }

  /// More options of a section that is already described, bound to the fields of a struct within its own.
  Section(Schema& schema, std::string name, Access access)
      : schema_(schema), name_(std::move(name)), access_(std::move(access)) {}

  /// An option bound to a field. That of an enumeration has its words as choices (choices.h).
  template <class Field>
  Option& add(const std::string& name, Field S::*member, const std::type_identity_t<Field>& default_is) {
    Option& option = schema_.add(plain(name, value_type_of<Field>(), default_value(default_is)));
    option.optional = is_optional<Field>::value;
    if constexpr (is_optional<Field>::value) {
      if constexpr (std::is_enum_v<typename Field::value_type>) option.choices(words_of<typename Field::value_type>());
    } else if constexpr (std::is_enum_v<Field>) {
      option.choices(words_of<Field>());
    }
    option.write = [access = access_, member](JobConfig& config, const Value& value) {
      access(config).*member = field_of<Field>(value);
    };
    option.read = [access = access_, member](const JobConfig& config) { return default_value(access(config).*member); };
    return option;
  }

  /// An option of torchtitan that is accepted but not used.
  Option& accept(const std::string& name, ValueType type, Value default_is) {
    Option& option = schema_.add(plain(name, type, std::move(default_is)));
    option.optional = std::holds_alternative<std::monostate>(option.default_2026);
    return option;
  }

  /// An array of tables with its own conversion functions.
  Option& add_records(const std::string& name, void (*write)(S&, const std::vector<Record>&),
                      std::vector<Record> (*read)(const S&)) {
    Option& option = schema_.add(plain(name, ValueType::records, Value(std::vector<Record>{})));
    option.write = [access = access_, write](JobConfig& config, const Value& value) {
      write(access(config), std::get<std::vector<Record>>(value));
    };
    option.read = [access = access_, read](const JobConfig& config) { return Value(read(access(config))); };
    return option;
  }

 private:
  Option plain(const std::string& name, ValueType type, Value value) const {
    Option option;
    option.section = name_;
    option.key = name_ + "." + name;
    option.type = type;
    option.default_2024 = option.default_2026 = std::move(value);
    return option;
  }

  Schema& schema_;
  std::string name_;
  Access access_;
};

// One function per file of descriptions, in the order in which Schema's constructor calls them.
void describe_job(Schema& schema);
void describe_model(Schema& schema);
void describe_training(Schema& schema);
void describe_data(Schema& schema);
void describe_optimizer(Schema& schema);
void describe_muon(Schema& schema);  // called by describe_optimizer, after the section it belongs to
void describe_parallelism(Schema& schema);
void describe_checkpoint(Schema& schema);
void describe_precision(Schema& schema);
void describe_debug(Schema& schema);
void describe_aliases(Schema& schema);

// The options of torchtitan's Python data loader, for training and validation. Private to config. They have no effect
// here; they are described so that configs with them load, with a note that gives the reason.

inline void describe_dataloader(Schema& schema, const std::string& name) {
  const std::string why = "a background thread reads and packs the text (data.prefetch)";
  Section loader(
      schema, name, "Workers of a Python data loader.", [](auto& config) -> auto& { return config; });
  loader.accept("num_workers", ValueType::integer, Value(int64_t{0}))
      .later()
      .at_least(0)
      .no_effect(why)
      .help("worker processes");
  loader.accept("persistent_workers", ValueType::boolean, Value(false))
      .later()
      .no_effect(why)
      .help("keep workers between epochs");
  loader.accept("pin_memory", ValueType::boolean, Value(false))
      .later()
      .no_effect("batches are always pinned on the way to a GPU")
      .help("pin batches in host memory");
  loader.accept("prefetch_factor", ValueType::integer, Value())
      .later()
      .at_least(1)
      .no_effect(why)
      .help("batches kept ready per worker");
}

}  // namespace titan::detail
