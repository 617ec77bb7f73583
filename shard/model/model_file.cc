#include "shard/model/model_file.h"

#include <blake3.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace strata {
namespace {

constexpr absl::string_view kEnding = ".gguf";
constexpr size_t kHashChunkBytes = 1u << 20;
constexpr size_t kPreadBytesMax = 1u << 30;  // Linux and macOS stop short of 2 GiB
// The samples of the tensors' data in the id, so that two trainings of one model have other ids.
constexpr size_t kSamplesMax = 64;
constexpr size_t kSampleBytes = 4096;

absl::Status WithPath(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

absl::Status SystemError(const std::string& path, int error) {
  const std::string message = absl::StrCat(path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case ELOOP:
    case ENAMETOOLONG:
    case EISDIR:
      return absl::InvalidArgumentError(message);
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

// Reads up to out.size() bytes; fewer only at the end of the file.
absl::StatusOr<size_t> ReadUpTo(const std::string& path, int fd, uint64_t offset,
                                absl::Span<char> out) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = pread(fd, out.data() + done, std::min(out.size() - done, kPreadBytesMax),
                            static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

struct Part {
  int fd = -1;
  FileStamp stamp;
  GgufHeader header;
};

// The caller closes `part->fd` where it is not -1, also after an error.
absl::Status OpenPart(const std::string& path, Part* part) {
  // A FIFO without a writer would block open() for ever.
  part->fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (part->fd < 0) return SystemError(path, errno);
  struct stat info;
  if (fstat(part->fd, &info) != 0) return SystemError(path, errno);
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(path + ": is a folder; name the model's file in it");
  }
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(path + ": is not a regular file");
  part->stamp = StampOf(info);
  absl::StatusOr<GgufHeader> header = ReadGgufHeader(
      part->stamp.bytes,
      [&](uint64_t offset, absl::Span<char> out) { return ReadUpTo(path, part->fd, offset, out); });
  if (!header.ok()) {
    // Read errors name the path already.
    return absl::StartsWith(header.status().message(), path) ? header.status()
                                                             : WithPath(path, header.status());
  }
  part->header = *std::move(header);
  return absl::OkStatus();
}

// NAME-00002-of-00003.gguf
struct SplitName {
  std::string prefix;   // NAME, with its folder
  uint32_t number = 0;  // from 1
  uint32_t count = 0;

  std::string Path(uint32_t part_number) const {
    return absl::StrFormat("%s-%05d-of-%05d%s", prefix, part_number, count, kEnding);
  }
};

std::optional<SplitName> ParseSplitName(absl::string_view path) {
  constexpr size_t kTailBytes = sizeof("-00001-of-00003") - 1;
  if (!absl::ConsumeSuffix(&path, kEnding) || path.size() < kTailBytes) return std::nullopt;
  SplitName name;
  const absl::string_view tail = path.substr(path.size() - kTailBytes);
  const auto is_number = [](absl::string_view digits, uint32_t* number) {
    return std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
           absl::SimpleAtoi(digits, number);
  };
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" ||
      !is_number(tail.substr(1, 5), &name.number) || !is_number(tail.substr(10, 5), &name.count)) {
    return std::nullopt;
  }
  if (name.number < 1 || name.number > name.count) return std::nullopt;
  name.prefix = std::string(path.substr(0, path.size() - kTailBytes));
  return name;
}

// Checks that each part's header fits its name and the first part.
absl::Status CheckPart(const std::string& path, const GgufHeader& header, const SplitName& name,
                       uint32_t number, const GgufHeader& first) {
  const std::optional<uint64_t> count = header.GetInteger("split.count");
  const std::optional<uint64_t> index = header.GetInteger("split.no");
  if (count != name.count || index != number - 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is not part ", number, " of ", name.count, ": its header says ",
                     index.has_value() ? absl::StrCat("part ", *index + 1) : "no part number",
                     " of ", count.has_value() ? absl::StrCat(*count) : "no number of parts"));
  }
  constexpr absl::string_view kSame[] = {"general.architecture", "split.tensors.count"};
  for (const absl::string_view key : kSame) {
    const GgufValue* here = header.Find(key);
    const GgufValue* there = first.Find(key);
    if (here != nullptr && (there == nullptr || here->bytes != there->bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": is a part of another model: ", key,
                                                     " differs from the first part's"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const std::string& path, const ModelFile& model) {
  const GgufHeader& header = model.header();
  if (model.architecture().empty()) {
    return absl::InvalidArgumentError(path + ": not a model: it has no general.architecture");
  }
  const std::string key = absl::StrCat(model.architecture(), ".block_count");
  const std::optional<uint64_t> layers = header.GetInteger(key);
  // Every layer has at least one tensor, so the tensors bound the claimed number of layers.
  if (!layers.has_value() || *layers == 0 || *layers > header.tensors.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a model: ", key, " is ",
                     layers.has_value() ? absl::StrCat(*layers) : "missing", " with ",
                     header.tensors.size(), " tensors"));
  }
  return absl::OkStatus();
}

class Hasher {
 public:
  Hasher() { blake3_hasher_init(&state_); }

  absl::Status AddBytes(const std::string& path, int fd, uint64_t offset, uint64_t bytes) {
    std::string chunk;
    while (bytes > 0) {
      chunk.resize(std::min<uint64_t>(bytes, kHashChunkBytes));
      absl::StatusOr<size_t> got = ReadUpTo(path, fd, offset, absl::MakeSpan(chunk));
      if (!got.ok()) return got.status();
      if (*got < chunk.size()) {
        return absl::UnavailableError(path + ": became shorter while it was read");
      }
      Add(chunk);
      offset += chunk.size();
      bytes -= chunk.size();
    }
    return absl::OkStatus();
  }

  void Add(absl::string_view bytes) { blake3_hasher_update(&state_, bytes.data(), bytes.size()); }

  std::string Finish() const {
    std::string id(BLAKE3_OUT_LEN, '\0');
    blake3_hasher_finalize(&state_, reinterpret_cast<uint8_t*>(id.data()), id.size());
    return id;
  }

 private:
  blake3_hasher state_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const ModelFile>> ModelFile::Open(const std::string& path) {
  std::shared_ptr<ModelFile> model(new ModelFile());

  Part named;
  absl::Cleanup close_named = [&named] {
    if (named.fd >= 0) close(named.fd);
  };
  if (absl::Status status = OpenPart(path, &named); !status.ok()) return status;

  const std::optional<uint64_t> split_count = named.header.GetInteger("split.count");
  SplitName split;
  split.count = 1;
  if (split_count.has_value() && *split_count > 1) {
    std::optional<SplitName> name = ParseSplitName(path);
    if (!name.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": is one of ", *split_count,
          " parts, but is not named NAME-00001-of-0000N.gguf, so the other parts cannot "
          "be found"));
    }
    split = *std::move(name);
  }

  for (uint32_t number = 1; number <= split.count; ++number) {
    const bool is_named = split.count == 1 || number == split.number;
    const std::string part_path = is_named ? path : split.Path(number);
    Part part;
    if (is_named) {
      part = std::exchange(named, Part());
    } else {
      absl::Status status = OpenPart(part_path, &part);
      if (absl::IsNotFound(status)) {
        status = absl::NotFoundError(absl::StrCat(path, ": part ", number, " of ", split.count,
                                                  " is missing: ", status.message()));
      }
      if (part.fd >= 0) model->fds_.push_back(part.fd);
      if (!status.ok()) return status;
    }
    if (is_named) model->fds_.push_back(part.fd);
    model->paths_.push_back(part_path);
    model->stamps_.push_back(part.stamp);
    model->identity_.push_back({number - 1, 0, part.header.data_offset});
    if (split.count > 1) {
      const GgufHeader& first = number == 1 ? part.header : model->header_;
      absl::Status status = CheckPart(part_path, part.header, split, number, first);
      if (!status.ok()) return status;
    }
    for (const GgufTensor& tensor : part.header.tensors) {
      model->locations_.push_back({number - 1, part.header.data_offset + tensor.offset});
    }
    if (number == 1) {
      model->header_ = std::move(part.header);
    } else {
      model->header_.tensors.insert(model->header_.tensors.end(),
                                    std::make_move_iterator(part.header.tensors.begin()),
                                    std::make_move_iterator(part.header.tensors.end()));
    }
  }

  GgufHeader& header = model->header_;
  if (split.count > 1) {
    const std::optional<uint64_t> tensors = header.GetInteger("split.tensors.count");
    if (tensors.has_value() && *tensors != header.tensors.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": the parts hold ", header.tensors.size(), " tensors, the first says ", *tensors));
    }
    std::vector<absl::string_view> names;
    for (const GgufTensor& tensor : header.tensors) names.push_back(tensor.name);
    std::sort(names.begin(), names.end());
    if (auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", *twice, " is in two of the parts"));
    }
  }
  for (const absl::string_view key : {"split.no", "split.count", "split.tensors.count"}) {
    header.Erase(key);
  }
  if (absl::Status status = CheckModel(path, *model); !status.ok()) return status;

  const size_t stride = (header.tensors.size() + kSamplesMax - 1) / kSamplesMax;
  for (size_t i = 0; i < header.tensors.size(); i += stride) {
    const Location& location = model->locations_[i];
    const uint64_t bytes = std::min<uint64_t>(header.tensors[i].bytes, kSampleBytes);
    model->identity_.push_back(
        {location.part, location.offset + (header.tensors[i].bytes - bytes) / 2, bytes});
  }
  Hasher hasher;
  for (const Range& range : model->identity_) {
    absl::Status status = hasher.AddBytes(model->paths_[range.part], model->fds_[range.part],
                                          range.offset, range.bytes);
    if (!status.ok()) return status;
  }
  model->id_ = hasher.Finish();
  return model;
}

