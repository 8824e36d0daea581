#include "titan/schedule/rules.h"

#include <algorithm>
#include <utility>

namespace titan {
namespace {

using enum ActionKind;
using enum Does;

using RuleRows = std::vector<std::pair<ActionKind, Rule>>;

/// What a unit needs of its weights, in these cases.
std::vector<Effect> reads_weights(When when, std::vector<Effect> more) {
  std::vector<Effect> all{{needs, Thing::copies, "its weights are stale", when},
                          {needs, Thing::scales, "its weights have no float8 scales", when},
                          {needs, Thing::weights, "its weights are not unsharded", when}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// Effects that end with a collective that is waited for at once.
std::vector<Effect> with_call(std::vector<Effect> effects) {
  effects.push_back({posts, Thing::call, "another call is under way"});
  effects.push_back({waits, Thing::call, "it was not made"});
  return effects;
}

constexpr const char* kNoInput = "its input is missing";
constexpr const char* kReceived = "it has already been received";
constexpr const char* kMoved = "its activations have already been moved, or not yet";
constexpr const char* kNotThere = "its activations are not there";
constexpr const char* kRun = "it has already run";
constexpr const char* kNotOpen = "its gradient is not open";
constexpr const char* kDone = "it has already been done";
constexpr const char* kUnderWay = "it is already under way";
constexpr const char* kOtherGradient = "the slot holds another group's gradients";

constexpr Effect kNextOfGradient{advances, Thing::order};

RuleRows rules_of_units() {
  return {
      {forward,
       {Work::forward,
        reads_weights(When::always, {{needs, Thing::adding, kNotOpen, When::gradients_in_forward},
                                     {lacks, Thing::loss, "the loss has already been summed"},
                                     {releases, Thing::input, kNoInput}}),
        {{acquires, Thing::saved, kRun}, {acquires, Thing::output, kRun}}}},
      {evaluate,
       {Work::none,
        reads_weights(When::always, {{releases, Thing::input, kNoInput}}),
        {{acquires, Thing::output, kRun}, {acquires, Thing::finished, kRun}}}},
      {backward,
       {Work::backward,
        reads_weights(When::weights_in_backward, {{needs, Thing::saved, kNotThere},
                                                  {lacks, Thing::away, kNotThere},
                                                  {needs, Thing::adding, kNotOpen},
                                                  {releases, Thing::output_gradient, kNoInput}}),
        {{releases, Thing::saved, kNotThere},
         {acquires, Thing::deferred, kRun, When::split_unit},
         {acquires, Thing::input_gradient, kRun},
         {acquires, Thing::finished, kRun}}}},
      {input_gradient,
       {Work::backward,
        {{needs, Thing::weights}, {needs, Thing::saved}, {releases, Thing::output_gradient}},
        {{acquires, Thing::deferred}, {acquires, Thing::input_gradient}}}},
      {weight_gradient,
       {Work::weight_gradients,
        {{needs, Thing::weights}, {releases, Thing::deferred, "no backward has deferred its weight gradients"}},
        {{drops, Thing::saved}}}},
      {offload,
       {Work::none,
        {{needs, Thing::saved, "its forward has not run"}, {waits, Thing::offload}},
        {{acquires, Thing::away, kMoved}, {posts, Thing::offload, kUnderWay}}}},
      {fetch, {Work::none, {{needs, Thing::away, kMoved}, {waits, Thing::offload}}, {{posts, Thing::fetch, kMoved}}}},
      {wait_fetch, {Work::none, {{waits, Thing::fetch, kMoved}}, {{releases, Thing::away, kMoved}}}}};
}

RuleRows rules_of_messages() {
  RuleRows rows{{wait_sends, {Work::none, {{waits, Thing::send}}}}};
  struct Direction {
    ActionKind send, receive, wait, handoff;
    Thing made, taken;
  };
  for (const Direction& way :
       {Direction{send_forward, receive_forward, wait_forward, handoff_forward, Thing::output, Thing::input},
        {send_backward, receive_backward, wait_backward, handoff_backward, Thing::input_gradient,
         Thing::output_gradient}}) {
    const auto add = [&](ActionKind kind, Effect before, Effect after) {
      rows.push_back({kind, {Work::none, {before}, {after}}});
    };
    add(way.send, {releases, way.made, kNoInput}, {posts, Thing::send, kUnderWay});
    add(way.receive, {lacks, way.taken, kReceived}, {posts, Thing::receive, kReceived});
    add(way.wait, {waits, Thing::receive, "no RECEIVE comes before it"}, {acquires, way.taken, kReceived});
    add(way.handoff, {releases, way.made, kNoInput}, {acquires, way.taken, kReceived});
  }
  return rows;
}

RuleRows rules_of_weights() {
  return {{refresh,
           {Work::copies, with_call({{acquires, Thing::copies, "its weights have not changed since the last REFRESH"},
                                     {ensures, Thing::scales, nullptr, When::finds_scales}})}},
          {unshard,
           {Work::none,
            {{ensures, Thing::copies, nullptr, When::gathers_masters},
             {needs, Thing::copies, "its compute copies are stale"},
             {lacks, Thing::weights, "the slot is in use", When::occupant},
             {lacks, Thing::gather, "slot is overwritten before its gather was waited for", When::occupant},
             {replaces, Thing::slot, "the slot already holds the group"}},
            {{posts, Thing::gather, kUnderWay}}}},
          {wait_unshard,
           {Work::none,
            {{needs, Thing::slot, "the slot holds another group"}, {waits, Thing::gather}},
            {{acquires, Thing::weights, "its weights are already unsharded"}}}},
          {scale,
           {Work::none, with_call({{needs, Thing::weights, "its weights are not unsharded", When::one_group},
                                   {acquires, Thing::scales, "its weights already have their scales", When::one_group},
                                   {lacks, Thing::copies, "no optimizer step before it", When::all_groups},
                                   {ensures, Thing::scales, nullptr, When::all_groups}})}},
          {reshard, {Work::none, {{releases, Thing::weights, "its weights are not unsharded"}}}}};
}

RuleRows rules_of_gradients() {
  return {{reduce_grad, {Work::none, {{lacks, Thing::saved}}, {{posts, Thing::scatter}}}},
          {open_gradient,
           {Work::none,
            {kNextOfGradient},
            {{acquires, Thing::own_slot, kOtherGradient},
             {acquires, Thing::gradient, kDone},
             {acquires, Thing::adding, kDone}}}},
          {close_gradient,
           {Work::narrowing,
            {kNextOfGradient,
             {lacks, Thing::saved, "a later backward adds to it"},
             {lacks, Thing::deferred, "deferred weight gradients are missing"}},
            {{releases, Thing::adding, kNotOpen}}}},
          {reduce_scatter,
           {Work::none,
            {kNextOfGradient},
            {{acquires, Thing::narrow_slot, kOtherGradient}, {posts, Thing::scatter, kUnderWay}}}},
          {all_reduce,
           {Work::none,
            {kNextOfGradient},
            {{ensures, Thing::narrow_slot, kOtherGradient}, {posts, Thing::replica_sum, kUnderWay}}}},
          {wait_reduce,
           {Work::none,
            {kNextOfGradient,
             {releases, Thing::narrow_slot, kOtherGradient, When::last_sum},
             {releases, Thing::own_slot, kOtherGradient, When::slot_is_read},
             {waits, Thing::scatter},
             {waits, Thing::replica_sum}}}},
          {reduce_partial, {Work::none, with_call({kNextOfGradient})}},
          {add_tied, {Work::none, with_call({kNextOfGradient})}},
          {to_host,
           {Work::none,
            {kNextOfGradient},
            {{releases, Thing::own_slot, kOtherGradient}, {posts, Thing::host_copy, kUnderWay}}}},
          {wait_host, {Work::none, {kNextOfGradient, {waits, Thing::host_copy, "no TO_HOST comes before it"}}}}};
}

RuleRows rules_of_step() {
  constexpr Effect all_stepped{lacks, Thing::gradient, "a group has not been stepped", When::whole_step};
  return {
      {loss_sum, {Work::none, with_call({{acquires, Thing::loss, "the loss has already been summed"}})}},
      {squares, {Work::squares, {kNextOfGradient}}},
      {norm, {Work::none, with_call({kNextOfGradient})}},
      {control,
       {Work::none,
        {{needs, Thing::loss, "no LOSS_SUM comes before it"},
         kNextOfGradient,
         all_stepped,
         {acquires, Thing::control, kDone, When::whole_step}}}},
      {before_change, {Work::none, {kNextOfGradient, {acquires, Thing::changes, kDone, When::whole_step}}}},
      {collect, {Work::none, {kNextOfGradient}, {{posts, Thing::collected, kUnderWay}}}},
      {transform,
       {Work::matrices,
        {kNextOfGradient, {waits, Thing::collected, "no COLLECT comes before it"}},
        {{posts, Thing::transformed, kUnderWay}}}},
      {wait_transform, {Work::none, {kNextOfGradient, {waits, Thing::transformed, "no TRANSFORM comes before it"}}}},
      {step,
       {Work::optimizer,
        {kNextOfGradient,
         {needs, Thing::changes, "no BEFORE_CHANGE comes before it", When::steps_in_backward},
         {lacks, Thing::weights, "a unit uses its weights"}},
        {{drops, Thing::copies}, {drops, Thing::scales}, {drops, Thing::slot}}}},
      {zero_gradient,
       {Work::none,
        {kNextOfGradient, all_stepped, {needs, Thing::control, "no CONTROL comes before it", When::whole_step}},
        {{drops, Thing::gradient},
         {drops, Thing::loss, nullptr, When::all_groups},
         {drops, Thing::changes, nullptr, When::whole_step},
         {drops, Thing::control, nullptr, When::whole_step}}}}};
}

}  // namespace

const RuleTable& action_rules() {
  static const RuleTable rules = [] {
    RuleTable made;
    for (const RuleRows& rows :
         {rules_of_units(), rules_of_messages(), rules_of_weights(), rules_of_gradients(), rules_of_step()}) {
      for (const auto& [kind, rule] : rows) made[static_cast<size_t>(kind)] = rule;
    }
    return made;
  }();
  return rules;
}

bool has_effect(const RuleTable& rules, ActionKind kind, Does does, Thing thing) {
  const auto matches = [&](const Effect& effect) {
    return effect.does == does && effect.thing == thing && effect.when != When::split_unit;
  };
  const Rule& rule = rule_of(rules, kind);
  return std::any_of(rule.before.begin(), rule.before.end(), matches) ||
         std::any_of(rule.after.begin(), rule.after.end(), matches);
}

std::vector<ActionKind> gradient_order(const GradientPath& path) {
  std::vector<ActionKind> kinds{open_gradient, close_gradient};
  if (path.sharded) kinds.insert(kinds.end(), {reduce_scatter, wait_reduce});
  if (path.replicated) kinds.insert(kinds.end(), {all_reduce, wait_reduce});
  if (path.partial) kinds.push_back(reduce_partial);
  if (path.tied) kinds.push_back(add_tied);
  kinds.push_back(squares);
  if (path.on_host && !path.in_backward) kinds.push_back(to_host);
  kinds.insert(kinds.end(), {norm, control});
  if (path.on_host && path.in_backward) kinds.push_back(to_host);
  if (!path.in_backward) kinds.push_back(before_change);
  if (path.on_host) kinds.push_back(wait_host);
  if (path.matrices) kinds.insert(kinds.end(), {collect, transform, wait_transform});
  kinds.insert(kinds.end(), {step, zero_gradient});
  return kinds;
}

int most_held(std::span<const Action> actions, Thing thing, const RuleTable& rules) {
  int held = 0, most = 0;
  for (const Action& action : actions) {
    for (const Action& leaf : leaves(action)) held += has_effect(rules, leaf.kind, Does::acquires, thing);
    most = std::max(most, held);
    for (const Action& leaf : leaves(action)) {
      held -= has_effect(rules, leaf.kind, Does::releases, thing) || has_effect(rules, leaf.kind, Does::drops, thing);
    }
  }
  return most;
}

}  // namespace titan
