#include "titan/checkpoint/checkpointer.h"

#include <random>

namespace titan {

Checkpointer::Checkpointer(std::unique_ptr<Storage> storage, std::unique_ptr<RankMeeting> meeting,
                           CheckpointerOptions options, std::function<void(const SaveReport&)> report)
    : storage_(std::move(storage)),
      meeting_(std::move(meeting)),
      options_(std::move(options)),
      report_(std::move(report)) {
  run_ = meeting_->exchange(fmt::format("{:08x}", std::random_device()())).front();
  saver_ = std::make_unique<Saver>(*storage_, *meeting_, SaverOptions{options_.root, run_, options_.mode},
                                   [this](const SaveOutcome& outcome) { after_save(outcome); });
}

void Checkpointer::after_save(const SaveOutcome& outcome) {
  SaveReport report{outcome, {}};
  if (outcome.committed && meeting_->rank() == 0) {
    report.warnings = delete_old(*storage_, options_.root, options_.retention);
  }
  report_(report);
}

LoadOutcome Checkpointer::load(std::optional<int64_t> step, const LoadAttempt& attempt) {
  std::vector<std::string> warnings;
  if (meeting_->rank() == 0) warnings = clean_leftovers(*storage_, options_.root);
  LoadOutcome outcome = load_together(*storage_, *meeting_, options_.root, step, attempt);
  outcome.warnings.insert(outcome.warnings.begin(), warnings.begin(), warnings.end());
  return outcome;
}

}  // namespace titan
