#include "shard/model/slice.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ggml.h"
#include "shard/model/weight_blocks.h"

namespace strata {
namespace {

// glibc copies through the buffer of such a stream, however large the read: 3 GB/s from the page
// cache where a plain file gives 4.5, and both are faster than libllama repacks weights. The size
// makes system calls rare, stays in a core's cache, and wastes little where small tensors are read
// alone.
constexpr size_t kStreamBufferBytes = 64u << 10;

// The treatment of a tensor outside the layers. Tensors not listed (norms, rope factors) are small,
// and every slice has them unchanged.
enum class Role {
  kKeep,
  kTokenEmbedding,  // needed where tokens come in, and where the output is tied to it
  kOutput,          // needed where logits go out
  kPosition,        // added to the input, so it must be zero in every slice but the first
};

struct GlobalTensor {
  absl::string_view name;
  Role role;
};
constexpr GlobalTensor kGlobalTensors[] = {
    {"token_embd.weight", Role::kTokenEmbedding},
    {"output.weight", Role::kOutput},
    {"output.bias", Role::kOutput},
    {"position_embd.weight", Role::kPosition},
};

Role RoleOf(absl::string_view name) {
  for (const GlobalTensor& tensor : kGlobalTensors) {
    if (tensor.name == name) return tensor.role;
  }
  return Role::kKeep;
}

// Zeros of the shape of a vocabulary matrix that libllama requires but never computes with. They
// take memory like any tensor, so the type is the smallest that every back end multiplies
// with: one that a GPU does not know would move the head, and a needless graph split, to the CPU.
// At a vocabulary of 128k and rows of 4096, IQ1_S takes 103 MB.
void MakePlaceholder(GgufTensor* tensor) {
  for (const ggml_type type : {GGML_TYPE_IQ1_S, GGML_TYPE_Q4_0, GGML_TYPE_F16}) {
    if (const auto bytes = GgufTensorBytes(type, tensor->dims);
        bytes.has_value() && *bytes < tensor->bytes) {
      tensor->type = type;
      tensor->bytes = *bytes;
      return;
    }
  }
}

// One row of zeros, for a vocabulary of one token.
void MakeOneRow(GgufTensor* tensor) {
  // A bias has the vocabulary as its only dimension.
  if (tensor->n_dims <= 1) {
    tensor->dims = {1, 1, 1, 1};
  } else {
    tensor->dims = {tensor->dims[0], 1, 1, 1};
  }
  tensor->type = GGML_TYPE_F32;
  tensor->bytes = GgufTensorBytes(tensor->type, tensor->dims).value_or(0);
}

// A vocabulary of one token, for a slice that takes and gives activations.
void DropVocabulary(const std::string& architecture, GgufHeader* header) {
  std::erase_if(header->metadata,
                [](const auto& entry) { return absl::StartsWith(entry.first, "tokenizer."); });
  header->Set("tokenizer.ggml.model", GgufValue::String("none"));
  header->Set(architecture + ".vocab_size", GgufValue::U32(1));
}

}  // namespace

// The contents of the slice's GGUF; shared by the slice, its copies and its open streams.
struct Slice::Content {
  // `bytes` of the slice's GGUF from `begin` on.
  struct Piece {
    enum class Kind { kMemory, kFile, kZeros };
    uint64_t begin;
    uint64_t bytes;
    Kind kind;
    size_t part;      // kFile
    uint64_t offset;  // kFile: in that file; kMemory: in `memory`
  };

  // A block that is compared with its hash.
  struct HashedBlock {
    uint32_t block;
    WeightBlock at;
    std::string hash;
  };
  // The bytes of a verified block.
  struct VerifiedBlock {
    const HashedBlock* block = nullptr;
    std::string bytes;
  };

  std::shared_ptr<const ModelFile> model;
  std::string memory;               // the header
  std::vector<Piece> pieces;        // in order of `begin`, without gaps
  std::vector<HashedBlock> hashed;  // in the files' order; empty: the files are trusted
  uint64_t file_bytes = 0;

