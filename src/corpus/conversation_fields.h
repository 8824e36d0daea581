// What is known of the fields of conversations that other trainers and data sets write.
#pragma once

#include <array>
#include <string_view>

namespace titan {

/// Fields of a message or a record that decide what is trained and that nothing here follows.
inline constexpr std::array kNotFollowed{"function_call", "masked", "mask", "loss_mask", "train_detail"};
/// Whether other trainers train on a message: those that say what is done here anyway are taken.
inline constexpr std::array kTrained{"loss", "training", "trainable"};

/// Whether a message's field is followed or refused, even if no template reads it.
bool is_followed_or_refused(std::string_view field);

/// Whether the field says where a record is from, not what is trained (docs/data.md lists these fields).
bool is_harmless(std::string_view field);

}  // namespace titan