ModelFile::~ModelFile() {
  for (const int fd : fds_) close(fd);
}

absl::Status ModelFile::Read(size_t part, uint64_t offset, absl::Span<char> out) const {
  absl::StatusOr<size_t> got = ReadUpTo(paths_[part], fds_[part], offset, out);
  if (!got.ok()) return got.status();
  if (*got < out.size()) {
    return absl::UnavailableError(absl::StrCat(paths_[part], ": ends at byte ", offset + *got,
                                               ": it became shorter after it was opened"));
  }
  return absl::OkStatus();
}

absl::Status ModelFile::CheckUnchanged() const {
  for (size_t part = 0; part < paths_.size(); ++part) {
    const absl::StatusOr<FileStamp> now = StampAt(paths_[part]);
    if (now.ok() && *now == stamps_[part]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(paths_[part],
                     now.ok() ? " has changed since it was opened"
                              : absl::StrCat(" is no longer there (", now.status().message(), ")"),
                     "; load the model again"));
  }
  return absl::OkStatus();
}

bool ModelFile::IsHole(size_t part, uint64_t offset, uint64_t bytes) const {
  const off_t data = lseek(fds_[part], static_cast<off_t>(offset), SEEK_DATA);
  if (data < 0) return errno == ENXIO;  // nothing more up to the end
  return static_cast<uint64_t>(data) >= offset + bytes;
}