  // kInvalidArgument: there are not as many as blocks.
  absl::Status CheckBlocks(absl::string_view hashes, absl::Span<const size_t> tensors) {
    const WeightBlocks all(*model);
    const std::vector<uint32_t> blocks = all.OfTensors(tensors);
    if (hashes.size() != blocks.size() * kWeightHashBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(hashes.size(), " bytes of hashes for ", blocks.size(), " blocks"));
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
      hashed.push_back({blocks[i], all[blocks[i]],
                        std::string(hashes.substr(i * kWeightHashBytes, kWeightHashBytes))});
    }
    std::ranges::sort(hashed, {}, [](const HashedBlock& each) {
      return std::pair(each.at.part, each.at.offset);
    });
    return absl::OkStatus();
  }

  absl::Status Load(const HashedBlock& block, VerifiedBlock* verified) const {
    verified->block = nullptr;
    verified->bytes.resize(block.at.bytes);
    const auto damaged = [&](absl::string_view how) {
      return absl::DataLossError(
          absl::StrCat("block ", block.block, " of ", model->paths()[block.at.part], " ", how));
    };
    absl::Status read =
        model->Read(block.at.part, block.at.offset, absl::MakeSpan(verified->bytes));
    if (!read.ok()) return damaged(absl::StrCat("cannot be read: ", read.message()));
    if (HashOfBytes(verified->bytes) != block.hash)
      return damaged("is damaged: its bytes do not match its hash");
    verified->block = &block;
    return absl::OkStatus();
  }

  // Reads from one of the files. Bytes outside blocks are padding, which is ignored.
  absl::Status ReadFile(size_t part, uint64_t offset, char* out, size_t size,
                        VerifiedBlock* verified) const {
    if (hashed.empty()) return model->Read(part, offset, absl::MakeSpan(out, size));
    auto next = std::ranges::upper_bound(
        hashed, std::pair(part, offset), {},
        [](const HashedBlock& each) { return std::pair(each.at.part, each.at.offset); });
    if (next != hashed.begin()) --next;
    while (size > 0) {
      for (; next != hashed.end(); ++next) {
        const WeightBlock& at = next->at;
        if (at.part > part || (at.part == part && at.offset + at.bytes > offset)) break;
      }
      const bool in_part = next != hashed.end() && next->at.part == part;
      size_t n = size;
      if (in_part && next->at.offset <= offset) {
        if (verified->block != &*next) {
          if (absl::Status status = Load(*next, verified); !status.ok()) return status;
        }
        const uint64_t skip = offset - next->at.offset;
        n = std::min<uint64_t>(size, next->at.bytes - skip);
        memcpy(out, verified->bytes.data() + skip, n);
      } else {
        if (in_part) n = std::min<uint64_t>(size, next->at.offset - offset);
        memset(out, 0, n);
      }
      offset += n;
      out += n;
      size -= n;
    }
    return absl::OkStatus();
  }

  // Adds a piece at the end; `alignment` pads before it.
  void Add(Piece piece, uint64_t alignment) {
    piece.begin = GgufPad(file_bytes, alignment);
    const uint64_t padding = piece.begin - file_bytes;
    file_bytes = piece.begin + piece.bytes;
    if (!pieces.empty()) {
      // Consecutive ranges in both file and slice are one piece, including padding.
      Piece& last = pieces.back();
      if (last.kind == Piece::Kind::kFile && piece.kind == Piece::Kind::kFile &&
          last.part == piece.part && last.offset + (piece.begin - last.begin) == piece.offset) {
        last.bytes = file_bytes - last.begin;
        return;
      }
      if (last.kind == Piece::Kind::kZeros) {
        last.bytes += padding;
      } else if (padding > 0) {
        pieces.push_back({piece.begin - padding, padding, Piece::Kind::kZeros, 0, 0});
      }
    }
    pieces.push_back(piece);
  }

