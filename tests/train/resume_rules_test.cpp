// What a run resumes from, what it refuses to resume with, and what it says of both.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "saved_jobs.h"
#include "titan/base/error.h"
#include "titan/checkpoint/load.h"
#include "titan/config/dump.h"
#include "titan/config/schema.h"
#include "titan/report/attempt_record.h"
#include "titan/train/state_dict.h"

namespace titan {
namespace {

using test::run, test::contains, test::saved;

TEST(Resuming, SaysWhatItLoadedOrThatItStartsFresh) {
  const TestFolder folder;
  EXPECT_TRUE(contains(run(folder, {"--training.steps=2"}), "LOAD: nothing: "));
  const std::string second = run(folder, {"--training.steps=4"});
  EXPECT_TRUE(contains(second, "LOAD: step 2 from " + folder / "out/checkpoint/step-2" + " (verified")) << second;
  EXPECT_TRUE(contains(second, "Training starts at step 3")) << second;
  EXPECT_TRUE(contains(second, "checkpoint 4 committed: ")) << second;
}

TEST(Resuming, ADamagedCheckpointIsPassedOverAndBothAreNamed) {
  const TestFolder folder, whole;
  run(folder, {"--training.steps=4"});
  run(whole, {});
  std::string bytes = saved(folder, 4);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_file_atomically(folder / "out/checkpoint/step-4/__0_0.distcp", bytes);
  const std::string text = run(folder, {});
  EXPECT_TRUE(contains(text, "LOAD: step 2 from ")) << text;
  EXPECT_TRUE(contains(text, "step 4 is damaged: ")) << text;
  EXPECT_TRUE(saved(folder, 8) == saved(whole, 8));
}

TEST(Resuming, AStepThatIsNotThereAndARunThatMustResumeAreErrors) {
  const TestFolder folder;
  EXPECT_THROW(run(folder, {"--checkpoint.require_resume"}), Error);
  run(folder, {"--training.steps=2"});
  EXPECT_THROW(run(folder, {"--checkpoint.load_step=7"}), Error);
  EXPECT_TRUE(contains(run(folder, {"--checkpoint.load_step=2", "--training.steps=3"}), "LOAD: step 2 "));
}

/// Trains with the words `before`, resumes with the words `after` instead, and returns the error; empty: it resumed.
std::string refusal(const std::vector<std::string>& before, const std::vector<std::string>& after) {
  const TestFolder folder;
  std::string corpus;
  for (int i = 0; i < 400; ++i) corpus += fmt::format("{{\"text\": \"document {} of a corpus\"}}\n", i);
  const std::string path = folder.write("corpus.jsonl", corpus);
  const auto with = [&](std::vector<std::string> all, const char* steps) {
    all.insert(all.end(), {"--training.dataset=text", "--training.dataset_path=" + path, steps});
    return all;
  };
  run(folder, with(before, "--training.steps=2"));
  std::string message;
  try {
    run(folder, with(after, "--training.steps=4"));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config) << error.what();
    message = error.what();
  }
  std::vector<std::string> anew = with(after, "--training.steps=4");
  anew.emplace_back("--checkpoint.exclude_from_loading=dataloader");
  if (!message.empty()) {
    EXPECT_TRUE(contains(run(folder, anew), "Training starts at step 3"));
  }
  return message;
}

TEST(Resuming, AChangedOrderOrPackingIsNamedByItsOption) {
  const std::string seed = refusal({"--data.shuffle"}, {"--data.shuffle", "--data.shuffle_seed=5"});
  EXPECT_TRUE(contains(seed, "were read with data.shuffle_seed = 0, and this run has 5")) << seed;
  EXPECT_TRUE(contains(seed, "checkpoint.exclude_from_loading")) << seed;
  const std::string shuffled = refusal({}, {"--data.shuffle"});
  EXPECT_TRUE(contains(shuffled, "were read with data.shuffle = false, and this run has true")) << shuffled;
  const std::string packing = refusal({}, {"--data.packing=lossless"});
  EXPECT_TRUE(contains(packing, "data.packing = \"upstream\", and this run has \"lossless\"")) << packing;
  EXPECT_EQ(refusal({"--data.shuffle_seed=3"}, {}), "") << "which has no effect without shuffling";
}

TEST(Resuming, ACorpusThatGrewOrChangedIsRefusedUnlessTheDataStartAgain) {
  const TestFolder folder;
  std::string corpus;
  for (int i = 0; i < 200; ++i) corpus += fmt::format("{{\"text\": \"document {} of a corpus\"}}\n", i);
  const auto text = [&](const char* steps) -> std::vector<std::string> {
    return {"--training.dataset=text", "--training.dataset_path=" + folder / "corpus.jsonl", steps};
  };
  folder.write("corpus.jsonl", corpus.substr(0, corpus.find("{\"text\": \"document 150 ")));
  run(folder, text("--training.steps=3"));
  const auto expect_refused = [&](const std::string& written, const char* words) {
    folder.write("corpus.jsonl", written);
    try {
      run(folder, text("--training.steps=4"));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      EXPECT_TRUE(contains(error.what(), words)) << error.what();
    }
  };
  expect_refused("\n" + corpus, "corpus.jsonl changed, first between its bytes 0 and 4,096; ");
  expect_refused(corpus, "corpus.jsonl grew from ");
  std::vector<std::string> again = text("--training.steps=4");
  again.push_back("--checkpoint.exclude_from_loading=dataloader");
  run(folder, again);
  EXPECT_EQ(losses(folder).size(), 4u);
}

TEST(Resuming, OneLineNamesEveryOptionThatChangedAndAWarningThoseThatChangeTraining) {
  const auto warning_of = [](const std::string& text) {
    const size_t at = text.find("WARNING - training does not continue as it was: ");
    return at == std::string::npos ? std::string() : text.substr(at, text.find('\n', at) - at);
  };
  const TestFolder folder;
  run(folder, {});
  EXPECT_FALSE(contains(run(folder, {}), "differ from the checkpoint's"));
  const std::string harmless = run(folder, {"--training.steps=9", "--metrics.log_freq=2"});
  EXPECT_TRUE(contains(harmless,
                       "options that differ from the checkpoint's: metrics.log_freq = 2 (was 1), "
                       "training.steps = 9 (was 8)\n"))
      << harmless;
  EXPECT_EQ(warning_of(harmless), "");
  const std::string all = run(folder, {"--training.steps=10", "--training.seq_len=16", "--optimizer.lr=0.5",
                                       "--training.global_batch_size=4", "--lr_scheduler.decay_type=sqrt"});
  EXPECT_EQ(all.find("options that differ from"), all.rfind("options that differ from")) << all;
  const std::string warning = warning_of(all);
  for (const char* change : {"training.seq_len = 16 (was 32)", "optimizer.lr = 0.5 (was ", "(was \"linear\")",
                             "a global batch of 4 sequences (was 2)"}) {
    EXPECT_TRUE(contains(warning, change)) << change << "\n" << all;
  }
  EXPECT_FALSE(contains(warning, "training.steps")) << warning;
}

TEST(Resuming, AChangedNumberOfStepsIsAWarningWhereItIsTheLengthOfTheSchedule) {
  const TestFolder folder;
  JobConfig config = small_job(folder, {"--training.steps=8"});
  const nlohmann::ordered_json facts{{"config", nlohmann::ordered_json::parse(dump_json(Schema(), config))}};
  const auto warnings = [&](const std::vector<std::string>& words) {
    return find_config_changes(facts, 4, small_job(folder, words), {}).warnings;
  };
  EXPECT_EQ(warnings({"--training.steps=9"}),
            std::vector<std::string>{"training does not continue as it was: training.steps = 9 (was 8)"});
  EXPECT_TRUE(warnings({"--training.steps=9", "--lr_scheduler.total_steps=8"}).empty());
  EXPECT_EQ(warnings({"--training.steps=8", "--lr_scheduler.total_steps=7"}).size(), 1u);
  EXPECT_TRUE(find_config_changes({}, 4, config, {}).line.empty()) << "a checkpoint without a config";
}

TEST(Resuming, ChangedRatesOfMuonAreAWarningWhereMuonStepsAndItsOtherOptionsAreListedLikeAdamWs) {
  const TestFolder folder;
  const auto changes = [&](std::vector<std::string> before, const std::string& changed) {
    before.emplace_back("--training.steps=8");
    const nlohmann::ordered_json facts{
        {"config", nlohmann::ordered_json::parse(dump_json(Schema(), small_job(folder, before)))}};
    before.push_back("--optimizer." + changed);
    return find_config_changes(facts, 4, small_job(folder, before), {});
  };
  const std::string muon = "--optimizer.name=Muon", says = "training does not continue as it was: optimizer.";
  for (const auto& [changed, words] :
       {std::pair("muon.lr=0.5", "muon.lr = 0.5 (was 0.02)"),
        std::pair("muon.adjust_lr_fn=match_rms_adamw", "muon.adjust_lr_fn = \"match_rms_adamw\" (was \"original\")")}) {
    EXPECT_EQ(changes({muon}, changed).warnings, std::vector<std::string>{says + words});
    EXPECT_TRUE(changes({}, changed).warnings.empty()) << changed << " has no effect on AdamW";
  }
  for (const char* changed : {"muon.momentum=0.9", "muon.nesterov=false", "muon.ns_coefficients=2,-1.5,0.5",
                              "muon.ns_steps=6", "muon.eps=1e-6", "muon.dtype=float32", "weight_decay=0.2", "beta1=0.8",
                              "beta2=0.9", "eps=1e-6", "state_dtype=bfloat16"}) {
    const ConfigChanges found = changes({muon}, changed);
    EXPECT_TRUE(found.warnings.empty()) << changed << ": " << found.warnings[0];
    const std::string name = std::string("optimizer.") + changed;
    EXPECT_TRUE(contains(found.line, name.substr(0, name.find('=')) + " = ")) << changed << ": " << found.line;
  }
  EXPECT_EQ(changes({}, "name=Muon").warnings.size(), 1u) << "another optimizer";
}

TEST(Resuming, ChangedRatesOfParameterGroupsAreAWarning) {
  const TestFolder folder;
  JobConfig config = small_job(folder, {"--training.steps=8"});
  config.optimizer.param_groups = {{"norm", 1.0, 0.0, GroupUpdate::by_kind}};
  const nlohmann::ordered_json facts{{"config", nlohmann::ordered_json::parse(dump_json(Schema(), config))}};
  const auto warnings = [&](const std::vector<ParamGroup>& groups) {
    config.optimizer.param_groups = groups;
    return find_config_changes(facts, 4, config, {}).warnings.size();
  };
  EXPECT_EQ(warnings({{"norm", 1.0, 0.0, GroupUpdate::by_kind}}), 0u);
  EXPECT_EQ(warnings({{"norm", 1.0, 0.5, GroupUpdate::by_kind}}), 0u) << "a decay is listed";
  EXPECT_EQ(warnings({{"norm", 3.0, 0.0, GroupUpdate::by_kind}}), 1u);
  EXPECT_EQ(warnings({{"norm|wq", 1.0, 0.0, GroupUpdate::by_kind}}), 1u);
  EXPECT_EQ(warnings({}), 1u);
}

TEST(Resuming, StepsThatEndBeforeTheCheckpointAreAWarning) {
  const TestFolder folder;
  run(folder, {});
  for (const char* steps : {"8", "5"}) {
    const std::string text = run(folder, {std::string("--training.steps=") + steps});
    EXPECT_TRUE(contains(text, fmt::format("WARNING - training.steps = {}, and the checkpoint holds step 8: no step is "
                                           "left to train",
                                           steps)))
        << text;
  }
  EXPECT_FALSE(contains(run(folder, {"--training.steps=9"}), "no step is left"));
}

TEST(Resuming, ARunThatWentBackGoesOnFromWhatItSavedItself) {
  const TestFolder folder;
  run(folder, {});
  const std::string back = run(folder, {"--checkpoint.load_step=2", "--optimizer.lr=1e-4", "--training.steps=5"});
  EXPECT_TRUE(contains(back, "later checkpoints (8, 6, 4) were renamed to replaced-N")) << back;
  const std::string rest = run(folder, {"--optimizer.lr=1e-4", "--training.steps=6"});
  EXPECT_TRUE(contains(rest, "LOAD: step 5 ")) << rest;
  EXPECT_TRUE(std::filesystem::exists(folder / "out/checkpoint/replaced-8/manifest.json"));
}

/// What an attempt leaves that found a disagreement in the step after `last_agreeing` + 2.
void record_disagreement_after(const TestFolder& folder, int64_t last_agreeing) {
  const RecordedDisagreement found{.step = last_agreeing + 3,
                                   .last_agreeing_step = last_agreeing,
                                   .ranks = {},
                                   .hosts = {},
                                   .what = "they differ",
                                   .checkpoint_folder = "checkpoint",
                                   .time = 1};
  EXPECT_EQ(record_disagreement(folder / "out", found), "");
}

TEST(Resuming, CheckpointsAfterTheLastAgreeingStepAreLeftOnceAndForEver) {
  const TestFolder folder, whole;
  run(folder, {"--training.steps=6"});
  run(whole, {});
  record_disagreement_after(folder, 3);
  EXPECT_TRUE(contains(run(folder, {"--checkpoint.load_only", "--training.steps=3"}), "LOAD: step 2 "));
  EXPECT_TRUE(std::filesystem::exists(folder / "out/checkpoint/step-6")) << "a run that only loads changes nothing";
  // Ends before it saves anything; what it left behind is left all the same.
  const std::string text = run(folder, {"--training.steps=2"});
  EXPECT_TRUE(contains(text, "LOAD: step 2 from ")) << text;
  EXPECT_TRUE(contains(text,
                       "; steps 4 and 6 are passed over: saved after step 3, the last on which the ranks agreed "
                       "(disagreement.json)"))
      << text;
  EXPECT_TRUE(contains(text, "the run resumed from step 2: later checkpoints (6, 4) were renamed to replaced-N"))
      << text;
  EXPECT_TRUE(std::filesystem::exists(folder / "out/checkpoint/replaced-6/manifest.json"));
  EXPECT_TRUE(std::filesystem::exists(folder / "out/disagreement-1.json"));
  const std::string next = run(folder, {"--training.steps=4"});
  EXPECT_TRUE(contains(next, "LOAD: step 2 from ") && !contains(next, "passed over")) << next;
  EXPECT_TRUE(contains(run(folder, {}), "LOAD: step 4 from ")) << "the old disagreement says nothing about it";
  EXPECT_TRUE(saved(folder, 8) == saved(whole, 8));
}

TEST(Resuming, AStepThatIsAskedForIsLoadedThoughRanksDisagreedAfterIt) {
  const TestFolder folder;
  run(folder, {"--training.steps=6"});
  record_disagreement_after(folder, 3);
  EXPECT_TRUE(contains(run(folder, {"--checkpoint.load_step=4", "--training.steps=5"}), "LOAD: step 4 "));
  EXPECT_TRUE(contains(run(folder, {"--training.steps=6"}), "LOAD: step 5 ")) << "the disagreement is settled";
}

TEST(Resuming, WithoutAnyCheckpointThatCanBeTrustedARunStartsFresh) {
  const TestFolder folder;
  run(folder, {"--training.steps=4"});
  record_disagreement_after(folder, 1);
  EXPECT_THROW(run(folder, {"--checkpoint.require_resume"}), Error);
  const std::string text = run(folder, {"--training.steps=2"});
  EXPECT_TRUE(contains(text, "holds no other checkpoint; starting fresh; steps 2 and 4 are passed over: ")) << text;
  EXPECT_TRUE(contains(run(folder, {"--training.steps=4"}), "LOAD: step 2 "));
}

TEST(Resuming, ModelsOfFinishedRunsDoNotDriveOutTheCheckpointThatALongerOneGoesOnFrom) {
  const TestFolder folder;
  const auto end_at = [&](const std::string& step) {
    return run(folder, {"--training.steps=" + step, "--checkpoint.last_save_model_only=true",
                        "--checkpoint.interval=100", "--checkpoint.keep_latest_k=2"});
  };
  run(folder, {"--training.steps=3", "--checkpoint.keep_latest_k=2"});
  for (const char* step : {"4", "5", "6"}) {
    const std::string text = end_at(step);
    EXPECT_TRUE(contains(text, "LOAD: step 3 ")) << text;
  }
}

TEST(Resuming, LoadOnlyNeverSaves) {
  const TestFolder folder;
  run(folder, {"--training.steps=2"});
  run(folder, {"--checkpoint.load_only", "--training.steps=4"});
  EXPECT_FALSE(std::filesystem::exists(folder / "out/checkpoint/step-4"));
}

TEST(Resuming, OldCheckpointsGoAndTheFirstStepIsSavedWhenAsked) {
  const TestFolder folder;
  run(folder,
      {"--checkpoint.keep_latest_k=2", "--checkpoint.keep_every=4", "--checkpoint.enable_first_step_checkpoint"});
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "out/checkpoint")) {
    names.insert(entry.path().filename());
  }
  EXPECT_EQ(names, (std::set<std::string>{"step-4", "step-6", "step-8"}));
}

