// One rank as a child process: started with its environment variables, its output read line by line.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

/// The read end of a pipe that a child writes to; splits the stream into lines.
class LinePipe {
 public:
  LinePipe() = default;
  LinePipe(const LinePipe&) = delete;
  LinePipe& operator=(const LinePipe&) = delete;
  ~LinePipe() { close(); }

  /// Opens the pipe; returns the write end, or -1.
  int open();
  int descriptor() const { return descriptor_; }
  /// Reads the available data and calls `take` with each complete line; at the end of the stream also with the
  /// remainder.
  void read(const std::function<void(std::string_view line)>& take);
  void close();

 private:
  int descriptor_ = -1;
  std::string pending_;
};

/// How a process ended.
struct ProcessEnd {
  int exit_code = 0;  ///< 128 + signal if it was killed
  int signal = 0;
};

class RankProcess {
 public:
  explicit RankProcess(int64_t rank) : rank_(rank) {}

  /// Kills the rank if it is running.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  /// Starts `program` in its own process group, with this process's environment except where `variables` override it.
  /// The kernel kills it when this process ends. `shares_output`: it inherits this process's standard output, which is
  /// then not captured. Throws Error(launcher) if it cannot be started.
  void start(const std::string& program, const std::vector<std::string>& arguments,
             const std::map<std::string, std::string>& variables, bool shares_output);

  int64_t rank() const { return rank_; }
  pid_t process() const { return process_; }
  bool is_running() const { return process_ > 0 && !end_; }
  const std::optional<ProcessEnd>& end() const { return end_; }
  /// Sends a signal to the rank and its descendants.
  void send(int signal) const;
  /// Records the exit, if any; true if it has just ended.
  bool check();

  LinePipe output;
  LinePipe errors;
  std::string last_error_line;

 private:
  int64_t rank_;
  pid_t process_ = -1;
  std::optional<ProcessEnd> end_;
};

}  // namespace titan
