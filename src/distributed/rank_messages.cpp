#include "rank_messages.h"

#include <nlohmann/json.hpp>

namespace titan {
namespace {

using Json = nlohmann::json;

/// On one line; bytes that are no UTF-8 (a file name in a message) must not throw here.
std::string line_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

void read_fields(const Json& json, RankMessage& message) {
  if (json.contains("titan")) message.greeting = json.at("titan").get<std::string>();
  if (json.contains("welcome")) {
    const Json& welcome = json.at("welcome");
    message.welcome = Welcome{welcome.at("store").get<uint16_t>(),
                              welcome.at("cores").get<int64_t>(),
                              welcome.at("by").get<std::string>(),
                              {welcome.at("place").get<int64_t>(), welcome.at("beside").get<std::vector<int64_t>>()}};
  }
  for (const auto& [key, place] : {std::pair{"refused", &message.refused}, {"failed", &message.failed}}) {
    if (!json.contains(key)) continue;
    *place = Refusal{json.at(key).at("code").get<int>(), json.at(key).at("text").get<std::string>()};
  }
  if (json.contains("ended")) {
    const Json& ended = json.at("ended");
    message.ended =
        Cause{ended.at("rank").get<int64_t>(), 0, ended.at("text").get<std::string>(), ended.contains("hangs")};
  }
  if (json.contains("waits")) message.waits = json.at("waits").get<std::vector<int64_t>>();
  if (json.contains("asks")) message.asks = std::chrono::milliseconds(json.at("asks").get<int64_t>());
  message.heard = json.contains("heard");
  message.asked = json.contains("asked");
  message.leaving = json.contains("leaving");
  message.farewell = json.contains("farewell");
}

}  // namespace

std::string greeting_line(std::string_view run) { return line_of({{"titan", run}}); }
std::string welcome_line(const Welcome& welcome) {
  return line_of({{"welcome",
                   {{"store", welcome.store_port},
                    {"cores", welcome.cores},
                    {"by", welcome.rank_zero},
                    {"place", welcome.place.local_rank},
                    {"beside", welcome.place.host_ranks}}}});
}
std::string refused_line(const Refusal& refusal) {
  return line_of({{"refused", {{"code", refusal.code}, {"text", refusal.text}}}});
}
std::string failed_line(int code, std::string_view text) {
  return line_of({{"failed", {{"code", code}, {"text", text}}}});
}
std::string heard_line() { return line_of({{"heard", true}}); }
std::string asked_line() { return line_of({{"asked", true}}); }
std::string waits_line(const std::vector<int64_t>& ranks) { return line_of({{"waits", ranks}}); }
std::string asks_line(std::chrono::milliseconds patience) { return line_of({{"asks", patience.count()}}); }
std::string ended_line(const Cause& cause) {
  Json ended{{"rank", cause.rank}, {"text", cause.text}};
  if (cause.is_silent) ended["hangs"] = true;
  return line_of({{"ended", ended}});
}
std::string leaving_line() { return line_of({{"leaving", true}}); }
std::string farewell_line() { return line_of({{"farewell", true}}); }

RankMessage parse_message(std::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  try {
    RankMessage message;
    read_fields(json, message);
    return message;
  } catch (const Json::exception&) {
    return {};
  }
}

}  // namespace titan
