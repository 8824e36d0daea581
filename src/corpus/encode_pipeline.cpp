#include "encode_pipeline.h"

#include <exception>
#include <future>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "titan/base/bounded_queue.h"
#include "titan/base/process.h"

namespace titan {
namespace {

/// Of text, per work item: large enough that a queue and a wake-up are little beside the encoding, small enough that
/// the threads end together.
constexpr size_t kPieceBytes = size_t{1} << 20;
/// Bytes that may be read and not yet taken: pieces for every thread to work on and to wait, and more beside one that
/// takes long, since pieces are taken in order.
size_t most_under_way(int64_t threads) { return (16 + 4 * static_cast<size_t>(threads)) * kPieceBytes; }

/// A piece of the corpus goes through two queues: to whichever thread is free to encode it, and as a future, in order,
/// to the caller.
class Pipeline {
 public:
  Pipeline(FileSource& source, const Tokenizer* tokenizer, int64_t threads)
      : source_(source), tokenizer_(tokenizer), in_order_(most_under_way(threads)) {
    threads_.emplace_back([this] { read(); });
    for (int64_t i = 0; i < threads; ++i) threads_.emplace_back([this] { encode_pieces(); });
  }

  ~Pipeline() {
    in_order_.stop();
    to_encode_.stop();
    for (std::thread& thread : threads_) thread.join();
  }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// The next piece in order; nothing at the end.
  std::optional<EncodedDocuments> take() {
    std::optional<std::future<EncodedDocuments>> piece = in_order_.take();
    if (!piece) return std::nullopt;
    return piece->get();
  }

 private:
  using Encoding = std::packaged_task<EncodedDocuments()>;

  void read() {
    std::exception_ptr thrown;
    try {
      while (in_order_.wait_for_room() && read_piece()) continue;
    } catch (...) {
      thrown = std::current_exception();
    }
    to_encode_.end();
    in_order_.end(thrown);
  }

  bool read_piece() {
    std::vector<RawDocument> raws;
    size_t bytes = 0;
    RawDocument raw;
    bool more = true;
    std::exception_ptr thrown;
    try {
      while (bytes < kPieceBytes && (more = source_.next_raw(raw))) {
        bytes += raw.bytes.size() + sizeof raw;
        raws.push_back(std::move(raw));
      }
    } catch (...) {  // documents read before the exception still count
      thrown = std::current_exception();
    }
    if (!raws.empty()) {
      Encoding encoding([this, raws = std::move(raws), after = source_.position()]() mutable {
        return encode(std::exchange(raws, {}), after);
      });
      in_order_.push(encoding.get_future(), bytes);
      to_encode_.push(std::move(encoding));
    }
    if (thrown) std::rethrow_exception(thrown);
    return more;
  }

  void encode_pieces() {
    while (std::optional<Encoding> encoding = to_encode_.take()) (*encoding)();
  }

  EncodedDocuments encode(std::vector<RawDocument> raws, const SourcePosition& after) const {
    EncodedDocuments result;
    result.after = after;
    for (RawDocument& raw : raws) {
      EncodedDocuments::Document document;
      document.start = raw.start;
      document.first_token = std::ssize(result.ids);
      if (tokenizer_ && !tokenizer_->reads_text()) {
        read_given_ids(raw, document, result.ids);
      } else if (document.read = read_text(std::move(raw), source_.options()); document.read.text) {
        std::string text = std::move(*document.read.text);
        document.text_bytes = std::ssize(text);
        if (tokenizer_) tokenizer_->encode_framed(text, true, true, result.ids);
        document.read.text.emplace();
      }
      document.tokens = std::ssize(result.ids) - document.first_token;
      result.documents.push_back(std::move(document));
    }
    return result;
  }

  void read_given_ids(RawDocument& raw, EncodedDocuments::Document& document, std::vector<int32_t>& ids) const {
    document.text_bytes = std::ssize(raw.bytes);
    RecordText& read = document.read;
    if (raw.too_long || !raw.problem.empty()) {
      read = read_text(std::move(raw), source_.options());
    } else if (raw.form == TextForm::records) {
      read.problem = read_ids(raw.bytes, source_.options().text_field, *tokenizer_, ids);
    } else {
      read.problem = "ids are read from the records of .jsonl files and columns of .parquet files alone";
    }
    if (read.problem.empty()) read.text.emplace();
  }

  FileSource& source_;
  const Tokenizer* tokenizer_;

  BoundedQueue<std::future<EncodedDocuments>> in_order_;
  BoundedQueue<Encoding> to_encode_{std::numeric_limits<size_t>::max()};
  std::vector<std::thread> threads_;
};

}  // namespace

int64_t default_encode_threads() { return default_threads(); }

void encode_all(FileSource& source, const Tokenizer* tokenizer, int64_t threads,
                const std::function<void(const EncodedDocuments&)>& take) {
  Pipeline pipeline(source, tokenizer, threads);
  while (const std::optional<EncodedDocuments> piece = pipeline.take()) take(*piece);
}

}  // namespace titan
