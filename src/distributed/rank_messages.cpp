#include "rank_messages.h"

#include <algorithm>

#include "titan/base/json.h"

namespace titan {
namespace {

using Json = nlohmann::json;

/// JSON on one line. Must not throw on bytes that are not UTF-8 (a file name in a message).
std::string line_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string hex_of(std::string_view bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    hex += digits[byte >> 4];
    hex += digits[byte & 15];
  }
  return hex;
}

[[noreturn]] void malformed() { throw Error(ExitCode::peer_failure, "not a message of this protocol"); }

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  malformed();
}

std::string bytes_of(const std::string& hex) {
  if (hex.size() % 2 != 0) malformed();
  std::string bytes(hex.size() / 2, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(digit_of(hex[2 * i]) << 4 | digit_of(hex[2 * i + 1]));
  }
  return bytes;
}

/// An integer. get<int64_t>() alone would also accept 1e300.
int64_t number_at(const Json& json, const char* key) {
  const Json& number = json.at(key);
  if (!number.is_number_integer()) malformed();
  return number.get<int64_t>();
}

std::string text_at(const Json& json, const char* key) { return json.at(key).get<std::string>(); }

std::vector<int64_t> ranks_in(const Json& json) {
  std::vector<int64_t> ranks;
  for (const Json& rank : json) {
    if (!rank.is_number_integer()) malformed();
    ranks.push_back(rank.get<int64_t>());
  }
  return ranks;
}

RankRuns runs_in(const Json& json) {
  constexpr int64_t kMostRanks = 1 << 20;  // a message must not make the reader count for hours
  std::vector<RankRuns::Run> runs;
  for (const Json& run : json) {
    const std::vector<int64_t> numbers = ranks_in(run);
    if (numbers.size() != 3) malformed();
    runs.push_back({numbers[0], numbers[1], numbers[2]});
    const RankRuns::Run& one = runs.back();
    if (one.first < 0 || one.last < one.first || one.last >= kMostRanks || one.step < 1) malformed();
  }
  return RankRuns(std::move(runs));
}

Refusal refusal_in(const Json& json) {
  const int64_t code = number_at(json, "code");
  if (code < 0 || code > 255 || !is_failure_code(static_cast<int>(code))) malformed();
  return {static_cast<int>(code), text_at(json, "text"), json.contains("over")};
}

/// Clamped, since half of it is added to a time point.
std::chrono::milliseconds milliseconds_in(int64_t milliseconds) {
  constexpr int64_t kLongest = int64_t{1000} * 60 * 60 * 24 * 365;
  return std::chrono::milliseconds(std::clamp<int64_t>(milliseconds, 0, kLongest));
}

StoreCall call_in(const Json& json) {
  using Kind = StoreCall::Kind;
  StoreCall call;
  const int64_t kind = number_at(json, "kind");
  if (kind < 0 || kind > static_cast<int64_t>(Kind::compare_set)) malformed();
  call.kind = static_cast<Kind>(kind);
  call.keys = json.at("keys").get<std::vector<std::string>>();
  for (const Json& value : json.at("values")) call.values.push_back(bytes_of(value.get<std::string>()));
  call.number = number_at(json, "number");
  call.within = milliseconds_in(number_at(json, "within"));
  call.id = number_at(json, "id");
  const size_t values = call.kind == Kind::set ? 1 : call.kind == Kind::compare_set ? 2 : 0;
  if (call.values.size() != values || (call.keys.empty() && call.kind != Kind::count)) malformed();
  return call;
}