TEST(Resuming, ASeedCheckpointGivesItsWeightsToARunOfAnotherSeed) {
  const TestFolder folder, other;
  run(folder, {"--checkpoint.create_seed_checkpoint"});
  EXPECT_TRUE(metrics_of(folder).empty());
  run(folder, {"--debug.seed=5"});
  run(other, {});
  EXPECT_EQ(losses(folder), losses(other));
}

TEST(Resuming, AnInitialCheckpointGivesTheModelAloneAndOnlyToARunWithoutItsOwn) {
  const TestFolder first, second;
  run(first, {"--training.steps=2"});
  const std::string path = first / "out/checkpoint/step-2";
  const std::string text = run(second, {"--checkpoint.initial_load_path=" + path, "--training.steps=4"});
  EXPECT_TRUE(contains(text, "LOAD: " + path)) << text;
  EXPECT_EQ(column<int64_t>(metrics_of(second), "step").front(), 1);
  EXPECT_LT(losses(second)[0], losses(first)[0]);
  EXPECT_TRUE(
      contains(run(second, {"--checkpoint.initial_load_path=" + path}), "has no effect: the run has checkpoints"));
}

TEST(Resuming, ACheckpointThatRemembersNothingOfItsModelIsTakenAsItAlwaysWas) {
  const TestFolder folder;
  run(folder, {"--training.steps=2"});
  const std::string scaled = "--model.rope_scaling=llama3_1";
  EXPECT_THROW(run(folder, {"--training.steps=3", scaled}), Error);
  const std::string file = folder / "out/checkpoint/step-2/manifest.json";
  for (const nlohmann::ordered_json& facts :
       {nlohmann::ordered_json(nullptr), nlohmann::ordered_json{{"model", "llama3 debugmodel"}},
        nlohmann::ordered_json{{"model", {{"a later fact", "1"}, {"n_heads", 4}}}}}) {
    Manifest manifest = read_manifest(read_file(file));
    manifest.facts = facts;
    write_file_atomically(file, write_manifest(manifest));
    EXPECT_TRUE(contains(run(folder, {"--training.steps=3", "--checkpoint.load_only", scaled}), "LOAD: step 2 "));
  }
}

