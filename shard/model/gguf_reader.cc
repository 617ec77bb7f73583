// Reading a header: every count and size is checked against the available bytes before it is used.
#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ggml.h"
#include "shard/model/gguf.h"
#include "shard/model/gguf_bytes.h"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

// Far above any known model, far below a danger to the node.
constexpr uint64_t kMetadataKeysMax = 65536;
constexpr uint64_t kMetadataBytesMax = 256u << 20;
constexpr uint64_t kKeyBytesMax = 65535;
constexpr uint64_t kTensorsMax = 1u << 20;
constexpr uint32_t kAlignmentMax = 1u << 20;
constexpr uint64_t kMetadataEntryBytesMin = 13;  // length, one byte of key, type
constexpr uint64_t kTensorEntryBytesMin = 25;    // length, one byte of name, n_dims, type, offset
constexpr size_t kWindowBytes = 1u << 20;

// For messages: the file may hold anything.
std::string Quoted(absl::string_view bytes) {
  return absl::StrCat("\"", PrintableText::From(absl::CEscape(bytes)), "\"");
}

// Reads forward through the file. The first error sticks: later reads give zeros, so the caller
// checks ok() before it trusts or allocates anything.
class Cursor {
 public:
  Cursor(uint64_t file_bytes, ReadAt read) : file_bytes_(file_bytes), read_(read) {}

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  uint64_t position() const { return position_; }
  uint64_t remaining() const { return file_bytes_ - position_; }

  // Keeps the first error.
  void Fail(uint64_t at, absl::string_view what) {
    if (ok())
      status_ = absl::InvalidArgumentError(absl::StrCat("damaged at byte ", at, ": ", what));
  }

  template <typename T>
  T Number(absl::string_view what) {
    T value = 0;
    if (Need(sizeof(value), what)) Copy(reinterpret_cast<char*>(&value), sizeof(value));
    return ok() ? value : T{0};
  }

  // Appends `bytes` bytes of the file.
  void Append(std::string* out, uint64_t bytes, absl::string_view what) {
    if (!Need(bytes, what)) return;
    const size_t old_bytes = out->size();
    out->resize(old_bytes + bytes);
    Copy(out->data() + old_bytes, bytes);
  }

  // A length and as many bytes.
  std::string String(uint64_t bytes_max, absl::string_view what) {
    const uint64_t at = position_;
    const auto bytes = Number<uint64_t>(absl::StrCat("the length of ", what));
    if (ok() && bytes > bytes_max) {
      Fail(at,
           absl::StrCat(what, " is ", bytes, " bytes long, ", bytes_max, " is the most allowed"));
    }
    std::string value;
    if (ok()) Append(&value, bytes, what);
    return value;
  }

 private:
  bool Need(uint64_t bytes, absl::string_view what) {
    if (ok() && bytes > remaining()) {
      status_ = absl::InvalidArgumentError(absl::StrCat("cut off at byte ", file_bytes_, ": ", what,
                                                        " at byte ", position_, " needs ", bytes,
                                                        " bytes, ", remaining(), " are there"));
    }
    return ok();
  }

  void Copy(char* out, uint64_t bytes) {
    while (bytes > 0) {
      if (position_ >= window_begin_ + window_.size() && !Refill()) return;
      const uint64_t skip = position_ - window_begin_;
      const uint64_t n = std::min<uint64_t>(bytes, window_.size() - skip);
      std::memcpy(out, window_.data() + skip, n);
      out += n;
      bytes -= n;
      position_ += n;
    }
  }

  bool Refill() {
    window_begin_ = position_;
    window_.resize(std::min<uint64_t>(kWindowBytes, remaining()));
    absl::StatusOr<size_t> got = read_(position_, absl::MakeSpan(window_));
    if (!got.ok()) {
      status_ = got.status();
    } else if (*got < window_.size()) {
      status_ = absl::InvalidArgumentError(absl::StrCat("cut off at byte ", position_ + *got, ": ",
                                                        file_bytes_, " bytes were expected"));
    }
    if (!ok()) window_.clear();
    return ok();
  }

  const uint64_t file_bytes_;
  const ReadAt read_;
  absl::Status status_;
  uint64_t position_ = 0;
  uint64_t window_begin_ = 0;
  std::string window_;
};

struct Counts {
  uint64_t tensors = 0;
  uint64_t metadata = 0;
};

Counts ReadFixedPart(Cursor* cursor, GgufHeader* header) {
  cursor->Number<uint32_t>("the magic");  // checked before
  header->version = cursor->Number<uint32_t>("the version");
  if (cursor->ok() && (header->version & 0xffff) == 0 && header->version != 0) {
    cursor->Fail(4, "big-endian GGUF files are not supported");
  }
  if (cursor->ok() && header->version != 2 && header->version != 3) {
    cursor->Fail(
        4, absl::StrCat("GGUF version ", header->version, "; versions 2 and 3 are supported"));
  }
  Counts counts;
  counts.tensors = cursor->Number<uint64_t>("the number of tensors");
  counts.metadata = cursor->Number<uint64_t>("the number of metadata keys");
  if (cursor->ok() && (counts.tensors > kTensorsMax ||
                       counts.tensors > cursor->remaining() / kTensorEntryBytesMin)) {
    cursor->Fail(8, absl::StrCat(counts.tensors, " tensors cannot be in this file"));
  }
  if (cursor->ok() && (counts.metadata > kMetadataKeysMax ||
                       counts.metadata > cursor->remaining() / kMetadataEntryBytesMin)) {
    cursor->Fail(16, absl::StrCat(counts.metadata, " metadata keys cannot be in this file"));
  }
  return counts;
}

