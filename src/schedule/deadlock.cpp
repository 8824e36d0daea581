#include "deadlock.h"

#include <fmt/format.h>

#include <set>

#include "messages.h"

namespace titan::detail {
namespace {

/// Every rank does its actions in order, and each waits for what it needs: a compute action for the message it takes
/// (in a table without transfers, straight from the action that makes it), a transfer or batch for the other sides.
class Walk {
 public:
  Walk(const ScheduleTable& table, const TableFacts& facts)
      : table_(table), facts_(facts), next_(table.size()), posted_until_(table.size(), 0) {}

  std::vector<std::string> run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t rank = 0; rank < table_.size(); ++rank) {
        while (advance(rank)) moved = true;
      }
    }
    std::vector<std::string> stuck;
    for (size_t rank = 0; rank < table_.size(); ++rank) {
      if (next_[rank] == table_[rank].size()) continue;
      const Action& action = table_[rank][next_[rank]];
      stuck.push_back(fmt::format("deadlock: rank {}, action {} ({}) waits for ever for {}", rank, next_[rank] + 1,
                                  to_string(action), missing(action)));
    }
    return stuck;
  }

 private:
  bool advance(size_t rank) {
    if (next_[rank] == table_[rank].size()) return false;
    const Action& action = table_[rank][next_[rank]];
    bool moved = false;
    if (posted_until_[rank] == next_[rank]) {  // a transfer is posted before it waits
      posted_until_[rank] = next_[rank] + 1;
      for (const Action& leaf : leaves(action)) {
        if (is_transfer(leaf.kind)) moved = posted_.insert({is_send(leaf.kind), carried_by(leaf)}).second || moved;
      }
    }
    if (!missing(action).empty()) return moved;
    for (const Action& leaf : leaves(action)) {
      if (const std::optional<Message> made = made_by(leaf, facts_.stages)) made_.insert(*made);
    }
    ++next_[rank];
    return true;
  }

  /// What the action waits for, in words; empty when it need not wait.
  std::string missing(const Action& action) const {
    for (const Action& leaf : leaves(action)) {
      if (is_transfer(leaf.kind)) {
        const Message message = carried_by(leaf);
        if (posted_.count({!is_send(leaf.kind), message}) > 0) continue;
        return to_string(is_send(leaf.kind) ? receive_of(message) : send_of(message));
      }
      const std::optional<Message> needed = needed_by(leaf, facts_.stages);
      // With transfers, a message from another rank is there: its receive stands before this action.
      if (!needed || made_.count(*needed) > 0) continue;
      return fmt::format("{} stage {} makes for microbatch {}", needed->backward ? "the gradient that" : "what",
                         needed->stage, needed->microbatch);
    }
    return {};
  }

  const ScheduleTable& table_;
  const TableFacts& facts_;
  std::vector<size_t> next_;
  std::vector<size_t> posted_until_;
  std::set<std::pair<bool, Message>> posted_;  // (is a send, what it carries)
  std::set<Message> made_;
};

}  // namespace

std::vector<std::string> deadlocks(const ScheduleTable& table, const TableFacts& facts) {
  return Walk(table, facts).run();
}

}  // namespace titan::detail
