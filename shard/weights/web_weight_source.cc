#include "shard/weights/web_weight_source.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "shard/model/gguf.h"
#include "shard/model/gguf_bytes.h"
#include "transport/base/printable_text.h"
#include "transport/security/private_file.h"

namespace strata {
namespace {

// Bytes between blocks that are read and dropped rather than asked around: alignment.
constexpr uint64_t kGapBytesMax = 4096;
// Connections for the samples, each of which is a request.
constexpr size_t kSampleConnections = 4;
constexpr uint64_t kPieceBytes = 1u << 20;

// "huggingface.co".
std::string HostOf(absl::string_view url) {
  absl::string_view rest = url.substr(std::min(url.size(), url.find("://") + 3));
  return PrintableText::From(rest.substr(0, rest.find('/'))).str();
}

// Without what may be a signature.
std::string ShownUrl(absl::string_view url) {
  return PrintableText::From(url.substr(0, url.find('?')), kShownPathBytesMax).str();
}

absl::Status ExplainForNode(const std::string& url, bool has_token, const WebAnswer& answer) {
  absl::Status status = ExplainStatus(url, answer);
  if (!absl::IsPermissionDenied(status)) return status;
  return absl::PermissionDeniedError(
      absl::StrCat(status.message(), has_token ? ": this node's token (HF_TOKEN) may not read it"
                                               : ": this node has no token for it (HF_TOKEN)"));
}

}  // namespace

class WebWeightSource::Headers {
 public:
  explicit Headers(WebWeightSource* source) : source_(*source) {}
  ~Headers() {
    std::error_code error;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, error);
  }

  absl::StatusOr<std::shared_ptr<const ModelFile>> Read() {
    auto folder = NewPrivateFolder();
    if (!folder.ok()) return folder.status();
    folder_ = *std::move(folder);
    for (size_t part = 0; part < source_.files_.size(); ++part) {
      if (auto s = ReadHeader(part); !s.ok()) return s;
    }
    const std::string first = PathOf(0);
    auto model = ModelFile::Open(first);
    if (!model.ok()) return model.status();
    if (auto s = ReadIdentity((*model)->identity()); !s.ok()) return s;
    return ModelFile::Open(first);
  }

 private:
  std::string PathOf(size_t part) const {
    const size_t count = source_.files_.size();
    return count == 1 ? folder_ + "/model.gguf"
                      : absl::StrFormat("%s/model-%05d-of-%05d.gguf", folder_, part + 1, count);
  }

  // Fetches a range into its place, and returns it.
  absl::StatusOr<std::string> Copy(WebGetter* http, size_t part, uint64_t begin, uint64_t end) {
    std::string bytes;
    auto status = source_.ReadRange(http, part, begin, end, [&](absl::string_view piece) {
      bytes += piece;
      return absl::OkStatus();
    });
    if (status.ok()) status = Write(part, begin, bytes);
    if (!status.ok()) return status;
    return bytes;
  }

  absl::Status Write(size_t part, uint64_t offset, absl::string_view bytes) {
    absl::MutexLock lock(mu_);
    std::fstream file(PathOf(part), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (file.flush().good()) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("no room for a model's headers in ", folder_,
                                                     "; TMPDIR names another folder"));
  }

  // Its bytes up to the data, and the rest of the last piece that was asked for.
  absl::Status ReadHeader(size_t part) {
    const uint64_t file_bytes = source_.part_bytes_[part];
    std::error_code error;
    std::ofstream(PathOf(part)).flush();
    std::filesystem::resize_file(PathOf(part), file_bytes, error);
    if (error) {
      return absl::ResourceExhaustedError(absl::StrCat(PathOf(part), ": ", error.message()));
    }
    auto http = source_.TakeGetter();
    uint64_t end = 0;
    auto header = ReadGgufHeader(
        file_bytes, [&](uint64_t offset, absl::Span<char> out) -> absl::StatusOr<size_t> {
          const auto copied = Copy(http.get(), part, offset, offset + out.size());
          if (!copied.ok()) return copied.status();
          const std::string& bytes = *copied;
          std::memcpy(out.data(), bytes.data(), bytes.size());
          end = std::max(end, offset + bytes.size());
          return bytes.size();
        });
    if (!header.ok()) {
      return absl::IsInvalidArgument(header.status())
                 ? absl::InvalidArgumentError(
                       absl::StrCat(source_.names_[part], ": ", header.status().message()))
                 : header.status();
    }
    if (header->data_offset > end) {
      const auto rest = Copy(http.get(), part, end, header->data_offset);
      if (!rest.ok()) return rest.status();
    }
    source_.GiveBack(std::move(http));
    return absl::OkStatus();
  }