  absl::StatusOr<size_t> ReadAt(uint64_t offset, char* out, size_t size,
                                VerifiedBlock* verified) const {
    if (offset >= file_bytes) return 0;
    const size_t n_bytes = std::min<uint64_t>(size, file_bytes - offset);
    auto piece = std::upper_bound(pieces.begin(), pieces.end(), offset,
                                  [](uint64_t at, const Piece& p) { return at < p.begin; });
    for (size_t done = 0; done < n_bytes;) {
      const Piece& from = *std::prev(piece);
      const uint64_t skip = offset + done - from.begin;
      const size_t n = std::min<uint64_t>(n_bytes - done, from.bytes - skip);
      switch (from.kind) {
        case Piece::Kind::kMemory:
          memcpy(out + done, memory.data() + from.offset + skip, n);
          break;
        case Piece::Kind::kZeros:
          memset(out + done, 0, n);
          break;
        case Piece::Kind::kFile: {
          absl::Status status = ReadFile(from.part, from.offset + skip, out + done, n, verified);
          if (!status.ok()) return status;
          break;
        }
      }
      done += n;
      ++piece;
    }
    return n_bytes;
  }
};

// One open stream.
struct Slice::Stream {
  std::shared_ptr<const Content> content;
  absl::Status* error = nullptr;
  uint64_t position = 0;
  Content::VerifiedBlock verified = {};
  std::unique_ptr<char[]> buffer = nullptr;  // of the FILE

  // As read(2): -1 with errno.
  static ssize_t Read(void* cookie, char* out, size_t size) {
    auto* stream = static_cast<Stream*>(cookie);
    const absl::StatusOr<size_t> n =
        stream->content->ReadAt(stream->position, out, size, &stream->verified);
    if (!n.ok()) {
      if (stream->error != nullptr) stream->error->Update(n.status());
      errno = EIO;
      return -1;
    }
    stream->position += *n;
    return static_cast<ssize_t>(*n);
  }

  // As lseek(2): the new position, or -1 with errno.
  static int64_t Seek(void* cookie, int64_t offset, int whence) {
    auto* stream = static_cast<Stream*>(cookie);
    int64_t base = 0;
    if (whence == SEEK_CUR) base = static_cast<int64_t>(stream->position);
    if (whence == SEEK_END) base = static_cast<int64_t>(stream->content->file_bytes);
    int64_t position = 0;
    if (__builtin_add_overflow(base, offset, &position) || position < 0) {
      errno = EINVAL;
      return -1;
    }
    stream->position = static_cast<uint64_t>(position);
    return position;
  }

  static int Close(void* cookie) {
    delete static_cast<Stream*>(cookie);
    return 0;
  }
};

