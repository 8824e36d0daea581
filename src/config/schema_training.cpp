// Sections training, validation and data.

#include <fmt/format.h>
#include <regex>

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

void write_mixture(DataSection& data, const std::vector<Record>& records) {
  data.mixture.clear();
  for (const Record& record : records) {
    data.mixture.push_back(
        {std::get<std::string>(record.fields.at("path")), std::get<double>(record.fields.at("weight")),
         std::get<std::string>(record.fields.at("text_field")), std::get<std::string>(record.fields.at("dataset"))});
  }
}

std::vector<Record> read_mixture(const DataSection& data) {
  std::vector<Record> records;
  for (const MixtureSource& source : data.mixture) {
    records.push_back({{{"path", Value(source.path)},
                        {"weight", Value(source.weight)},
                        {"text_field", Value(source.text_field)},
                        {"dataset", Value(source.dataset)}}});
  }
  return records;
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

Condition reads_chat() {
  return {"dataset = \"chat\" for training, validation or a source of the mixture", [](const JobConfig& config) {
            return trains_on_chat(config) || (config.validation.enable && config.validation.dataset == "chat");
          }};
}

template <class DataFields>
void describe_chat(DataFields& data) {
  using S = DataSection;
  data.add("chat_template", &S::chat_template, "auto")
      .own()
      .choices({"auto", "llama3", "llama3_1", "llama2", "chatml", "custom"})
      .help(
          "how a conversation is written; auto: as the Jinja template in the tokenizer's folder says "
          "(chat_template.jinja, tokenizer_config.json); custom: as data.chat says");
  data.add("chat_loss", &S::chat_loss, "assistant")
      .own()
      .choices({"assistant", "all"})
      .only_when(reads_chat())
      .help("tokens of a conversation that count: the assistant's, with the end of the turn, or all");
  data.add("long_conversations", &S::long_conversations, "cut")
      .own()
      .choices({"cut", "drop"})
      .only_when(reads_chat())
      .help("what becomes of a conversation that is longer than a sequence; either is counted");
  data.add("ignore_fields", &S::ignore_fields, {})
      .own()
      .only_when(reads_chat())
      .help("fields of conversations and of their messages that are read as if they were not there");
}

void describe_custom_chat(Schema& schema) {
  using S = ChatSection;
  Section chat(
      schema, "data.chat", "A chat template of your own; names of special tokens in it stand for their ids.",
      [](auto& config) -> auto& { return config.data.chat; });
  const Condition custom{"data.chat_template = \"custom\"",
                         [](const JobConfig& config) { return config.data.chat_template == "custom"; }};
  const auto add = [&](const char* name, std::string S::*field, const char* help) {
    chat.add(name, field, "").own().only_when(custom).help(help);
  };
  add("begin", &S::begin, "start of a conversation");
  add("system_prefix", &S::system_prefix, "prefix of a system message");
  add("system_suffix", &S::system_suffix, "suffix of a system message");
  add("user_prefix", &S::user_prefix, "prefix of a user message");
  add("user_suffix", &S::user_suffix, "suffix of a user message");
  add("assistant_prefix", &S::assistant_prefix, "prefix of an assistant message; also ends a prompt");
  add("assistant_suffix", &S::assistant_suffix,
      "suffix of an assistant message; its first special token ends the turn");
}

/// Which sequences are trained on: the documents', or those that Megatron-LM draws.
template <class DataFields>
void describe_order(DataFields& data) {
  using S = DataSection;
  const Condition as_megatron{"data.order = \"megatron\"",
                              [](const JobConfig& config) { return config.data.order == "megatron"; }};
  data.add("order", &S::order, "documents")
      .own()
      .choices({"documents", "megatron"})
      .help(
          "which sequences are trained on, and when: documents one after the other; or the samples that Megatron-LM "
          "draws from one of its .bin files");
  data.add("megatron_split", &S::megatron_split, "969, 30, 1")
      .own()
      .not_empty()
      .only_when(as_megatron)
      .help(
          "Megatron-LM's --split: shares of the file's entries (Megatron's sequences) for training, validation and "
          "test");
  data.add("megatron_seed", &S::megatron_seed, 1234)
      .own()
      .at_least(0)
      .at_most(4294967295.0)
      .only_when(as_megatron)
      .help("Megatron-LM's --seed, from which it shuffles");
}

void describe_data(Schema& schema) {
  using S = DataSection;
  Section data(
      schema, "data", "How text becomes batches.", [](auto& config) -> auto& { return config.data; });
  data.add("text_field", &S::text_field, "text")
      .own()
      .not_empty()
      .help("field of a .jsonl record, or column of a .parquet file, that holds the text");
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
  describe_order(data);
  data.add("split", &S::split, "global")
      .own()
      .choices({"global", "upstream"})
      .help("one global sequence whatever the layout, or torchtitan's split by data-parallel rank");
  data.add("shuffle", &S::shuffle, false)
      .own()
      .help("read the documents in random order, a different one in every pass");
  data.add("shuffle_seed", &S::shuffle_seed, 0)
      .own()
      .at_least(0)
      .only_when({"data.shuffle = true", [](const JobConfig& config) { return config.data.shuffle; }})
      .help("what that order is drawn from");
  data.add("packing", &S::packing, "upstream")
      .own()
      .choices({"upstream", "lossless", "document"})
      .only_when({"training.dataset other than chat",
                  [](const JobConfig& config) { return config.training.dataset != "chat"; }})
      .help(
          "how documents fill sequences: as torchtitan does, one token of each sequence lost; every token used; or "
          "that and no label across documents (for block_causal models)");
  Option& mixture = data.add_records("mixture", write_mixture, read_mixture);
  mixture.own()
      .field("path", ValueType::text, Value(), "file, folder or glob, as training.dataset_path")
      .field("weight", ValueType::number, Value(), "share of the tokens: parts (3, 1) or fractions that sum to 1")
      .field("text_field", ValueType::text, Value(""),
             "field of a .jsonl record or column of a .parquet file; empty: data.text_field")
      .field("dataset", ValueType::text, Value("text"), "text, chat for conversations, or nanogpt")
      .help("tables `[[data.mixture]]`: what training.dataset = \"mixture\" reads");
  mixture.fields[0].not_empty();
  mixture.fields[1].above(0);
  mixture.fields[3].choices({"text", "chat", "nanogpt"});
  describe_chat(data);
  describe_custom_chat(schema);
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

// Sections optimizer and lr_scheduler.

namespace {

void write_groups(OptimizerSection& optimizer, const std::vector<Record>& records) {
  optimizer.param_groups.clear();
  for (const Record& record : records) {
    ParamGroup group;
    group.match = std::get<std::string>(record.fields.at("match"));
    group.lr_multiplier = std::get<double>(record.fields.at("lr_multiplier"));
    group.weight_decay_multiplier = std::get<double>(record.fields.at("weight_decay_multiplier"));
    group.update = choice_of<GroupUpdate>(std::get<std::string>(record.fields.at("update")));
    optimizer.param_groups.push_back(std::move(group));
  }
}

std::vector<Record> read_groups(const OptimizerSection& optimizer) {
  std::vector<Record> records;
  for (const ParamGroup& group : optimizer.param_groups) {
    records.push_back({{{"match", Value(group.match)},
                        {"lr_multiplier", Value(group.lr_multiplier)},
                        {"weight_decay_multiplier", Value(group.weight_decay_multiplier)},
                        {"update", Value(std::string(word_of(group.update)))}}});
  }
  return records;
}

/// Limits the pattern's length: std::regex compiles a pattern recursively, and 30,000 nested brackets overflow a stack
/// of 8 MiB. Patterns of parameter names have a few dozen bytes.
std::optional<std::string> pattern_problem(const Value& value) {
  constexpr size_t kLongest = 1000;
  const auto& pattern = std::get<std::string>(value);
  if (pattern.size() > kLongest) return fmt::format("optimizer.param_groups.match has {} bytes", pattern.size());
  try {
    const std::regex expression(pattern);
  } catch (const std::regex_error&) {
    return fmt::format(
        "optimizer.param_groups.match = \"{}\" is not a regular expression; check its brackets and "
        "backslashes (a TOML string in single quotes keeps them)",
        pattern);
  }
  return std::nullopt;
}

void describe_optimizer_section(Schema& schema) {
  using S = OptimizerSection;
  Section optimizer(
      schema, "optimizer", "How parameters are updated.", [](auto& config) -> auto& { return config.optimizer; });
  optimizer.add("name", &S::name, OptimizerKind::adamw)
      .help("optimizer; Muon steps matrices of blocks, and AdamW the rest");
  optimizer.add("lr", &S::lr, 8e-4).at_least(0).help("peak learning rate");
  optimizer.add("beta1", &S::beta1, 0.9).later().at_least(0).below(1).help("decay of the first moment");
  optimizer.add("beta2", &S::beta2, 0.95).later().at_least(0).below(1).help("decay of the second moment");
  // Below the smallest normal float32, a device that flushes denormals makes eps 0, and 0 / 0 follows.
  optimizer.add("eps", &S::eps, 1e-8).later().at_least(1e-37).help("term added to the denominator");
  optimizer.add("weight_decay", &S::weight_decay, 0.1)
      .later()
      .at_least(0)
      .help("weight decay: decoupled for AdamW, added to the gradient for Adam");
  optimizer.add("implementation", &S::implementation, OptimizerImplementation::fused)
      .in_2024(Value("foreach"))
      .later()
      .help("how the step is computed; the three agree up to rounding");
  optimizer.add("early_step_in_backward", &S::early_step_in_backward, false)
      .help("step each unit inside backward, without keeping gradients; clipping is then off");
  optimizer.add("state_dtype", &S::state_dtype, ElementType::float32)
      .own()
      .help("dtype of the optimizer's moments; bfloat16 uses stochastic rounding");
  optimizer.add("offload", &S::offload, false)
      .own()
      .only_when({"training.enable_cpu_offload = false",
                  [](const JobConfig& config) { return !config.training.enable_cpu_offload; }})
      .help(
          "keep the optimizer's moments in host memory and bring them to the device in the step, one after the other");
  Option& groups = optimizer.add_records("param_groups", write_groups, read_groups);
  groups.own()
      .field("match", ValueType::text, Value(), "regular expression, searched in the parameter's name")
      .field("lr_multiplier", ValueType::number, Value(1.0), "factor on the learning rate")
      .field("weight_decay_multiplier", ValueType::number, Value(1.0), "factor on the weight decay")
      .field("update", ValueType::text, Value("by_kind"),
             "with Muon: adamw or muon; by_kind: muon for matrices of blocks")
      .help("tables `[[optimizer.param_groups]]`: parameters whose name matches get other rates");
  groups.fields[0].not_empty().rule("a regular expression of at most 1000 bytes", pattern_problem);
  groups.fields[1].at_least(0);
  groups.fields[2].at_least(0);
  groups.fields[3].choices(words_of<GroupUpdate>());
  describe_muon(schema);
}

void describe_lr_scheduler(Schema& schema) {
  using S = LrSchedulerSection;
  Section scheduler(
      schema, "lr_scheduler", "The learning rate over time: warm-up, plateau, decay.",
      [](auto& config) -> auto& { return config.lr_scheduler; });
  Condition shaped{"job.generation is 2026",
                   [](const JobConfig& config) { return config.lr_scheduler.formula != RateFormula::december_2024; }};
  Condition decays{"job.generation is 2026 and lr_scheduler.decay_ratio not 0", [](const JobConfig& config) {
                     return config.lr_scheduler.formula != RateFormula::december_2024 &&
                            config.lr_scheduler.decay_ratio.value_or(1) > 0;
                   }};
  scheduler.add("warmup_steps", &S::warmup_steps, 200).later().at_least(0).help("steps of linear warm-up");
  scheduler.add("total_steps", &S::total_steps, std::nullopt)
      .later()
      .at_least(1)
      .help("steps the schedule is laid out for; none: training.steps");
  scheduler.add("decay_ratio", &S::decay_ratio, std::nullopt)
      .later()
      .at_least(0)
      .at_most(1)
      .only_when(shaped)
      .help("share of the steps spent decaying; none: everything after the warm-up");
  scheduler.add("decay_type", &S::decay_type, DecayType::linear).later().only_when(decays).help("shape of the decay");
  scheduler.add("min_lr_factor", &S::min_lr_factor, 0.0)
      .later()
      .at_least(0)
      .at_most(1)
      .only_when(decays)
      .help("where the decay ends, as a fraction of the peak");
}

}  // namespace

void describe_optimizer(Schema& schema) {
  describe_optimizer_section(schema);
  describe_lr_scheduler(schema);
}

}  // namespace titan::detail
