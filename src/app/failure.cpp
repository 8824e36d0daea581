#include "titan/app/program.h"

#include <c10/util/Exception.h>

#include "titan/train/memory_report.h"

namespace titan {
namespace {

/// Gloo's exceptions are of types whose headers LibTorch does not ship; each message names its source file.
bool is_from_gloo(const std::string& message) { return message.find("/gloo/") != std::string::npos; }

bool is_for_other_gpus(const std::string& message) {
  return message.find("no kernel image is available") != std::string::npos;
}

std::string first_line(const std::string& message) { return message.substr(0, message.find('\n')); }

Failure other_gpu() {
  return {ExitCode::bad_config,
          "this program or its LibTorch has no code for this GPU's architecture (no kernel image is available); train "
          "on another GPU, or build for it (CUDAARCHS, TITAN_LIBTORCH)"};
}

Failure lost_peer(const std::string& message) {
  return {ExitCode::peer_failure, "communication with another rank failed: " + first_line(message)};
}

}  // namespace

Failure describe_failure(const std::exception_ptr& error) {
  if (const auto words = out_of_memory_words(error)) return out_of_memory_failure(*words);
  try {
    std::rethrow_exception(error);
  } catch (const c10::DistError& lost) {
    return lost_peer(lost.what_without_backtrace());
  } catch (const c10::Error& internal) {
    if (is_for_other_gpus(internal.what_without_backtrace())) return other_gpu();
    return {ExitCode::bug, "internal error: " + first_line(internal.what_without_backtrace())};
  } catch (const Error&) {
  } catch (const std::exception& other) {
    if (is_from_gloo(other.what())) return lost_peer(other.what());
    if (is_for_other_gpus(other.what())) return other_gpu();
  } catch (...) {
  }
  return describe_failure_without_tensors(error);
}

}  // namespace titan
