// The messages of the ranks' channels: one JSON object per line. Only this file writes and parses them.
//   rank 0, to any caller   {"titan": NONCE}
//   a caller                {"hello": {"rank": R, "nonce": NONCE, "proof": MAC}}; see rendezvous.h
//   rank 0                  {"proof": MAC}; nothing, to a caller without the run's secret
//   a rank                  its facts (rank_check.h)
//   rank 0                  {"welcome": {"cores": N, "by": NAME, "place": R, "beside": [R, …]}}
//                           {"refused": {"code": N, "text": …}}
//   a rank, later           {"failed": {"code": N, "text": …}}, {"waits": [[FIRST, LAST, STEP], …]}, {"leaving": true}
//                           {"asks": MILLISECONDS}: a health check; it has waited for another rank for half of that
//   rank 0, later           {"heard": true}, {"asked": true}, {"ended": {"rank": R, "text": …}}, {"farewell": true}
//                           "ended" also holds "hangs": true if the others end with a hang's code for that rank
//   a rank, to the store    {"store": {"id": N, "kind": N, "keys": […], "values": [HEX, …], "number": N, "within": MS}}
//   rank 0                  {"stored": {"id": N, "value": HEX, "number": N}}; nothing to a set
// The codes of refusals and failures are exit codes (titan/base/error.h) other than success.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rank_store.h"
#include "titan/base/error.h"
#include "titan/distributed/rank_check.h"
#include "titan/distributed/wait_for_graph.h"

namespace titan {

constexpr int kPeerFailure = static_cast<int>(ExitCode::peer_failure);

struct Welcome {
  int64_t cores;
  std::string rank_zero;  // its name, reported when it is lost
  HostPlace place;
};

/// Why a run ends early.
struct Cause {
  int64_t rank;
  int code;
  std::string text;
  bool is_silent = false;  // it hangs and cannot exit by itself, so the others exit with the code of a hang
};

/// The first message of a caller. The proof covers `rank`.
struct Hello {
  int64_t rank;
  std::string nonce;
  std::string proof;
};

std::string greeting_line(std::string_view nonce);
std::string hello_line(const Hello& hello);
std::string proof_line(std::string_view proof);
std::string welcome_line(const Welcome& welcome);
std::string refused_line(const Refusal& refusal);
std::string failed_line(int code, std::string_view text);
std::string heard_line();
/// Asks a rank which ranks it waits for; and the answer.
std::string asked_line();
std::string waits_line(const RankRuns& ranks);
/// Asks rank 0 to send `asked` to all ranks, the sender included, which shows that rank 0 is alive.
std::string asks_line(std::chrono::milliseconds response_timeout);
std::string ended_line(const Cause& cause);
std::string leaving_line();
std::string farewell_line();
std::string store_line(const StoreCall& call);
std::string stored_line(const StoreAnswer& answer);

/// One parsed line; the fields of other message kinds stay empty.
struct RankMessage {
  bool is_understood = false;  // false: not of this protocol; all other fields are empty
  std::optional<std::string> greeting;
  std::optional<Hello> hello;
  std::optional<std::string> proof;
  std::optional<Welcome> welcome;
  std::optional<Refusal> refused;
  std::optional<Refusal> failed;
  std::optional<Cause> ended;
  std::optional<RankRuns> waits;
  std::optional<std::chrono::milliseconds> asks;
  std::optional<StoreCall> store;
  std::optional<StoreAnswer> stored;
  bool heard = false;
  bool asked = false;
  bool leaving = false;
  bool farewell = false;
};
RankMessage parse_message(std::string_view line);

}  // namespace titan