TEST(Resuming, WeightsThatAreLeftOutMayBeOfAnyModel) {
  const TestFolder folder;
  run(folder, {"--training.steps=2"});
  EXPECT_TRUE(contains(
      run(folder, {"--training.steps=3", "--model.rope_scaling=llama3_1", "--checkpoint.exclude_from_loading=model"}),
      "LOAD: step 2 "));
}

TEST(Resuming, TheLastCheckpointMayHoldTheModelAloneInAnotherDtype) {
  const TestFolder folder;
  run(folder, {"--checkpoint.last_save_model_only=true", "--checkpoint.export_dtype=bfloat16"});
  const auto storage = make_posix_storage();
  const OpenCheckpoint checkpoint(*storage, folder / "out/checkpoint/step-8", true);
  EXPECT_TRUE(checkpoint.index().values.empty());
  for (const auto& [name, stored] : checkpoint.index().tensors) EXPECT_EQ(stored.tensor.type, at::kBFloat16) << name;
  EXPECT_TRUE(checkpoint.index().tensors.contains("tok_embeddings.weight"));
}

TEST(Resuming, TheCommandRunsAfterEachCommitAndItsFailureIsAWarning) {
  const TestFolder folder;
  const std::string note = folder / "note";
  run(folder, {"--checkpoint.on_commit=echo {dir} >> " + note});
  EXPECT_EQ(split(trim(read_file(note)), '\n').size(), 4u);
  EXPECT_TRUE(contains(run(folder, {"--training.steps=10", "--checkpoint.on_commit=exit 3"}),
                       "on_commit ended with exit code 3"));
}

