// Saves and loads the state of a run, timed or weighed. scripts/bench/checkpoint.py runs it beside Python and dd.
//   bench_checkpoint roundtrip|save|stall|memory|resident PARAMETERS FOLDER COUNT
// PARAMETERS: a file with a line for each parameter, "NAME ROWS COLUMNS" or "NAME ELEMENTS"; the state is theirs, fp32,
// with two moments each. FOLDER: where checkpoints are made; it must not be there. Prints one line of JSON:
//   roundtrip  seconds of a synchronous save and of a load into tensors that are there, after an untimed one of each
//   save       seconds of one synchronous save
//   stall      COUNT pairs: seconds for which an asynchronous save kept the thread that trains, before and after the
//              matrix products of a training step, and those of a synchronous one; seconds of that step beside the
//              save, and alone
//   memory     the highest resident memory in COUNT asynchronous saves, above what it was before the first
//   resident   resident memory after 5 asynchronous saves and after COUNT, two checkpoints kept
// All but the last remove each checkpoint before the next one is saved, off the clock.
#include <ATen/ops/arange.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <mutex>
#include <numeric>
#include <sstream>

#include "titan/base/process.h"
#include "titan/checkpoint/checkpointer.h"
#include "titan/checkpoint/training_state.h"

namespace titan {
namespace {

using Path = std::filesystem::path;

std::vector<SavedParameter> read_parameters(const Path& file) {
  std::vector<SavedParameter> parameters;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    SavedParameter parameter;
    words >> parameter.name;
    for (int64_t size = 0; words >> size;) parameter.shape.push_back(size);
    parameter.box_of = whole_everywhere(parameter.shape);
    const int64_t count =
        std::accumulate(parameter.shape.begin(), parameter.shape.end(), int64_t{1}, std::multiplies<>());
    parameter.moments = {{"exp_avg", {}}, {"exp_avg_sq", {}}};
    float step = 0.25F * static_cast<float>(parameters.size() + 1);  // so that no tensor equals another one
    for (at::Tensor* tensor : {&parameter.master, &parameter.moments[0].second, &parameter.moments[1].second}) {
      *tensor = at::arange(count, at::kFloat).mul_(step).view(parameter.shape);
      step *= 3;
    }
    parameters.push_back(std::move(parameter));
  }
  if (parameters.empty()) throw Error(ExitCode::bad_data, "no parameters in " + file.string());
  return parameters;
}

std::vector<at::Tensor> tensors_of(const std::vector<SavedParameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const SavedParameter& parameter : parameters) {
    tensors.insert(tensors.end(), {parameter.master, parameter.moments[0].second, parameter.moments[1].second});
  }
  return tensors;
}

