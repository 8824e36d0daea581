#include "titan/base/log.h"

#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace titan {

Log::Log(bool colour, std::string prefix) : colour_(colour), prefix_(std::move(prefix)) {
  std::shared_ptr<spdlog::sinks::sink> sink;
  if (colour) {
    sink = std::make_shared<spdlog::sinks::ansicolor_stdout_sink_mt>();
  } else {
    sink = std::make_shared<spdlog::sinks::stdout_sink_mt>();
  }
  logger_ = std::make_shared<spdlog::logger>("titan", std::move(sink));
  logger_->set_pattern("[titan] %Y-%m-%d %H:%M:%S,%e - root - %^%v%$");
  logger_->flush_on(spdlog::level::info);
}

Log::~Log() = default;

void Log::info(std::string_view message) const { logger_->info("INFO - {}{}", prefix_, message); }
void Log::warning(std::string_view message) const { logger_->warn("WARNING - {}{}", prefix_, message); }
void Log::error(std::string_view message) const { logger_->error("ERROR - {}{}", prefix_, message); }
void Log::flush() const { logger_->flush(); }

}  // namespace titan
