// A mapped file that is cut off while it is read.
#include "src/corpus/mapped_file.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "support/files.h"

namespace titan {
namespace {

constexpr size_t kBytes = size_t{1} << 20;

/// Reads a mapped file's last byte after the file was cut off.
void read_behind_the_end(const std::string& path) {
  const MappedFile mapped(path);
  std::filesystem::resize_file(path, 0);
  volatile char last = mapped.bytes()[kBytes - 1];
  static_cast<void>(last);
}

TEST(MappedFile, ThatIsCutOffWhileItIsReadEndsTheProcessWithASentence) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("a.bin", std::string(kBytes, 'x'));
  { const MappedFile earlier(folder.write("b.bin", std::string(kBytes, 'y'))); }
  EXPECT_EXIT(read_behind_the_end(path), testing::ExitedWithCode(65),
              "^titan_train: token file .*/a.bin: the file shrank while it was read: it had 1,048,576 bytes. Leave the "
              "corpus alone while a run reads it; put the file back and start again.\n$");
}

/// The same for memory that is mapped by something else.
void read_elsewhere(const std::string& corpus, const std::string& other) {
  const MappedFile mapped(corpus);
  FILE* file = std::fopen(other.c_str(), "rb");
  if (!file) std::_Exit(0);  // which the test refuses
  const auto* bytes =
      static_cast<const volatile char*>(::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, ::fileno(file), 0));
  if (bytes == MAP_FAILED) std::_Exit(0);
  std::filesystem::resize_file(other, 0);
  volatile char last = bytes[kBytes - 1];
  static_cast<void>(last);
}

TEST(MappedFile, OfAnotherOwnerThatIsCutOffIsNotTakenForACorpus) {
  const test::TemporaryFolder folder;
  const std::string corpus = folder.write("a.bin", std::string(kBytes, 'x'));
  const std::string other = folder.write("b.bin", std::string(kBytes, 'y'));
  const auto ends_as_before = [](int status) {  // by a signal, or by a sanitizer's report of it
    return !testing::ExitedWithCode(0)(status) && !testing::ExitedWithCode(65)(status);
  };
  EXPECT_EXIT(read_elsewhere(corpus, other), ends_as_before, "");
}

}  // namespace
}  // namespace titan
