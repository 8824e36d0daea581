// Sections training, validation and data.
#include "dataloader.h"
#include "section.h"

namespace titan::detail {
namespace {

const std::vector<std::string> kDatasets{"stories", "text", "c4", "c4_test", "c4_validation"};
const std::vector<std::string> kTrainingDatasets{"stories", "text", "mixture", "c4", "c4_test", "c4_validation"};
constexpr const char* kDatasetHelp =
    "what is read: stories (generated, needs no file), text (your .txt, .jsonl or .bin files), or C4 from local files";
constexpr const char* kTrainingDatasetHelp =
    "what is read: stories (generated, needs no file), text (your .txt, .jsonl or .bin files), mixture (the sources in "
    "data.mixture), or C4 from local files";

Condition stories_not_used() {
  return {"training.dataset other than stories",
          [](const JobConfig& config) { return config.training.dataset != "stories"; }};
}

Condition one_source_used() {
  return {"training.dataset other than stories and mixture", [](const JobConfig& config) {
            return config.training.dataset != "stories" && config.training.dataset != "mixture";
          }};
}

void write_mixture(DataSection& data, const std::vector<Record>& records) {
  data.mixture.clear();
  for (const Record& record : records) {
    data.mixture.push_back({std::get<std::string>(record.fields.at("path")),
                            std::get<double>(record.fields.at("weight")),
                            std::get<std::string>(record.fields.at("text_field"))});
  }
}

std::vector<Record> read_mixture(const DataSection& data) {
  std::vector<Record> records;
  for (const MixtureSource& source : data.mixture) {
    records.push_back(
        {{{"path", Value(source.path)}, {"weight", Value(source.weight)}, {"text_field", Value(source.text_field)}}});
  }
  return records;
}

template <class TrainingFields>
void describe_run_length(TrainingFields& training) {
  using S = TrainingSection;
  training.add("dataset", &S::dataset, "c4_test").choices(kTrainingDatasets).any_case().help(kTrainingDatasetHelp);
  training.add("dataset_path", &S::dataset_path, std::nullopt)
      .not_empty()
      .only_when(one_source_used())
      .help("file, folder or glob the dataset is read from");
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
  training.add("dtype", &S::dtype, "float32")
      .later()
      .choices({"float32", "bfloat16"})
      .help("dtype that parameters are created and updated in; bfloat16 rounds by chance");
  training.add("mixed_precision_param", &S::mixed_precision_param, "bfloat16")
      .choices({"bfloat16", "float32"})
      .help("dtype that forward and backward compute in");
  training.add("mixed_precision_reduce", &S::mixed_precision_reduce, "float32")
      .choices({"float32", "bfloat16"})
      .among_several("one process reduces nothing")
      .help("dtype that gradients travel in between data-parallel ranks; they add up and are kept in float32");
  training.add("keep_fp32", &S::keep_fp32, {})
      .own()
      .not_empty()
      .help("units whose parameters stay in fp32 under mixed precision");
  training.add("weight_gradient_dtype", &S::weight_gradient_dtype, "float32")
      .own()
      .choices({"float32", "bfloat16"})
      .help("what a product that yields a weight gradient is rounded to before it is accumulated in fp32");
  training.add("allow_bf16_reduced_precision_reduction", &S::allow_bf16_reduced_precision_reduction, true)
      .own()
      .help("cuBLAS may add up the partial sums of a bf16 product that it splits along K in bf16; false: in fp32");
  training.add("loss_chunks", &S::loss_chunks, 8)
      .own()
      .at_least(1)
      .help("parts the logits are computed in, so that they are never held whole");
  training.add("non_finite", &S::non_finite, "abort")
      .own()
      .choices({"abort", "skip"})
      .help("on a loss or gradient norm that is not finite: end the run, or leave that step out");
  const Condition guarded{"training.spike_guard = \"warn\" or \"skip\"",
                          [](const JobConfig& config) { return config.training.spike_guard != "off"; }};
  training.add("spike_guard", &S::spike_guard, "off")
      .own()
      .choices({"off", "warn", "skip"})
      .help("on a loss or gradient norm far above those of the steps before: tell it, or leave that step out");
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
      schema, "validation", "Loss on held-out text, now and then.",
      [](auto& config) -> auto& { return config.validation; });
  validation.add("enable", &S::enable, false).later().help("validate while training");
  validation.add("dataset", &S::dataset, "c4_validation")
      .later()
      .choices(kDatasets)
      .any_case()
      .only_when(on)
      .help(kDatasetHelp);
  validation.add("dataset_path", &S::dataset_path, std::nullopt)
      .later()
      .not_empty()
      .only_when(
          {"validation.enable = true and validation.dataset other than stories",
           [](const JobConfig& config) { return config.validation.enable && config.validation.dataset != "stories"; }})
      .help("file or folder the dataset is read from");
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

void describe_data(Schema& schema) {
  using S = DataSection;
  Section data(
      schema, "data", "How text becomes batches.", [](auto& config) -> auto& { return config.data; });
  data.add("text_field", &S::text_field, "text").own().not_empty().help("field of a .jsonl record that holds the text");
  data.add("bad_record", &S::bad_record, "error")
      .own()
      .choices({"error", "skip"})
      .help("on a record that cannot be read: end the run, or count and leave it out");
  data.add("prefetch", &S::prefetch, 4)
      .own()
      .at_least(1)
      .at_most(kMostBatchesReady)
      .help("batches kept ready by the background thread");
  data.add("timeout", &S::timeout, 300)
      .own()
      .at_least(1)
      .help("seconds without a batch after which the source is named");
  data.add("split", &S::split, "global")
      .own()
      .choices({"global", "upstream"})
      .help("one global sequence whatever the layout, or torchtitan's split by data-parallel rank");
  data.add("shuffle", &S::shuffle, false)
      .own()
      .only_when(stories_not_used())
      .help("read the documents in an order of chance, another one in every pass");
  data.add("shuffle_seed", &S::shuffle_seed, 0)
      .own()
      .at_least(0)
      .only_when({"data.shuffle = true", [](const JobConfig& config) { return config.data.shuffle; }})
      .help("what that order is drawn from");
  data.add("packing", &S::packing, "upstream")
      .own()
      .choices({"upstream", "lossless", "document"})
      .help(
          "how documents fill sequences: as torchtitan does, one token of each sequence lost; every token used; or "
          "that and no label across documents (for block_causal models)");
  Option& mixture = data.add_records("mixture", write_mixture, read_mixture);
  mixture.own()
      .field("path", ValueType::text, Value(), "file, folder or glob")
      .field("weight", ValueType::number, Value(), "share of the tokens: parts (3, 1) or fractions that sum to 1")
      .field("text_field", ValueType::text, Value(""), "field of a .jsonl record; empty: data.text_field")
      .help("tables `[[data.mixture]]`: what training.dataset = \"mixture\" reads");
  mixture.fields[0].not_empty();
  mixture.fields[1].above(0);
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
  describe_data(schema);
}

}  // namespace titan::detail