TEST(Resuming, AFileInThePlaceOfTheFolderIsAnErrorAtTheStart) {
  const TestFolder folder;
  std::filesystem::create_directories(folder / "out");
  std::ofstream(folder / "out/checkpoint") << "a file";
  try {
    run(folder, {"--training.steps=2"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    EXPECT_TRUE(contains(error.what(), "cannot list " + folder / "out/checkpoint" + ": Not a directory"))
        << error.what();
  }
}

/// Makes a checkpoint one of a version that did not know the counters.
void forget_counters(const std::string& checkpoint) {
  const std::unique_ptr<Storage> storage = make_posix_storage();
  const std::filesystem::path folder(checkpoint);
  std::string index = storage->read_all(folder / kIndexFile);
  for (size_t at = index.find("titan_counters"); at != index.npos; at = index.find("titan_counters")) index[at] = 'x';
  Manifest manifest = read_manifest(storage->read_all(folder / kManifestFile));
  manifest.files[kIndexFile] = record_of(index);
  write_file_atomically(folder / kIndexFile, index);
  write_file_atomically(folder / kManifestFile, write_manifest(manifest));
}

TEST(ResumeOfAnEarlierVersion, TakesTheStepCountAsItIsAndWarnsIfTheRunSkippedSteps) {
  const TestFolder folder;
  run(folder, {"--training.steps=4"});
  forget_counters(folder / "out/checkpoint/step-4");
  EXPECT_FALSE(contains(run(folder, {"--training.steps=6"}), "counted skipped steps"));
  forget_counters(folder / "out/checkpoint/step-6");
  std::string metrics = read_file(folder / "out/metrics.jsonl");
  constexpr std::string_view kNone = "\"skipped_steps\":0", kTwo = "\"skipped_steps\":2";
  ASSERT_NE(metrics.find(kNone), metrics.npos) << metrics;
  for (size_t at = 0; (at = metrics.find(kNone, at)) != metrics.npos; ++at) metrics.replace(at, kNone.size(), kTwo);
  std::ofstream(folder / "out/metrics.jsonl") << metrics;
  const std::string shown = run(folder, {"--training.steps=8"});
  EXPECT_TRUE(contains(shown, "counted skipped steps too (2 of them")) << shown;
  EXPECT_FALSE(contains(run(folder, {"--training.steps=8"}), "counted skipped steps")) << "saved by this version";
}

}  // namespace
}  // namespace titan
