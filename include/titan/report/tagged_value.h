// A number under the name that plotting programs show it by.
#pragma once

#include <string>

namespace titan {

struct TaggedValue {
  std::string tag;
  double value = 0;
};

}  // namespace titan
