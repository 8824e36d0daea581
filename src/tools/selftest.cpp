#include "titan/tools/selftest.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/philox.h"
#include "titan/base/text.h"
#include "titan/checkpoint/safetensors.h"
#include "titan/corpus/token_file.h"
#include "titan/job/job.h"

namespace titan {
namespace {

/// Small, since one process computes the reference, and divisible by the degrees of all rows: a sequence has two parts
/// for each context-parallel rank.
constexpr int64_t kVocabulary = 256;
constexpr int64_t kSequence = 32;
constexpr uint64_t kCorpusKey = 1;
// Limits of rows whose products round: about three times what one to four ranks have on a CPU. There bf16 changes a
// loss by up to 5e-4, a gradient norm by 3e-3 and a gradient by 1e-2, float8 a gradient by 0.1.
constexpr SelftestLimits kBfloat16{.loss = 1e-2, .gradients = 4e-2};
constexpr SelftestLimits kFloat8{.loss = 1e-2, .gradients = 0.4};

std::string option(std::string_view name, auto value) { return fmt::format("--{}={}", name, value); }

/// Degrees above 1 of a layout over all ranks; what they leave is FSDP.
using Degrees = std::map<MeshAxis, int64_t>;

int64_t product_of(const Degrees& degrees) {
  int64_t product = 1;
  for (const auto& [axis, degree] : degrees) product *= degree;
  return product;
}

SelftestRow layout(const std::string& name, int64_t ranks, Degrees degrees) {
  degrees[MeshAxis::dp_shard] = ranks / product_of(degrees);
  SelftestRow row{name, {}, {}};
  int64_t data = 1;
  for (const MeshAxis axis : kMeshAxes) {
    const int64_t degree = degrees.contains(axis) ? degrees.at(axis) : 1;
    row.words.push_back(option(degree_option(axis).key, degree));
    if (divided_along(axis) == DividedWork::sequences) data *= degree;
  }
  row.words.push_back(option("training.local_batch_size", 2 * ranks / data));
  return row;
}

SelftestRow with(SelftestRow row, const std::string& name, std::vector<std::string> words,
                 const SelftestLimits& limits) {
  row.name = name;
  row.limits = limits;
  std::move(words.begin(), words.end(), std::back_inserter(row.words));
  return row;
}

/// error / expected; a value that is not finite must not pass a comparison.
double ratio(double error, double expected) {
  const double found = std::abs(error) / std::abs(expected);
  return std::isfinite(found) ? found : HUGE_VAL;
}

/// The tensors of one step's dump.
class Dump {
 public:
  Dump(Storage& storage, const std::filesystem::path& folder, int64_t step)
      : file_(storage, folder / "debug" / fmt::format("step-{}", step) / "step.safetensors", std::nullopt) {
    for (SafetensorsEntry& entry : read_safetensors_header(file_)) entries_[entry.tensor.name] = std::move(entry);
  }

  std::vector<std::string> gradients() const {
    std::vector<std::string> names;
    for (const auto& [name, entry] : entries_) {
      if (name.starts_with("grad.")) names.push_back(name);
    }
    return names;
  }
  at::Tensor read(const std::string& name) {
    const auto found = entries_.find(name);
    if (found == entries_.end()) throw Error(ExitCode::bug, "a step dump has no " + name);
    const SafetensorsEntry& entry = found->second;
    at::Tensor tensor = at::empty(entry.tensor.shape, at::TensorOptions(entry.tensor.type));
    file_.read(entry.offset, {static_cast<char*>(tensor.mutable_data_ptr()), tensor.nbytes()});
    return tensor.to(at::kDouble);
  }
  double number(const std::string& name) { return read(name).item<double>(); }