double seconds_of(const std::function<void()>& act) {
  const auto start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The matrix products of one training step on kTokens tokens: forward, and both of the backward.
class Products {
 public:
  static constexpr int64_t kTokens = 512;

  explicit Products(const std::vector<SavedParameter>& parameters) {
    for (const SavedParameter& parameter : parameters) {
      const bool is_multiplied = parameter.shape.size() == 2 && parameter.name != "tok_embeddings.weight";
      if (is_multiplied) weights_.push_back(parameter.master);
    }
  }
  void run() const {
    for (const at::Tensor& weight : weights_) {
      const at::Tensor input = at::ones({kTokens, weight.size(1)}), gradient = at::ones({kTokens, weight.size(0)});
      at::mm(input, weight.t());
      at::mm(gradient, weight);
      at::mm(gradient.t(), input);
    }
  }

 private:
  std::vector<at::Tensor> weights_;
};

/// The state, and the checkpoints of it in one folder.
class Bench {
 public:
  Bench(const Path& parameters, Path folder) : parameters_(read_parameters(parameters)), folder_(std::move(folder)) {}

  nlohmann::json roundtrip() {
    make(SaveMode::synchronous);
    double saving = 0, loading = 0;
    for (int round = 0; round < 2; ++round) {  // the second counts
      const std::vector<std::string> before = hashes();
      saving = save(true);
      for (const at::Tensor& tensor : tensors_of(parameters_)) tensor.zero_();
      loading = seconds_of([&] {
        std::vector<std::string> notes;
        checkpointer_->load(step_, [&](OpenCheckpoint& checkpoint) { restore_run(checkpoint, parameters_, 0, notes); });
      });
      if (hashes() != before) throw Error(ExitCode::silent_corruption, "what was loaded is not what was saved");
    }
    return {{"save", saving}, {"load", loading}};
  }

  nlohmann::json one_save() {
    make(SaveMode::synchronous);
    return {{"save", save(true)}};
  }

  nlohmann::json stall(int64_t pairs) {
    make(SaveMode::asynchronous);
    Products step(parameters_);
    step.run();
    save_and_change();  // makes the buffers
    nlohmann::json asynchronous, synchronous, beside, alone;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      double stalled = save(false);
      beside.push_back(seconds_of([&] { step.run(); }));
      stalled += seconds_of([&] { checkpointer_->detach(); });
      asynchronous.push_back(finish_after(stalled));
      alone.push_back(seconds_of([&] { step.run(); }));
      synchronous.push_back(save(true));
    }
    return {{"async", asynchronous}, {"sync", synchronous}, {"beside", beside}, {"alone", alone}};
  }

  nlohmann::json memory(int64_t saves) {
    make(SaveMode::asynchronous);
    std::ofstream peak("/proc/self/clear_refs");
    if (!(peak << "5" << std::flush)) throw Error(ExitCode::bug, "the peak cannot begin anew, see proc(5)");
    const int64_t before = peak_resident_bytes();
    for (int64_t i = 0; i < saves; ++i) save_and_change();
    return {{"extra", peak_resident_bytes() - before}};
  }

  nlohmann::json resident(int64_t saves) {
    make(SaveMode::asynchronous, /*keep=*/2);
    int64_t early = 0;
    for (int64_t i = 1; i <= saves; ++i) {
      save_and_change();
      if (i == 5) early = resident_bytes();
    }
    return {{"early", early}, {"late", resident_bytes()}};
  }

  int64_t bytes() const {
    int64_t bytes = 0;
    for (const at::Tensor& tensor : tensors_of(parameters_)) bytes += static_cast<int64_t>(tensor.nbytes());
    return bytes;
  }

 private:
  /// `keep`: how many checkpoints stay; 0: the bench removes them itself.
  void make(SaveMode mode, int64_t keep = 0) {
    keep_ = keep;
    // Called by the thread that writes.
    const auto note = [this](const std::string& problem) {
      const std::lock_guard lock(problem_mutex_);
      if (problem_.empty()) problem_ = problem;
    };
    const auto saved = [note](const SaveOutcome& outcome) {
      if (!outcome.committed) note(outcome.sentence());
    };
    CheckpointerOptions options;
    options.root = folder_;
    options.run = "bench";
    options.mode = mode;
    options.retention.keep_latest = keep;
    options.saved = saved;
    options.warn = note;
    checkpointer_ = std::make_unique<Checkpointer>(*storage_, *barrier_, std::move(options));
  }

  /// Saves the next step; the seconds until `save` returned.
  double save(bool now) {
    if (keep_ == 0) std::filesystem::remove_all(folder_);
    ++step_;
    const SavedProgress progress{step_, 1000 * step_, {{"chunk", step_}}, 1};
    return seconds_of([&] { checkpointer_->save(step_, describe_run(parameters_, {}, /*lr=*/1e-4, progress), now); });
  }

  /// As where a step takes no time: all is copied.
  void save_and_change() {
    save(false);
    checkpointer_->detach();
    finish_after(0);
  }

  double finish_after(double seconds) {
    checkpointer_->finish();
    const std::lock_guard lock(problem_mutex_);
    if (!problem_.empty()) throw Error(ExitCode::storage, problem_);
    return seconds;
  }

  std::vector<std::string> hashes() const {
    std::vector<std::string> hashes;
    for (const at::Tensor& tensor : tensors_of(parameters_)) {
      hashes.push_back(xxh3_128({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()}));
    }
    return hashes;
  }

  std::vector<SavedParameter> parameters_;
  Path folder_;
  int64_t step_ = 0, keep_ = 0;
  std::mutex problem_mutex_;
  std::string problem_;  // what went wrong first
  const std::unique_ptr<Storage> storage_ = make_posix_storage();
  const std::unique_ptr<RankBarrier> barrier_ = make_lone_barrier();
  std::unique_ptr<Checkpointer> checkpointer_;
};

int run(const std::vector<std::string>& words) {
  if (words.size() != 4) {
    std::fputs("bench_checkpoint roundtrip|save|stall|memory|resident PARAMETERS FOLDER COUNT\n", stderr);
    return static_cast<int>(ExitCode::bad_config);
  }
  const std::string& what = words[0];
  const int64_t count = std::stoll(words[3]);
  Bench bench(words[1], words[2]);
  nlohmann::json result = what == "roundtrip"  ? bench.roundtrip()
                          : what == "stall"    ? bench.stall(count)
                          : what == "memory"   ? bench.memory(count)
                          : what == "resident" ? bench.resident(count)
                                               : bench.one_save();
  result["bytes"] = bench.bytes();
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace titan

int main(int count, char** words) {
  try {
    return titan::run({words + 1, words + count});
  } catch (const titan::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