void read_fields(const Json& json, RankMessage& message) {
  if (json.contains("titan")) message.greeting = text_at(json, "titan");
  if (json.contains("hello")) {
    const Json& hello = json.at("hello");
    message.hello = Hello{number_at(hello, "rank"), text_at(hello, "nonce"), text_at(hello, "proof")};
  }
  if (json.contains("proof")) message.proof = text_at(json, "proof");
  if (json.contains("welcome")) {
    const Json& welcome = json.at("welcome");
    const HostPlace place{number_at(welcome, "place"), ranks_in(welcome.at("beside"))};
    if (place.local_rank < 0 || place.host_ranks.empty()) malformed();
    message.welcome = Welcome{number_at(welcome, "cores"), text_at(welcome, "by"), place};
  }
  if (json.contains("refused")) message.refused = refusal_in(json.at("refused"));
  if (json.contains("failed")) message.failed = refusal_in(json.at("failed"));
  if (json.contains("ended")) {
    const Json& ended = json.at("ended");
    message.ended = Cause{number_at(ended, "rank"), 0, text_at(ended, "text"), ended.contains("hangs")};
  }
  if (json.contains("waits")) message.waits = runs_in(json.at("waits"));
  if (json.contains("asks")) message.asks = milliseconds_in(number_at(json, "asks"));
  if (json.contains("store")) message.store = call_in(json.at("store"));
  if (json.contains("stored")) {
    const Json& stored = json.at("stored");
    message.stored =
        StoreAnswer{bytes_of(text_at(stored, "value")), number_at(stored, "number"), number_at(stored, "id")};
  }
  message.heard = json.contains("heard");
  message.asked = json.contains("asked");
  message.leaving = json.contains("leaving");
  message.farewell = json.contains("farewell");
  message.is_understood = message.greeting || message.hello || message.proof || message.welcome || message.refused ||
                          message.failed || message.ended || message.waits || message.asks || message.store ||
                          message.stored || message.heard || message.asked || message.leaving || message.farewell;
}

}  // namespace

std::string greeting_line(std::string_view nonce) { return line_of({{"titan", nonce}}); }
std::string hello_line(const Hello& hello) {
  return line_of({{"hello", {{"rank", hello.rank}, {"nonce", hello.nonce}, {"proof", hello.proof}}}});
}
std::string proof_line(std::string_view proof) { return line_of({{"proof", proof}}); }
std::string welcome_line(const Welcome& welcome) {
  return line_of({{"welcome",
                   {{"cores", welcome.cores},
                    {"by", welcome.rank_zero},
                    {"place", welcome.place.local_rank},
                    {"beside", welcome.place.host_ranks}}}});
}
std::string refused_line(const Refusal& refusal) {
  Json refused{{"code", refusal.code}, {"text", refusal.text}};
  if (refusal.is_over) refused["over"] = true;
  return line_of({{"refused", refused}});
}
std::string failed_line(int code, std::string_view text) {
  return line_of({{"failed", {{"code", code}, {"text", text}}}});
}
std::string heard_line() { return line_of({{"heard", true}}); }
std::string asked_line() { return line_of({{"asked", true}}); }
std::string waits_line(const RankRuns& ranks) {
  Json runs = Json::array();
  for (const RankRuns::Run& run : ranks.runs()) runs.push_back({run.first, run.last, run.step});
  return line_of({{"waits", runs}});
}
std::string asks_line(std::chrono::milliseconds response_timeout) {
  return line_of({{"asks", response_timeout.count()}});
}
std::string ended_line(const Cause& cause) {
  Json ended{{"rank", cause.rank}, {"text", cause.text}};
  if (cause.is_silent) ended["hangs"] = true;
  return line_of({{"ended", ended}});
}
std::string leaving_line() { return line_of({{"leaving", true}}); }
std::string farewell_line() { return line_of({{"farewell", true}}); }

std::string store_line(const StoreCall& call) {
  Json values = Json::array();
  for (const std::string& value : call.values) values.push_back(hex_of(value));
  return line_of({{"store",
                   {{"id", call.id},
                    {"kind", static_cast<int>(call.kind)},
                    {"keys", call.keys},
                    {"values", values},
                    {"number", call.number},
                    {"within", call.within.count()}}}});
}

std::string stored_line(const StoreAnswer& answer) {
  return line_of({{"stored", {{"id", answer.id}, {"value", hex_of(answer.value)}, {"number", answer.number}}}});
}

RankMessage parse_message(std::string_view line) {
  const Json json = parse_json(line, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  try {
    RankMessage message;
    read_fields(json, message);
    return message;
  } catch (const Json::exception&) {
    return {};
  } catch (const Error&) {
    return {};
  }
}

}  // namespace titan
