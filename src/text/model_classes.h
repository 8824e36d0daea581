// Which class of transformers reads the tokenizer of a model: facts of its version 5.24. A test compares them with the
// installed package. Knows no files.
#pragma once

#include <string_view>

namespace titan {

/// The version of transformers whose rules hold here.
inline constexpr int kTransformersMajor = 5, kTransformersMinor = 24;

/// transformers' class without rules of its own.
inline constexpr std::string_view kGenericClass = "TokenizersBackend";

/// The class, without "Fast", that belongs to a config.json's model_type; empty if there is none. kGenericClass counts
/// whatever the files name.
std::string_view class_of_model(std::string_view type);

/// Whether the class that belongs to the model counts whatever its files name.
bool is_misnamed_model(std::string_view type);

/// Whether transformers knows the model, with a class of its own or without.
bool is_known_model(std::string_view type);

/// Whether `name`, without "Fast", is a class of transformers.
bool is_known_class(std::string_view name);

}  // namespace titan
