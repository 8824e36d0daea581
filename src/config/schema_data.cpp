// Section data: text, conversations, mixtures and the order of documents.

#include "titan/config/section.h"

namespace titan::detail {

namespace {

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

}  // namespace

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

}  // namespace titan::detail