std::string ModelFile::file_key() const {
  Hasher hasher;
  for (size_t part = 0; part < paths_.size(); ++part) {
    hasher.Add(absl::StrCat(paths_[part], "\n", stamps_[part].Text(), "\n"));
  }
  return hasher.Finish();
}

std::string ModelFileStem(absl::string_view path) {
  const std::optional<SplitName> split = ParseSplitName(path);
  if (split.has_value()) path = split->prefix;
  if (const size_t slash = path.rfind('/'); slash != path.npos) path.remove_prefix(slash + 1);
  absl::ConsumeSuffix(&path, kEnding);
  return std::string(path);
}

PrintableText ModelFile::name() const {
  for (const std::string& name :
       {header_.GetString("general.name").value_or(""), ModelFileStem(paths_.front())}) {
    const absl::string_view text = absl::StripAsciiWhitespace(name);
    if (!text.empty()) return PrintableText::From(text);
  }
  return PrintableText::From("model");
}

PrintableText ModelFile::architecture() const {
  return PrintableText::From(header_.GetString("general.architecture").value_or(""));
}

uint32_t ModelFile::n_layer() const {
  return static_cast<uint32_t>(
      header_.GetInteger(absl::StrCat(architecture(), ".block_count")).value_or(0));
}

uint64_t ModelFile::tensor_bytes() const {
  uint64_t bytes = 0;
  for (const GgufTensor& tensor : header_.tensors) bytes += tensor.bytes;
  return bytes;
}

}  // namespace strata
