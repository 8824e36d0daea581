#include "conversation_fields.h"

#include <algorithm>

namespace titan {
namespace {

constexpr std::array<std::string_view, 64> kHarmless{"_id",
                                                     "avg_rating",
                                                     "categories",
                                                     "category",
                                                     "chat_id",
                                                     "cluster",
                                                     "conversation_hash",
                                                     "conversation_id",
                                                     "created",
                                                     "created_at",
                                                     "dataset",
                                                     "dataset_name",
                                                     "date",
                                                     "difficulty",
                                                     "domain",
                                                     "file",
                                                     "file_name",
                                                     "filename",
                                                     "generator",
                                                     "guid",
                                                     "hash",
                                                     "id",
                                                     "idx",
                                                     "index",
                                                     "lang",
                                                     "language",
                                                     "length",
                                                     "license",
                                                     "link",
                                                     "message_id",
                                                     "meta",
                                                     "metadata",
                                                     "model",
                                                     "model_name",
                                                     "n_tokens",
                                                     "num_tokens",
                                                     "num_turns",
                                                     "origin",
                                                     "parent_id",
                                                     "prompt_id",
                                                     "quality",
                                                     "rating",
                                                     "reward",
                                                     "score",
                                                     "scores",
                                                     "session_id",
                                                     "source",
                                                     "sources",
                                                     "split",
                                                     "subset",
                                                     "tag",
                                                     "tags",
                                                     "task",
                                                     "time",
                                                     "timestamp",
                                                     "title",
                                                     "token_count",
                                                     "topic",
                                                     "turn",
                                                     "turns",
                                                     "updated_at",
                                                     "url",
                                                     "uuid",
                                                     "version"};

}  // namespace

bool is_followed_or_refused(std::string_view field) {
  return field == "weight" || field == "train" || field == "tool_calls" ||
         std::find(kNotFollowed.begin(), kNotFollowed.end(), field) != kNotFollowed.end();
}

bool is_harmless(std::string_view field) {
  return std::find(kHarmless.begin(), kHarmless.end(), field) != kHarmless.end();
}

}  // namespace titan
