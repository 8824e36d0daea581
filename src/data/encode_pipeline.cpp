#include "encode_pipeline.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "titan/base/process.h"

namespace titan {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;      // of text, per work item
constexpr size_t kBytesUnderWay = size_t{24} << 20;  // of text, read and not yet taken

struct Piece {
  std::vector<RawDocument> raw;
  size_t bytes = 0;
  EncodedDocuments result;
  std::exception_ptr failure;
  bool done = false;
};
using PieceRef = std::shared_ptr<Piece>;

class Pipeline {
 public:
  Pipeline(TextFileSource& source, const Tokenizer* tokenizer) : source_(source), tokenizer_(tokenizer) {}

  ~Pipeline() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  void start(int64_t threads) {
    threads_.emplace_back([this] { read(); });
    for (int64_t i = 0; i < threads; ++i) threads_.emplace_back([this] { encode(); });
  }

  /// The next piece in order; null at the end.
  PieceRef take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return order_.empty() ? all_read_ : order_.front()->done; });
    if (order_.empty()) {
      if (read_failure_) std::rethrow_exception(read_failure_);
      return nullptr;
    }
    PieceRef piece = order_.front();
    order_.pop_front();
    under_way_ -= piece->bytes;
    changed_.notify_all();
    if (piece->failure) std::rethrow_exception(piece->failure);
    return piece;
  }

 private:
  void read() {
    std::exception_ptr thrown;
    try {
      while (read_piece()) {
      }
    } catch (...) {
      thrown = std::current_exception();
    }
    std::lock_guard lock(mutex_);
    read_failure_ = thrown;
    all_read_ = true;
    changed_.notify_all();
  }

  bool read_piece() {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || under_way_ < kBytesUnderWay; });
      if (stopping_) return false;
    }
    auto piece = std::make_shared<Piece>();
    RawDocument raw;
    bool more = true;
    std::exception_ptr thrown;
    try {
      while (piece->bytes < kPieceBytes && (more = source_.next_raw(raw))) {
        piece->bytes += raw.bytes.size() + sizeof raw;
        piece->raw.push_back(std::move(raw));
      }
    } catch (...) {  // documents read before the exception still count
      thrown = std::current_exception();
    }
    piece->result.after = source_.position();
    if (!piece->raw.empty()) {
      std::lock_guard lock(mutex_);
      under_way_ += piece->bytes;
      order_.push_back(piece);
      todo_.push_back(piece);
      changed_.notify_all();
    }
    if (thrown) std::rethrow_exception(thrown);
    return more;
  }

  void encode() {
    while (true) {
      PieceRef piece;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopping_ || !todo_.empty() || all_read_; });
        if (stopping_ || todo_.empty()) return;
        piece = todo_.front();
        todo_.pop_front();
      }
      try {
        encode_piece(*piece);
      } catch (...) {
        piece->failure = std::current_exception();
      }
      std::lock_guard lock(mutex_);
      piece->done = true;
      changed_.notify_all();
    }
  }

  void encode_piece(Piece& piece) const {
    EncodedDocuments& result = piece.result;
    for (RawDocument& raw : piece.raw) {
      EncodedDocuments::Document document;
      document.start = raw.start;
      document.first_token = std::ssize(result.ids);
      if (tokenizer_ && !tokenizer_->reads_text()) {
        read_given_ids(raw, document, result.ids);
      } else if (document.read = read_text(std::move(raw), source_.rules()); document.read.text) {
        std::string text = std::move(*document.read.text);
        document.text_bytes = std::ssize(text);
        if (tokenizer_) tokenizer_->encode_framed(text, true, true, result.ids);
        document.read.text.emplace();
      }
      document.tokens = std::ssize(result.ids) - document.first_token;
      result.documents.push_back(std::move(document));
    }
    piece.raw = {};
  }

  void read_given_ids(RawDocument& raw, EncodedDocuments::Document& document, std::vector<int32_t>& ids) const {
    document.text_bytes = std::ssize(raw.bytes);
    RecordText& read = document.read;
    if (raw.too_long || !raw.problem.empty()) {
      read = read_text(std::move(raw), source_.rules());
    } else if (raw.form == TextForm::records) {
      read.problem = read_ids(raw.bytes, source_.rules().text_field, *tokenizer_, ids);
    } else {
      read.problem = "ids are read from the records of .jsonl files alone";
    }
    if (read.problem.empty()) read.text.emplace();
  }

  TextFileSource& source_;
  const Tokenizer* tokenizer_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<PieceRef> order_, todo_;
  size_t under_way_ = 0;
  bool all_read_ = false;
  bool stopping_ = false;
  std::exception_ptr read_failure_;
  std::vector<std::thread> threads_;
};

}  // namespace

int64_t default_encode_threads() { return default_threads(); }

void encode_all(TextFileSource& source, const Tokenizer* tokenizer, int64_t threads,
                const std::function<void(const EncodedDocuments&)>& take) {
  Pipeline pipeline(source, tokenizer);
  pipeline.start(threads);
  while (const PieceRef piece = pipeline.take()) take(piece->result);
}

}  // namespace titan
