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

TEST(StateDict, EveryTensorIsFoundUnderItsNameInPieces) {
  const std::vector<LogicalTensor> tensors{
      {"a", at::kFloat, {6, 5}}, {"b.c", at::kBFloat16, {3}}, {"d", at::kLong, {}}};
  std::vector<at::Tensor> values;
  for (const LogicalTensor& tensor : tensors) values.push_back(normal(tensor.shape, 1, at::kFloat, 50).to(tensor.type));
  MemoryStorage storage;
  HashingWriter out(storage, "file");
  write_state_dict(out, tensors, [&](size_t index, const std::function<void(const at::Tensor&)>& write) {
    if (values[index].dim() < 2) return write(values[index]);
    for (int64_t row = 0; row < 6; row += 2) write(values[index].narrow(0, row, 2));
  });
  CheckedReader file(storage, "file", out.finish());
  const std::map<std::string, StoredElements> found = read_state_dict(file);
  ASSERT_EQ(found.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StoredElements& stored = found.at(tensors[i].name);
    EXPECT_EQ(stored.type, tensors[i].type);
    EXPECT_EQ(stored.shape, tensors[i].shape);
    const std::string bytes = file.read(stored.first_byte, static_cast<int64_t>(values[i].nbytes()));
    EXPECT_EQ(std::memcmp(bytes.data(), values[i].const_data_ptr(), bytes.size()), 0) << tensors[i].name;
  }
}

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
