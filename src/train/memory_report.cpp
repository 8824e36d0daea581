#include "titan/train/memory_report.h"

#include <c10/util/Exception.h>
#include <algorithm>
#include <map>
#include <new>
#include <system_error>

#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

constexpr const char* kRest = "activations and the rest";
constexpr const char* kBefore = "process and libraries";

std::string size_words(const std::string& message) {
  const size_t sentence = std::min(message.find("you tried to allocate"), message.find("Tried to allocate"));
  if (sentence == std::string::npos) return {};
  return message.substr(sentence, message.find(". ", sentence) - sentence);
}

std::map<std::string, int64_t> found_bytes(std::span<Parameter* const> parameters, const MeasuredMemory& measured) {
  int64_t masters = 0, copies = 0;
  for (const Parameter* parameter : parameters) {
    masters += static_cast<int64_t>(parameter->master.nbytes());
    const bool own_copy = !parameter->compute_copy.is_alias_of(parameter->master);
    copies += own_copy ? static_cast<int64_t>(parameter->compute_copy.nbytes()) : 0;
    if (parameter->float8_copy.defined()) copies += static_cast<int64_t>(parameter->float8_copy.nbytes());
  }
  std::map<std::string, int64_t> found{{"parameters", masters},
                                       {"parameters, compute copy", copies},
                                       {"gathered weights", measured.weight_slot_bytes},
                                       {"gradients before reduction", measured.gradient_slot_bytes},
                                       {"optimizer state", measured.optimizer_bytes},
                                       {"activations on the host", measured.host_activation_bytes}};
  if (measured.gradient_bytes) found["gradients"] = *measured.gradient_bytes;
  return found;
}

}  // namespace

std::vector<MemoryRow> memory_rows(std::span<const MemoryPurpose> planned, std::span<Parameter* const> parameters,
                                   const MeasuredMemory& measured) {
  std::map<std::string, int64_t> found = found_bytes(parameters, measured);
  std::vector<MemoryRow> rows;
  if (measured.before_bytes > 0) rows.push_back({kBefore, 0, measured.before_bytes});
  int64_t rest = 0, known = measured.before_bytes;
  for (const MemoryPurpose& purpose : planned) {
    if (measured.device_only && purpose.on_host) {
      found.erase(purpose.name);
      continue;
    }
    const auto actual = found.find(purpose.name);
    if (actual == found.end()) {
      rest += purpose.bytes;
      continue;
    }
    rows.push_back({purpose.name, purpose.bytes, actual->second});
    known += actual->second;
    found.erase(actual);
  }
  for (const auto& [name, bytes] : found) {
    if (bytes == 0) continue;
    rows.push_back({name, 0, bytes});
    known += bytes;
  }
  rows.push_back({kRest, rest, std::max(measured.peak_bytes - known, int64_t{0})});
  return rows;
}

std::vector<std::string> comparison_table(std::span<const MemoryRow> rows) {
  const auto line = [](const std::string& purpose, const std::string& planned, const std::string& actual) {
    return fmt::format("  {:<26} {:>12} {:>12}", purpose, planned, actual);
  };
  std::vector<std::string> lines{line("", "planned", "actual")};
  int64_t planned = 0, actual = 0;
  for (const MemoryRow& row : rows) {
    planned += row.planned;
    actual += row.actual;
    lines.push_back(line(row.purpose, row.purpose == kBefore ? "" : human_bytes(static_cast<double>(row.planned)),
                         human_bytes(static_cast<double>(row.actual))));
  }
  lines.push_back(
      line("together", human_bytes(static_cast<double>(planned)), human_bytes(static_cast<double>(actual))));
  return lines;
}

std::optional<std::string> out_of_memory_words(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return "";
  } catch (const std::system_error& refused) {
    if (refused.code() == std::errc::not_enough_memory) return "";
  } catch (const c10::DistError& communication) {
    // NCCL's message follows LibTorch's first line.
    if (reports_out_of_memory(communication.what_without_backtrace())) return "while ranks communicated";
  } catch (const c10::Error& internal) {
    const std::string message = internal.what_without_backtrace();
    const std::string first_line = message.substr(0, message.find('\n'));
    if (reports_out_of_memory(first_line)) return size_words(first_line);
  } catch (const Error&) {
  } catch (const std::exception& other) {
    if (reports_out_of_memory(other.what())) return "";
  } catch (...) {
  }
  return std::nullopt;
}

std::optional<std::string> vague_words(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& failure) {
    const std::string message = failure.what();
    // oneDNN says this and no more, also where memory is short.
    for (const char* vague : {"could not execute a primitive", "could not create a primitive"}) {
      if (message.find(vague) != std::string::npos) return vague;
    }
  } catch (...) {
  }
  return std::nullopt;
}

}  // namespace titan
