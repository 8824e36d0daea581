// A position of the stream as JSON, as checkpoints hold it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "titan/base/error.h"
#include "titan/stream/chunk_stream.h"

namespace titan {

nlohmann::json to_json(const StreamState& state) {
  nlohmann::json json{{"chunk", state.chunk},
                      {"epoch", state.epoch},
                      {"document",
                       {{"ordinal", state.document.document},
                        {"file", state.document.file},
                        {"byte", state.document.byte},
                        {"line", state.document.line}}},
                      {"token_offset", state.token_offset},
                      {"fingerprint", fmt::format("{:016x}", state.fingerprint)}};
  for (const StreamState& source : state.sources) json["sources"].push_back(to_json(source));
  if (!state.corpus.files.empty()) json["corpus"] = to_json(state.corpus);
  return json;
}

StreamState stream_state_from_json(const nlohmann::json& json) {
  try {
    StreamState state;
    auto number = [](const nlohmann::json& object, const char* key) {
      auto value = object.at(key).get<int64_t>();
      if (value < 0) throw Error(ExitCode::bad_data, fmt::format("the saved data state has a negative {}", key));
      return value;
    };
    state.chunk = number(json, "chunk");
    state.epoch = number(json, "epoch");
    const nlohmann::json& document = json.at("document");
    state.document = {number(document, "ordinal"), number(document, "file"), number(document, "byte"),
                      number(document, "line")};
    state.token_offset = number(json, "token_offset");
    state.fingerprint = std::stoull(json.at("fingerprint").get<std::string>(), nullptr, 16);
    if (json.contains("corpus")) state.corpus = corpus_record_from_json(json.at("corpus"));
    if (json.contains("sources")) {
      for (const nlohmann::json& source : json.at("sources")) state.sources.push_back(stream_state_from_json(source));
    }
    return state;
  } catch (const nlohmann::json::exception& problem) {
    throw Error(ExitCode::bad_data,
                fmt::format("the saved data state cannot be read: {}. The checkpoint may be damaged: "
                            "load an earlier one.",
                            problem.what()));
  } catch (const std::logic_error& problem) {  // std::stoull throws these, which are no nlohmann exceptions
    throw Error(ExitCode::bad_data,
                "the saved data state cannot be read: a fingerprint in it is not a hexadecimal number. The "
                "checkpoint may be damaged: load an earlier one.");
  }
}

}  // namespace titan