  // The samples; the headers are there.
  absl::Status ReadIdentity(const std::vector<ModelFile::Range>& ranges) {
    absl::Mutex mu;
    size_t next = source_.files_.size();
    absl::Status failed;
    const auto work = [&] {
      auto http = source_.TakeGetter();
      for (;;) {
        size_t index = 0;
        {
          absl::MutexLock lock(mu);
          if (next >= ranges.size() || !failed.ok()) break;
          index = next++;
        }
        const ModelFile::Range& range = ranges[index];
        auto status =
            Copy(http.get(), range.part, range.offset, range.offset + range.bytes).status();
        absl::MutexLock lock(mu);
        failed.Update(status);
      }
      source_.GiveBack(std::move(http));
    };
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kSampleConnections; ++i) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    return failed;
  }

  WebWeightSource& source_;
  std::string folder_;
  absl::Mutex mu_;  // of the files
};

WebWeightSource::WebWeightSource(std::string model_id, const wire::RemoteModel& remote,
                                 const TokenOf& token_of)
    : model_id_(std::move(model_id)) {
  for (const wire::RemoteFile& file : remote.parts()) {
    if (address_.empty()) address_ = HostOf(file.url());
    const std::string token = token_of == nullptr ? "" : token_of(file.url());
    names_.push_back(ShownUrl(file.url()));
    part_bytes_.push_back(file.bytes());
    files_.push_back(std::make_unique<RangedFile>(RangedFile::Options{
        .request = {.url = file.url(), .bearer = token},
        .bytes = file.bytes(),
        .etag = file.etag(),
        .magic = std::string(kGgufMagic),
        .explain = [name = names_.back(), has_token = !token.empty()](const WebAnswer& answer) {
          return ExplainForNode(name, has_token, answer);
        }}));
  }
}

WebWeightSource::~WebWeightSource() = default;

absl::Status WebWeightSource::Check(const wire::RemoteModel& remote) {
  if (remote.parts().empty() || remote.parts_size() > kRemotePartsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a model on a server has 1 to ", kRemotePartsMax, " files"));
  }
  for (const wire::RemoteFile& file : remote.parts()) {
    if (file.bytes() > 0 && file.bytes() < uint64_t{1} << 62 &&
        (absl::StartsWith(file.url(), "https://") || absl::StartsWith(file.url(), "http://"))) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(ShownUrl(file.url()), ": no file on a web server"));
  }
  return absl::OkStatus();
}

void WebWeightSource::Cancel() {
  absl::MutexLock lock(mu_);
  cancelled_ = true;
}

bool WebWeightSource::cancelled() const {
  absl::MutexLock lock(mu_);
  return cancelled_;
}

std::function<bool()> WebWeightSource::CancelledFunction() const {
  return [this] { return cancelled(); };
}

std::unique_ptr<WebGetter> WebWeightSource::TakeGetter() {
  {
    absl::MutexLock lock(mu_);
    if (!idle_.empty()) {
      auto getter = std::move(idle_.back());
      idle_.pop_back();
      return getter;
    }
  }
  return std::make_unique<WebGetter>(CancelledFunction());
}

void WebWeightSource::GiveBack(std::unique_ptr<WebGetter> getter) {
  absl::MutexLock lock(mu_);
  if (idle_.size() < kIdleConnectionsMax) idle_.push_back(std::move(getter));
}

