// Sections training and validation.

#include <fmt/format.h>

#include "titan/config/section.h"

namespace titan::detail {

namespace {

const std::vector<std::string> kDatasets{"text", "chat", "nanogpt", "c4", "c4_test", "c4_validation"};
const std::vector<std::string> kTrainingDatasets{"text", "chat",    "nanogpt",      "mixture",
                                                 "c4",   "c4_test", "c4_validation"};
constexpr const char* kDatasetHelp =
    "what is read: text (your .txt, .jsonl, .parquet, .bin or .ds files), chat (.jsonl or .parquet files of "
    "conversations), nanogpt (.bin files of nanoGPT, which have no header), or C4 from local files";
constexpr const char* kTrainingDatasetHelp =
    "what is read: text (your .txt, .jsonl, .parquet, .bin or .ds files), chat (.jsonl or .parquet files of "
    "conversations), nanogpt (.bin files of nanoGPT, which have no header), mixture (the sources in data.mixture), or "
    "C4 from local files";

Condition one_source_used() {
  return {"training.dataset other than mixture",
          [](const JobConfig& config) { return config.training.dataset != "mixture"; }};
}

/// The message for the former value of `dataset` that selected the story generator.
std::string stories_are_a_file(const std::string& section, const std::string& file) {
  return fmt::format("the stories are a file now; write {0}.dataset = \"text\" and {0}.dataset_path = \"{1}\"", section,
                     file);
}

template <class TrainingFields>
void describe_run_length(TrainingFields& training) {
  using S = TrainingSection;
  training.add("dataset", &S::dataset, "c4_test")
      .choices(kTrainingDatasets)
      .any_case()
      .refuses("stories", stories_are_a_file("training", "configs/corpora/stories.jsonl"))
      .help(kTrainingDatasetHelp);
  training.add("dataset_path", &S::dataset_path, std::nullopt)
      .not_empty()
      .only_when(one_source_used())
      .help("file, folder or glob the dataset is read from; of Megatron-LM also its name without .bin");
  training.add("local_batch_size", &S::local_batch_size, 8)
      .later()
      .at_least(1)
      .at_most(kMostSequences)
      .help("sequences per microbatch and data-parallel rank");
  training.add("global_batch_size", &S::global_batch_size, -1)
      .later()
      .at_least(1)
      .or_else(-1)
      .help("sequences per step over all ranks, reached by gradient accumulation; -1: no accumulation");
  training.add("seq_len", &S::seq_len, 2048).at_least(1).at_most(kLongestSequence).help("tokens per sequence");
  training.add("steps", &S::steps, 10000).at_least(1).help("steps to train");
  training.add("max_norm", &S::max_norm, 1.0).at_least(0).help("gradients are clipped to this norm; 0: no clipping");
}

template <class TrainingFields>
void describe_numbers(TrainingFields& training) {
  using S = TrainingSection;
  training.add("dtype", &S::dtype, ElementType::float32)
      .later()
      .help("dtype that parameters are created and updated in; bfloat16 uses stochastic rounding");
  training.add("mixed_precision_param", &S::mixed_precision_param, ElementType::bfloat16)
      .choices({"bfloat16", "float32"})
      .help("dtype that forward and backward compute in");
  training.add("mixed_precision_reduce", &S::mixed_precision_reduce, ElementType::float32)
      .among_several("one process reduces nothing")
      .help("dtype in which data-parallel ranks send gradients; they are summed and kept in float32");
  training.add("keep_fp32", &S::keep_fp32, {})
      .own()
      .not_empty()
      .help("units whose parameters stay in fp32 under mixed precision");
  training.add("weight_gradient_dtype", &S::weight_gradient_dtype, ElementType::float32)
      .own()
      .help("dtype to which weight-gradient products are rounded before fp32 accumulation");
  training.add("gradient_dtype", &S::gradient_dtype, ElementType::float32)
      .own()
      .help("dtype of the gradients of blocks; bfloat16 requires one process and one microbatch per step");
  training.add("allow_bf16_reduced_precision_reduction", &S::allow_bf16_reduced_precision_reduction, true)
      .own()
      .help("cuBLAS may add up the partial sums of a bf16 product that it splits along K in bf16; false: in fp32");
  training.add("loss_chunks", &S::loss_chunks, 8)
      .own()
      .at_least(0)
      .help(
          "parts the logits are computed in, so that they are never held whole; 0: as few as fit into the GPU, on a "
          "CPU 8");
  training.add("non_finite", &S::non_finite, "abort")
      .own()
      .choices({"abort", "skip"})
      .help("on a loss or gradient norm that is not finite: end the run, or leave that step out");
  training.add("max_skipped_steps", &S::max_skipped_steps, 16)
      .own()
      .at_least(0)
      .only_when({"training.non_finite = \"skip\"",
                  [](const JobConfig& config) { return config.training.non_finite == "skip"; }})
      .help("steps in a row that are not finite, after which the run ends; 0: no limit");
  const Condition guarded{"training.spike_guard = \"warn\" or \"skip\"",
                          [](const JobConfig& config) { return config.training.spike_guard != "off"; }};
  training.add("spike_guard", &S::spike_guard, "off")
      .own()
      .choices({"off", "warn", "skip"})
      .help(
          "on a loss or gradient norm far above those of the steps before: print a warning, or skip the optimizer "
          "step");
  training.add("spike_window", &S::spike_window, 128)
      .own()
      .at_least(8)
      .at_most(kMostGuardedSteps)
      .only_when(guarded)
      .help("steps that a step is compared with");
  training.add("spike_threshold", &S::spike_threshold, 6.0)
      .own()
      .above(0)
      .only_when(guarded)
      .help("standard deviations above their mean that make a spike");
  training.add("device", &S::device, "auto")
      .own()
      .choices({"auto", "cpu", "cuda"})
      .help("where to train; auto: a GPU when there is one");
  training.add("threads", &S::threads, 0)
      .own()
      .at_least(0)
      .help("CPU threads, at most four per processor; 0: all cores");
  training.add("enable_cpu_offload", &S::enable_cpu_offload, false)
      .help("keep parameters, gradients and optimizer states in host memory");
}

void describe_validation(Schema& schema) {
  using S = ValidationSection;
  Condition on{"validation.enable = true", [](const JobConfig& config) { return config.validation.enable; }};
  Section validation(
      schema, "validation", "Loss on held-out text, at intervals.",
      [](auto& config) -> auto& { return config.validation; });
  validation.add("enable", &S::enable, false).later().help("validate while training");
  validation.add("dataset", &S::dataset, "c4_validation")
      .later()
      .choices(kDatasets)
      .any_case()
      .refuses("stories", stories_are_a_file("validation", "configs/corpora/stories_validation.jsonl"))
      .only_when(on)
      .help(kDatasetHelp);
  validation.add("dataset_path", &S::dataset_path, std::nullopt)
      .later()
      .not_empty()
      .only_when(on)
      .help("file, folder or glob the dataset is read from; of Megatron-LM also its name without .bin");
  validation.add("local_batch_size", &S::local_batch_size, 8)
      .later()
      .at_least(1)
      .at_most(kMostSequences)
      .only_when(on)
      .help("sequences per batch and data-parallel rank");
  validation.add("seq_len", &S::seq_len, 2048)
      .later()
      .default_from("training.seq_len")
      .at_least(1)
      .at_most(kLongestSequence)
      .only_when(on)
      .help("tokens per sequence");
  validation.add("freq", &S::freq, 10).later().at_least(1).only_when(on).help("steps between two validations");
  validation.add("steps", &S::steps, -1)
      .later()
      .at_least(1)
      .or_else(-1)
      .only_when(on)
      .help("batches per validation; -1: the whole set");
  describe_dataloader(schema, "validation.dataloader");
}

}  // namespace

void describe_training(Schema& schema) {
  Section training(
      schema, "training", "What is trained on, how much, and in which precision.",
      [](auto& config) -> auto& { return config.training; });
  describe_run_length(training);
  describe_numbers(training);
  training.accept("gc_freq", ValueType::integer, Value(int64_t{50}))
      .above(0)
      .no_effect("nothing here is garbage-collected")
      .help("steps between two runs of the host's garbage collector");
  training.accept("gc_debug", ValueType::boolean, Value(false))
      .later()
      .no_effect("nothing here is garbage-collected")
      .help("debug the host's garbage collector");
  describe_dataloader(schema, "training.dataloader");
  describe_validation(schema);
}

}  // namespace titan::detail
