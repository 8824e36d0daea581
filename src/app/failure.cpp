#include "titan/app/failure.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <new>

namespace titan {
namespace {

bool is_out_of_memory(const std::string& message) {
  return message.find("can't allocate memory") != std::string::npos ||
         message.find("out of memory") != std::string::npos;
}

/// Gloo's exceptions are of types whose headers LibTorch does not ship; each message names its source file.
bool is_from_gloo(const std::string& message) { return message.find("/gloo/") != std::string::npos; }

std::string first_line(const std::string& message) { return message.substr(0, message.find('\n')); }

/// With the allocator's own words on the size, without where in LibTorch they were thrown.
std::string out_of_memory(const std::string& message) {
  const size_t sentence = std::min(message.find("you tried to allocate"), message.find("Tried to allocate"));
  std::string what;
  if (sentence != std::string::npos)
    what = " (" + message.substr(sentence, message.find(". ", sentence) - sentence) + ")";
  return "out of memory" + what +
         "; try a smaller training.local_batch_size or training.seq_len, or activation_checkpoint.mode = \"full\"";
}

Failure lost_peer(const std::string& message) {
  return {ExitCode::peer_failure, "communication with another rank failed: " + first_line(message)};
}

}  // namespace

Failure describe_failure(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return {known.code(), known.what()};
  } catch (const std::bad_alloc&) {
    return {ExitCode::out_of_memory, out_of_memory({})};
  } catch (const c10::DistError& lost) {
    return lost_peer(lost.what_without_backtrace());
  } catch (const c10::Error& internal) {
    const std::string message = first_line(internal.what_without_backtrace());
    if (is_out_of_memory(message)) return {ExitCode::out_of_memory, out_of_memory(message)};
    return {ExitCode::bug, "internal error: " + message};
  } catch (const std::filesystem::filesystem_error& file) {
    return {ExitCode::storage, std::string(file.what()) + "; see whether the path is right and can be used"};
  } catch (const std::exception& other) {
    if (is_from_gloo(other.what())) return lost_peer(other.what());
    return {ExitCode::bug, std::string("internal error: ") + other.what()};
  } catch (...) {
    return {ExitCode::bug, "internal error: an exception of an unknown kind"};
  }
}

}  // namespace titan
