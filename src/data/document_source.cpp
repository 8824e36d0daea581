#include "titan/data/document_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/data/stories.h"
#include "titan/data/text_files.h"
#include "titan/data/utf8.h"

namespace titan {

std::vector<std::string> DocumentSource::take_notices() { return std::exchange(notices_, {}); }

void DocumentSource::repair(std::string& text) { counters_.invalid_utf8 += repair_utf8(text); }

std::vector<std::string> dataset_names() { return {"c4", "c4_test", "c4_validation", "stories", "text"}; }

std::unique_ptr<DocumentSource> open_dataset(const DatasetOptions& options) {
  std::string name = to_lower(options.dataset);
  auto names = dataset_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    auto close = nearest(name, names, 1);
    throw Error(ExitCode::bad_data,
                fmt::format("Dataset {} is not supported. Supported datasets are: [{}].{}", options.dataset,
                            join(names, ", "), close.empty() ? "" : fmt::format(" Did you mean {}?", close[0])));
  }
  if (name == "stories") return std::make_unique<StorySource>(options.seed, options.validation);
  if (!options.path.empty()) {
    return std::make_unique<TextFileSource>(options.path, options.text_field, options.bad_record);
  }
  throw Error(
      ExitCode::bad_data,
      fmt::format(
          "dataset {} needs dataset_path: nothing is downloaded here. Set it to a .txt or .jsonl file, a folder "
          "of them or a glob{}.",
          name, name == "text" ? "" : fmt::format(" that holds your copy of {}", name)));
}

}  // namespace titan
