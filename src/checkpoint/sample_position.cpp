// Where torchtitan's data loader was, out of what it pickled.
#include "titan/checkpoint/training_state.h"

namespace titan {
namespace {

/// The dictionaries in `value`, at any depth, that have a token buffer.
void find_buffers(const PickleValue& value, std::vector<const PickleValue*>& found) {
  if (value.is(PickleValue::Kind::dictionary) && value.find("token_buffer")) {
    found.push_back(&value);
    return;
  }
  for (const PickleRef& item : value.items) find_buffers(*item, found);
}

}  // namespace

SamplePosition read_sample_position(const PickleValue& state) {
  std::vector<const PickleValue*> found;
  find_buffers(state, found);
  if (found.empty())
    throw PickleError("another program's samples are counted in it, and no token buffer of torchtitan's is there");
  if (found.size() > 1)
    throw PickleError(fmt::format("{} worker processes read the data, each its own part", found.size()));
  const PickleValue* samples = found[0]->find("sample_idx");
  if (!samples || !samples->is(PickleValue::Kind::integer) || samples->integer < 0) {
    throw PickleError(found[0]->find("data") ? "it is the place of a stream of the datasets package"
                                             : "it does not say how many documents were read");
  }
  SamplePosition position;
  position.samples = samples->integer;
  const PickleValue* buffer = found[0]->find("token_buffer");
  if (!buffer->is(PickleValue::Kind::list)) throw PickleError("its token buffer is no list");
  for (const PickleRef& token : buffer->items) {
    const bool fits =
        token->is(PickleValue::Kind::integer) && token->integer >= 0 && token->integer < (int64_t{1} << 31);
    if (!fits) throw PickleError("its token buffer holds something that is no token");
    position.left_tokens.push_back(static_cast<int32_t>(token->integer));
  }
  return position;
}

}  // namespace titan