absl::Status WebWeightSource::ReadRange(WebGetter* http, size_t part, uint64_t begin, uint64_t end,
                                        WebGetter::Piece piece) {
  absl::Status status = files_[part]->Read(http, begin, end, CancelledFunction(), piece);
  if (absl::IsAborted(status)) {
    return absl::FailedPreconditionError(
        absl::StrCat(names_[part], ": the file changed at the server; load the model again"));
  }
  if (absl::IsUnimplemented(status)) {
    return absl::FailedPreconditionError(absl::StrCat(
        names_[part], ": the server sends no parts of files: --whole fetches it to one node"));
  }
  if (absl::IsUnavailable(status)) {
    return absl::UnavailableError(absl::StrCat(
        status.message(), "; where this node cannot reach it, --whole fetches it to another"));
  }
  return status;
}

absl::Status WebWeightSource::Read(const WeightBlocks& all, const std::vector<uint32_t>& blocks,
                                   OnChunk on_chunk) {
  absl::Status enough = absl::OutOfRangeError("enough");
  auto http = TakeGetter();
  absl::Cleanup give_back = [&] { GiveBack(std::move(http)); };
  for (size_t i = 0; i < blocks.size();) {
    const size_t part = all[blocks[i]].part;
    const uint64_t begin = all[blocks[i]].offset;
    size_t behind = i;
    uint64_t end = begin;
    while (behind < blocks.size() && all[blocks[behind]].part == part &&
           all[blocks[behind]].offset >= end && all[blocks[behind]].offset - end <= kGapBytesMax) {
      end = all[blocks[behind]].offset + all[blocks[behind]].bytes;
      ++behind;
    }
    if (part >= files_.size() || end > part_bytes_[part]) {
      return Named(absl::FailedPreconditionError("its files are not those of the model"));
    }
    uint64_t at = begin;
    absl::Status status =
        ReadRange(http.get(), part, begin, end, [&](absl::string_view bytes) -> absl::Status {
          while (!bytes.empty()) {
            const WeightBlock& block = all[blocks[i]];
            const uint64_t skip =
                std::min<uint64_t>(block.offset - std::min(at, block.offset), bytes.size());
            bytes.remove_prefix(skip);
            at += skip;
            if (bytes.empty()) break;
            wire::BlockChunk chunk;
            chunk.set_block(blocks[i]);
            chunk.set_offset(at - block.offset);
            chunk.set_data(std::string(bytes.substr(0, block.bytes - chunk.offset())));
            at += chunk.data().size();
            bytes.remove_prefix(chunk.data().size());
            if (at == block.offset + block.bytes) ++i;
            if (!on_chunk(chunk)) return enough;
          }
          return absl::OkStatus();
        });
    if (status == enough) return absl::OkStatus();
    if (!status.ok()) {
      return absl::IsCancelled(status) ? absl::CancelledError("fetching was cancelled")
                                       : Named(status);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> WebWeightSource::AddTo(WeightCache* cache) {
  Headers headers(this);
  const auto model = headers.Read();
  if (!model.ok()) {
    return absl::IsCancelled(model.status()) ? absl::CancelledError("fetching was cancelled")
                                             : Named(model.status());
  }
  const std::string id = (*model)->id();
  if (!model_id_.empty() && id != model_id_) {
    return Named(absl::FailedPreconditionError("it has another model there now"));
  }
  size_t range = 0;
  uint64_t done = 0;
  const std::vector<ModelFile::Range>& identity = (*model)->identity();
  absl::Status status = cache->Add(id, part_bytes_, [&]() -> absl::StatusOr<WeightCache::Piece> {
    while (range < identity.size() && done == identity[range].bytes) {
      ++range;
      done = 0;
    }
    if (range == identity.size()) return WeightCache::Piece{};
    WeightCache::Piece piece = {.part = identity[range].part,
                                .offset = identity[range].offset + done};
    piece.bytes.resize(std::min(kPieceBytes, identity[range].bytes - done));
    done += piece.bytes.size();
    auto read = (*model)->Read(piece.part, piece.offset, absl::MakeSpan(piece.bytes));
    if (!read.ok()) return read;
    return piece;
  });
  return status.ok() ? absl::StatusOr<std::string>(id) : status;
}

}  // namespace strata
