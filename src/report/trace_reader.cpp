// Reads Chrome traces, plain or gzipped, event by event.
#include <fmt/format.h>
#include <zlib.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <istream>
#include <map>
#include <streambuf>

#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/json.h"
#include "titan/report/trace_summary.h"

namespace titan {
namespace {

using Kind = TraceEvent::Kind;

constexpr std::string_view kWhatWorks =
    "Name a trace: a run with profiling.enable_profiling writes DUMP_FOLDER/profile_traces/iteration_N/"
    "rank0_trace.json, and torch.profiler's export_chrome_trace one of the same form";

/// Reads a file through zlib, compressed or not.
class ZippedFile : public std::streambuf {
 public:
  explicit ZippedFile(const std::filesystem::path& path) : path_(path) {
    if (may_wait(path)) fail("it is a pipe or a device");
    refuse_kind(file_kind_at(path), path, ExitCode::bad_data, {FileKind::gzip});
    file_ = ::gzopen(path.c_str(), "rb");
    const bool is_folder = std::filesystem::is_directory(path);
    const int reason = is_folder ? EISDIR : errno;
    if (file_ && is_folder) ::gzclose(file_);
    if (!file_ || is_folder) fail(std::strerror(reason));
  }
  ~ZippedFile() override {
    if (file_) ::gzclose(file_);
  }
  ZippedFile(const ZippedFile&) = delete;
  ZippedFile& operator=(const ZippedFile&) = delete;

 protected:
  int_type underflow() override {
    const int got = ::gzread(file_, buffer_.data(), static_cast<unsigned>(buffer_.size()));
    int code = Z_OK;
    const char* const problem = ::gzerror(file_, &code);
    if (got < 0 || code == Z_BUF_ERROR) fail(code == Z_ERRNO ? std::strerror(errno) : problem);
    if (got == 0) return traits_type::eof();
    setg(buffer_.data(), buffer_.data(), buffer_.data() + got);
    return traits_type::to_int_type(buffer_[0]);
  }

 private:
  /// Opening or reading these could wait for ever, except what a shell hands over: <(command).
  static bool may_wait(const std::filesystem::path& path) {
    std::error_code ignored;
    const std::string name = path.string();
    return std::filesystem::is_other(path, ignored) && !name.starts_with("/dev/fd/") && name != "/dev/stdin";
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw Error(ExitCode::bad_data, fmt::format("cannot read {}: {}. {}", path_.string(), reason, kWhatWorks));
  }

  std::filesystem::path path_;
  gzFile file_ = nullptr;
  std::array<char, 1 << 16> buffer_{};
};

Kind kind_of(const std::string& category, const std::string& name) {
  if (category == "cpu_op") return Kind::operation;
  if (category == "user_annotation") return name.starts_with("ProfilerStep#") ? Kind::step : Kind::range;
  if (category == "gpu_user_annotation") return name.starts_with("ProfilerStep#") ? Kind::other : Kind::device_range;
  if (category == "kernel" || category == "gpu_memcpy" || category == "gpu_memset") return Kind::kernel;
  return Kind::other;
}

/// Thread ids are numbers, or strings in traces of some tools ("stream 7").
int64_t thread_of(const nlohmann::json& event, std::map<std::string, int64_t>& names) {
  const auto found = event.find("tid");
  if (found == event.end()) return 0;
  if (found->is_number_integer()) return found->get<int64_t>();
  return names.try_emplace(found->dump(), -1 - static_cast<int64_t>(names.size())).first->second;
}

/// The parser's message without its error number: "parse error at line 1, column 1: …".
std::string reason_in(const std::string& what) {
  const size_t end = what.find("] ");
  return what.substr(end == what.npos ? 0 : end + 2);
}

}  // namespace

std::vector<TraceEvent> read_trace(const std::filesystem::path& path) {
  ZippedFile file(path);
  std::istream stream(&file);
  stream.exceptions(std::ios::badbit);  // throw only the file's own errors, not the end of the file
  std::vector<TraceEvent> events;
  std::map<std::string, int64_t> threads;
  auto take = [&](const nlohmann::json& event) {
    if (event.value("ph", "") != "X" || !event.contains("ts") || !event["ts"].is_number()) return;
    const std::string name = event.value("name", "");
    const Kind kind = kind_of(event.value("cat", ""), name);
    if (kind == Kind::other) return;
    const double length = event.contains("dur") && event["dur"].is_number() ? event["dur"].get<double>() : 0;
    events.push_back({kind, name, thread_of(event, threads), event["ts"].get<double>(), length});
  };
  // Each event's JSON is discarded when it is complete: a parsed trace of gigabytes would take several times as much.
  // A trace is an object with the list of events, or only the list.
  int list_depth = -1;
  auto visit = [&](int depth, nlohmann::json::parse_event_t what, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (what == Event::key && depth == 1 && parsed == "traceEvents") list_depth = 2;
    if (what == Event::array_start && depth == 0) list_depth = 1;
    if (what == Event::array_end && depth == list_depth - 1 && list_depth == 2) list_depth = -2;
    if (what != Event::object_end || depth != list_depth) return true;
    take(parsed);
    return false;
  };
  try {
    [[maybe_unused]] const nlohmann::json rest = parse_json_with(stream, visit);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ExitCode::bad_data, fmt::format("{} is not a trace: it is not JSON, or was cut off ({}). {}",
                                                path.string(), reason_in(error.what()), kWhatWorks));
  }
  if (events.empty()) {
    throw Error(ExitCode::bad_data,
                fmt::format("{} holds no events of a profiler (cpu_op, user_annotation, kernel). {}", path.string(),
                            kWhatWorks));
  }
  return events;
}

}  // namespace titan