 private:
  CheckedReader file_;
  std::map<std::string, SafetensorsEntry> entries_;
};

}  // namespace

std::vector<SelftestRow> selftest_rows(int64_t ranks, bool has_float8) {
  TITAN_CHECK(ranks >= 1, ranks);
  using enum MeshAxis;
  std::vector<SelftestRow> rows;
  const auto add = [&](const std::string& name, const Degrees& degrees) {
    if (ranks % product_of(degrees) == 0) rows.push_back(layout(name, ranks, degrees));
  };
  if (ranks == 1) {
    add("one rank", {});
  } else {
    add(fmt::format("FSDP over {} ranks", ranks), {});
    add(fmt::format("DDP over {} ranks", ranks), {{dp_replicate, ranks}});
    if (ranks > 2) add("HSDP, two replicas", {{dp_replicate, 2}});
    const std::string rest = ranks > 2 ? " with FSDP" : "";
    add("tensor parallel 2" + rest, {{tp, 2}});
    add("pipeline of 2 stages" + rest, {{pp, 2}});
    add("context parallel 2" + rest, {{cp, 2}});
    add("tensor parallel 2, pipeline of 2 stages", {{tp, 2}, {pp, 2}});
    add("tensor parallel 2, context parallel 2", {{tp, 2}, {cp, 2}});
    add("context parallel 2, pipeline of 2 stages", {{pp, 2}, {cp, 2}});
    add("tensor parallel 2, pipeline of 2 stages, context parallel 2", {{tp, 2}, {pp, 2}, {cp, 2}});
    if (ranks % 4 == 0) add("tensor parallel 4", {{tp, 4}});
  }
  const SelftestRow first = rows.front();
  rows.push_back(with(first, first.name + ", all blocks recomputed", {"--activation_checkpoint.mode=full"}, {}));
  const std::vector<std::string> narrow{"--training.mixed_precision_param=bfloat16"};
  rows.push_back(with(first, first.name + ", bf16", narrow, kBfloat16));
  if (has_float8) {
    rows.push_back(
        with(first, first.name + ", float8", {narrow[0], "--model.converters=quantize.linear.float8"}, kFloat8));
  }
  return rows;
}

std::vector<std::string> selftest_words(int64_t ranks, const std::filesystem::path& ids) {
  return {"--model.name=llama3",
          "--model.flavor=custom",
          "--model.override.dim=64",
          "--model.override.n_layers=4",
          "--model.override.n_heads=4",
          "--model.override.n_kv_heads=4",
          "--model.override.multiple_of=32",
          option("model.override.vocab_size", kVocabulary),
          option("model.tokenizer_path", ids.string()),
          "--training.dataset=text",
          option("training.dataset_path", ids.string()),
          option("training.seq_len", kSequence),
          option("training.global_batch_size", 2 * ranks),
          option("training.steps", kSelftestSteps),
          "--training.dtype=float32",
          "--training.mixed_precision_param=float32",
          "--activation_checkpoint.mode=none",
          "--parallelism.pipeline_parallel_microbatch_size=1",
          "--optimizer.lr=1e-3",
          "--lr_scheduler.warmup_steps=1",
          "--debug.seed=1",
          "--debug.dump_steps=1,2,3"};
}

void write_selftest_corpus(const std::filesystem::path& ids, int64_t ranks) {
  // A chunk has one more id than the sequence; one document, so that no packing decides what a batch holds.
  const int64_t count = (kSelftestSteps + 1) * 2 * ranks * (kSequence + 1) + 1;
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    const auto id = static_cast<uint16_t>(philox_at(kCorpusKey, 0, static_cast<uint64_t>(i))[0] % kVocabulary);
    bytes.append(reinterpret_cast<const char*>(&id), sizeof(id));
  }
  write_file_atomically(ids, bytes);
  TokenFileFacts facts;
  facts.vocabulary = kVocabulary;
  facts.eos = 1;
  facts.documents = 1;
  facts.tokens = count;
  facts.tokenizer = "ids of titan_train selftest";
  std::vector<uint64_t> hashes;
  for (size_t at = 0; at < bytes.size(); at += kTokenBlock) {
    // write_token_index takes the XXH3 of each block, and that is what name_key computes of any bytes.
    hashes.push_back(name_key(std::string_view(bytes).substr(at, kTokenBlock)));
  }
  const std::filesystem::path ends = ids.string() + ".ends";
  const auto end = static_cast<uint64_t>(count);
  write_file_atomically(ends, std::string_view(reinterpret_cast<const char*>(&end), sizeof(end)));
  write_token_index(ids, facts, hashes, ends);
  std::filesystem::remove(ends);
}

bool SelftestResult::passed() const {
  return loss <= limits.loss && grad_norm <= limits.loss && gradients <= limits.gradients;
}

SelftestResult compare_selftest(const SelftestRow& row, const std::filesystem::path& folder,
                                const std::filesystem::path& reference) {
  SelftestResult result;
  result.name = row.name;
  result.limits = row.limits;
  const std::unique_ptr<Storage> storage = make_posix_storage();
  for (int64_t step = 1; step <= kSelftestSteps; ++step) {
    Dump mine(*storage, folder, step), expected(*storage, reference, step);
    const auto error_of = [&](const std::string& name) {
      return ratio(mine.number(name) - expected.number(name), expected.number(name));
    };
    result.loss = std::max(result.loss, error_of("loss"));
    result.grad_norm = std::max(result.grad_norm, error_of("grad_norm"));
    if (step > 1) continue;  // later weights differ: Adam divides even the smallest gradients by their size
    for (const std::string& name : expected.gradients()) {
      const at::Tensor theirs = expected.read(name);
      const double error = ratio((mine.read(name) - theirs).norm().item<double>(), theirs.norm().item<double>());
      if (error <= result.gradients) continue;
      result.gradients = error;
      result.worst_parameter = name.substr(name.find('.') + 1);
    }
  }
  return result;
}

std::string selftest_line(const SelftestResult& result) {
  std::string line =
      fmt::format("{} {}: loss {:.0e}, gradient norm {:.0e} (limit {:.0e}), gradients {:.0e} (limit {:.0e})",
                  result.passed() ? "ok  " : "FAIL", result.name, result.loss, result.grad_norm, result.limits.loss,
                  result.gradients, result.limits.gradients);
  if (result.gradients > result.limits.gradients) {
    line += fmt::format("; the worst gradient is that of {}", result.worst_parameter);
  }
  return line;
}

std::string selftest_verdict(std::span<const SelftestResult> results, int64_t ranks, const std::string& device,
                             bool on_gpu) {
  const auto failed = std::count_if(results.begin(), results.end(), [](const auto& one) { return !one.passed(); });
  const std::string rows = failed == 0 ? fmt::format("passed: {0} of {0} rows", results.size())
                                       : fmt::format("failed: {} of {} rows failed", failed, results.size());
  // There the reference is computed by the same processor.
  const char* const left_out =
      ranks == 1 && !on_gpu ? "; layouts and recomputation were compared, not the processor's products" : "";
  return fmt::format("selftest {} on {} rank{} ({}){}", rows, ranks, ranks == 1 ? "" : "s", device, left_out);
}

}  // namespace titan