absl::StatusOr<Slice> Slice::Make(const std::shared_ptr<const ModelFile>& model, LayerRange layers,
                                  SliceOptions options) {
  if (layers.begin >= layers.end || layers.end > model->n_layer()) {
    return absl::InvalidArgumentError(absl::StrCat("layers [", layers.begin, ", ", layers.end,
                                                   ") of ", model->name(), ", which has ",
                                                   model->n_layer()));
  }
  Slice slice;
  slice.layers_ = layers;
  slice.model_ = model;
  auto content = std::make_shared<Content>();
  content->model = model;
  using Kind = Content::Piece::Kind;

  const GgufHeader& whole = model->header();
  const bool is_whole = slice.is_whole();
  const bool is_checked = !options.block_hashes.empty();
  if (is_whole && model->paths().size() == 1 && !is_checked) {
    // The file itself, its own bytes of header included.
    slice.header_ = whole;
    slice.tensor_bytes_ = model->tensor_bytes();
    slice.source_tensors_.resize(whole.tensors.size());
    std::iota(slice.source_tensors_.begin(), slice.source_tensors_.end(), size_t{0});
    const uint64_t bytes =
        model->TensorAt(whole.tensors.size() - 1).offset + whole.tensors.back().bytes;
    content->Add({0, bytes, Kind::kFile, 0, 0}, 1);
    slice.content_ = std::move(content);
    return slice;
  }

  GgufHeader& header = slice.header_;
  header.version = whole.version;
  // A stream seeks to multiples of its buffer's size and reads on from there: tensors with hashes
  // begin there, so that no block is loaded twice for the end of the one before.
  header.alignment =
      is_checked ? std::max<uint32_t>(whole.alignment, kStreamBufferBytes) : whole.alignment;
  header.metadata = whole.metadata;
  if (!is_whole) {
    absl::Status status = AdjustMetadata(whole, layers, options.unverified, &header);
    if (!status.ok()) return status;
  }
  if (!slice.has_vocabulary()) DropVocabulary(model->architecture().str(), &header);

  const bool has_output = whole.FindTensor("output.weight") != nullptr;
  std::vector<Content::Piece> pieces;
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    GgufTensor tensor = whole.tensors[i];
    const ModelFile::Location& location = model->TensorAt(i);
    Kind kind = Kind::kFile;
    absl::string_view rest;
    if (const auto layer = LayerOfTensor(tensor.name, &rest); layer.has_value()) {
      if (*layer < layers.begin || *layer >= layers.end) continue;
      tensor.name = absl::StrCat("blk.", *layer - layers.begin, ".", rest);
    } else {
      switch (RoleOf(tensor.name)) {
        case Role::kKeep:
          break;
        case Role::kTokenEmbedding:
          if (slice.is_first() || (slice.is_last() && !has_output)) break;
          kind = Kind::kZeros;
          slice.is_last() ? MakePlaceholder(&tensor) : MakeOneRow(&tensor);
          break;
        case Role::kOutput:
          if (slice.is_last()) break;
          kind = Kind::kZeros;
          slice.is_first() ? MakePlaceholder(&tensor) : MakeOneRow(&tensor);
          break;
        case Role::kPosition:
          if (!slice.is_first()) kind = Kind::kZeros;
          break;
      }
    }
    slice.tensor_bytes_ += tensor.bytes;
    if (kind == Kind::kFile) slice.source_tensors_.push_back(i);
    pieces.push_back({0, tensor.bytes, kind, location.part, location.offset});
    header.tensors.push_back(std::move(tensor));
  }

  content->memory = SerializeGgufHeader(header);
  content->Add({0, content->memory.size(), Kind::kMemory, 0, 0}, 1);
  for (const Content::Piece& piece : pieces) content->Add(piece, header.alignment);
  if (is_checked) {
    absl::Status status = content->CheckBlocks(options.block_hashes, slice.source_tensors_);
    if (!status.ok()) return status;
  }
  slice.content_ = std::move(content);
  return slice;
}

bool Slice::is_last() const { return layers_.end == model_->n_layer(); }

uint64_t Slice::file_bytes() const { return content_->file_bytes; }

absl::StatusOr<size_t> Slice::ReadAt(uint64_t offset, char* out, size_t size) const {
  Content::VerifiedBlock verified;
  return content_->ReadAt(offset, out, size, &verified);
}

absl::StatusOr<FILE*> Slice::Open(absl::Status* error) const {
  auto* stream = new Stream{.content = content_, .error = error};
#ifdef __APPLE__
  FILE* file = funopen(
      stream,
      [](void* cookie, char* out, int size) -> int {
        return static_cast<int>(Stream::Read(cookie, out, static_cast<size_t>(std::max(size, 0))));
      },
      nullptr,
      [](void* cookie, fpos_t offset, int whence) -> fpos_t {
        return Stream::Seek(cookie, offset, whence);
      },
      Stream::Close);
#else
  cookie_io_functions_t functions = {};
  functions.read = Stream::Read;
  functions.seek = [](void* cookie, off64_t* offset, int whence) -> int {
    const int64_t position = Stream::Seek(cookie, *offset, whence);
    if (position < 0) return -1;
    *offset = position;
    return 0;
  };
  functions.close = Stream::Close;
  FILE* file = fopencookie(stream, "rb", functions);
#endif
  if (file == nullptr) {
    delete stream;
    return absl::ResourceExhaustedError("no memory for a stream");
  }
  stream->buffer = std::make_unique<char[]>(kStreamBufferBytes);
  setvbuf(file, stream->buffer.get(), _IOFBF, kStreamBufferBytes);
  return file;
}

}  // namespace strata
