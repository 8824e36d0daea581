// Files of torch.save with many tensors; that Python reads and writes the same is shown by
// tests/reference/hugging_face_test.py.
#include "titan/checkpoint/tensor_source.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/memory_storage.h"
#include "src/checkpoint/zip.h"
#include "support/tensors.h"

namespace titan {
namespace {

TEST(StateDict, AFileOfOneValueIsNoDictionary) {
  MemoryStorage storage;
  HashingWriter out(storage, "file");
  write_tensor_blob(out, at::ones({2}));
  CheckedReader file(storage, "file", out.finish());
  EXPECT_THROW(read_state_dict(file), DamageError);
}

TEST(Zip, EntriesBeyondFourGigabytesAreFound) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("titan-zip-" + std::to_string(::getpid()));
  constexpr int64_t kHole = int64_t{5} << 30;  // never written: the file is sparse
  ZipWriter zip;
  const std::string first = zip.begin_entry("large", kHole);
  std::string rest = zip.end_entry(0);
  rest += zip.entry("after", "found");
  rest += zip.finish();
  const int descriptor = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
  ASSERT_GE(descriptor, 0);
  const auto begin = static_cast<int64_t>(first.size());
  EXPECT_EQ(::pwrite(descriptor, first.data(), first.size(), 0), begin);
  EXPECT_EQ(::pwrite(descriptor, rest.data(), rest.size(), begin + kHole), static_cast<ssize_t>(rest.size()));
  ::close(descriptor);
  {
    const std::unique_ptr<Storage> storage = make_posix_storage();
    CheckedReader file(*storage, path, std::nullopt);
    const std::vector<ZipEntry> entries = read_zip(file, 0, file.size());
    ASSERT_EQ(entries.size(), 2u);
    EXPECT_EQ(entries[0].bytes, kHole);
    EXPECT_EQ(file.read(entries[1].offset, entries[1].bytes), "found");
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace titan