// Reads the value of `key`; `budget` is what all metadata together may still take.
GgufValue ReadValue(Cursor* cursor, const std::string& key, uint64_t* budget) {
  GgufValue value;
  const std::string what = absl::StrCat("the value of ", Quoted(key));
  const uint64_t at = cursor->position();
  const auto type = cursor->Number<uint32_t>(absl::StrCat("the type of ", Quoted(key)));
  value.type = GgufType(type);
  value.element_type = value.type;
  if (value.type == GgufType::kArray) {
    value.element_type = GgufType(cursor->Number<uint32_t>(what));
    value.count = cursor->Number<uint64_t>(what);
  }
  if (!cursor->ok()) return value;

  const size_t scalar_bytes = GgufScalarBytes(value.element_type);
  const bool is_string = value.element_type == GgufType::kString;
  if (scalar_bytes == 0 && !is_string) {
    cursor->Fail(at, absl::StrCat(what, " has type ", type, " of elements of type ",
                                  uint32_t(value.element_type), ", which is not known"));
    return value;
  }
  const uint64_t element_bytes_min = is_string ? sizeof(uint64_t) : scalar_bytes;
  if (value.count > cursor->remaining() / element_bytes_min) {
    cursor->Fail(at, absl::StrCat(what, " has ", value.count, " elements, but only ",
                                  cursor->remaining(), " bytes are left"));
    return value;
  }
  if (value.count * element_bytes_min > *budget) {
    cursor->Fail(at, absl::StrCat("metadata of more than ", kMetadataBytesMax, " bytes"));
    return value;
  }
  if (!is_string) {
    cursor->Append(&value.bytes, value.count * scalar_bytes, what);
  } else {
    for (uint64_t i = 0; i < value.count && cursor->ok(); ++i) {
      const auto bytes = cursor->Number<uint64_t>(what);
      if (!cursor->ok()) break;
      if (bytes > *budget || value.bytes.size() + sizeof(bytes) > *budget - bytes) {
        cursor->Fail(cursor->position() - sizeof(bytes),
                     absl::StrCat(what, " holds a string of ", bytes,
                                  " bytes; all metadata may have ", kMetadataBytesMax));
        break;
      }
      AppendRaw(&value.bytes, bytes);
      cursor->Append(&value.bytes, bytes, what);
    }
  }
  *budget -= std::min<uint64_t>(*budget, value.bytes.size());
  return value;
}

void ReadMetadata(Cursor* cursor, uint64_t count, GgufHeader* header) {
  uint64_t budget = kMetadataBytesMax;
  for (uint64_t i = 0; i < count && cursor->ok(); ++i) {
    const uint64_t at = cursor->position();
    std::string key = cursor->String(kKeyBytesMax, absl::StrCat("metadata key ", i));
    if (cursor->ok() && (key.empty() || absl::StrContains(key, '\0'))) {
      cursor->Fail(at, absl::StrCat("metadata key ", i, " is empty or holds a zero byte"));
    }
    if (!cursor->ok()) return;
    GgufValue value = ReadValue(cursor, key, &budget);
    if (key == kGgufAlignmentKey && cursor->ok()) {
      const uint32_t alignment =
          value.type == GgufType::kU32 ? LoadRaw<uint32_t>(value.bytes.data()) : 0;
      if (!std::has_single_bit(alignment) || alignment > kAlignmentMax) {
        cursor->Fail(at, absl::StrCat(kGgufAlignmentKey, " must be a u32, a power of two up to ",
                                      kAlignmentMax));
      }
      header->alignment = alignment;
    }
    header->metadata.emplace_back(std::move(key), std::move(value));
  }
}

void ReadTensor(Cursor* cursor, uint64_t index, GgufTensor* tensor) {
  const uint64_t at = cursor->position();
  tensor->name = cursor->String(GGML_MAX_NAME - 1, absl::StrCat("the name of tensor ", index));
  if (cursor->ok() && (tensor->name.empty() || absl::StrContains(tensor->name, '\0'))) {
    cursor->Fail(at, absl::StrCat("the name of tensor ", index, " is empty or holds a zero byte"));
  }
  if (!cursor->ok()) return;
  const std::string what = absl::StrCat("tensor ", Quoted(tensor->name));
  tensor->n_dims = cursor->Number<uint32_t>(what);
  if (cursor->ok() && tensor->n_dims > tensor->dims.size()) {
    cursor->Fail(at, absl::StrCat(what, " has ", tensor->n_dims, " dimensions; 4 are the most"));
  }
  for (uint32_t i = 0; i < tensor->n_dims && cursor->ok(); ++i) {
    tensor->dims[i] = cursor->Number<uint64_t>(what);
    if (cursor->ok() && tensor->dims[i] == 0) {
      cursor->Fail(at, absl::StrCat(what, " has a dimension of length 0"));
    }
  }
  tensor->type = cursor->Number<uint32_t>(what);
  tensor->offset = cursor->Number<uint64_t>(what);
  if (!cursor->ok()) return;
  const std::optional<uint64_t> bytes = GgufTensorBytes(tensor->type, tensor->dims);
  if (!bytes.has_value()) {
    cursor->Fail(at,
                 absl::StrCat(what, " has type ", tensor->type, " and shape [",
                              absl::StrJoin(tensor->dims, ", "),
                              "]: an unknown type, a row that is not a multiple of its block, or "
                              "too large"));
    return;
  }
  tensor->bytes = *bytes;
}

// The data of the tensors follow each other in the order of the directory, each padded to the
// alignment: libggml refuses anything else, and it leaves no room for overlaps.
absl::Status CheckPlaces(const GgufHeader& header, uint64_t file_bytes) {
  uint64_t expected = 0;
  for (const GgufTensor& tensor : header.tensors) {
    if (tensor.offset != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat("damaged: tensor ", Quoted(tensor.name), " has its data at ", tensor.offset,
                       " of the data section, expected at ", expected));
    }
    // A tensor has less than 2^63 bytes, so the sum cannot wrap before the check.
    if (expected > std::numeric_limits<uint64_t>::max() / 2) {
      return absl::InvalidArgumentError("damaged: more than 2^63 bytes of tensor data");
    }
    expected = GgufPad(expected + tensor.bytes, header.alignment);
  }
  if (header.tensors.empty()) return absl::OkStatus();
  // The padding after the last tensor may be missing.
  const GgufTensor& last = header.tensors.back();
  const uint64_t promised = last.offset + last.bytes;
  const uint64_t there = file_bytes > header.data_offset ? file_bytes - header.data_offset : 0;
  if (promised > there) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cut off at byte ", file_bytes, ": the header promises ", promised,
        " bytes of tensor data from byte ", header.data_offset, ", ", there, " are there"));
  }
  return absl::OkStatus();
}

// `names` is made from the header's names in order; empty when they are unique.
std::string FirstDuplicate(std::vector<absl::string_view> names) {
  std::sort(names.begin(), names.end());
  const auto duplicate = std::adjacent_find(names.begin(), names.end());
  return duplicate == names.end() ? "" : std::string(*duplicate);
}

absl::Status CheckNames(const GgufHeader& header) {
  std::vector<absl::string_view> names;
  for (const auto& [key, value] : header.metadata) names.push_back(key);
  if (std::string duplicate = FirstDuplicate(std::move(names)); !duplicate.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("damaged: metadata key ", Quoted(duplicate), " is there twice"));
  }
  names.clear();
  for (const GgufTensor& tensor : header.tensors) names.push_back(tensor.name);
  if (std::string duplicate = FirstDuplicate(std::move(names)); !duplicate.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("damaged: tensor ", Quoted(duplicate), " is there twice"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GgufHeader> ReadGgufHeader(uint64_t file_bytes, ReadAt read) {
  if (file_bytes == 0) return absl::InvalidArgumentError("not a GGUF file (it is empty)");
  std::array<char, kGgufMagic.size()> magic;
  const absl::StatusOr<size_t> got =
      read(0, absl::MakeSpan(magic).subspan(0, std::min<uint64_t>(magic.size(), file_bytes)));
  if (!got.ok()) return got.status();
  const absl::string_view start(magic.data(), std::min(*got, magic.size()));
  if (start != kGgufMagic) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a GGUF file (starts with ", Quoted(start), ")"));
  }

  GgufHeader header;
  Cursor cursor(file_bytes, read);
  const Counts counts = ReadFixedPart(&cursor, &header);
  ReadMetadata(&cursor, counts.metadata, &header);
  for (uint64_t i = 0; i < counts.tensors && cursor.ok(); ++i) {
    ReadTensor(&cursor, i, &header.tensors.emplace_back());
  }
  if (!cursor.ok()) return cursor.status();
  header.data_offset =
      header.tensors.empty() ? cursor.position() : GgufPad(cursor.position(), header.alignment);
  if (absl::Status status = CheckNames(header); !status.ok()) return status;
  if (absl::Status status = CheckPlaces(header, file_bytes); !status.ok()) return status;
  return header;
}

absl::StatusOr<GgufHeader> ParseGgufHeader(absl::string_view file) {
  return ReadGgufHeader(file.size(),
                        [file](uint64_t offset, absl::Span<char> out) -> absl::StatusOr<size_t> {
                          if (offset >= file.size()) return 0;
                          const size_t n = std::min<uint64_t>(out.size(), file.size() - offset);
                          std::memcpy(out.data(), file.data() + offset, n);
                          return n;
                        });
}

}  // namespace strata
