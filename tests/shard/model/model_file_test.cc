#include "shard/model/model_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::strata::testing::GgufBuilder;
using ::strata::testing::GgufBytes;
using ::strata::testing::MakeTestFolder;
using ::strata::testing::PartPath;
using ::strata::testing::TinyLlama;
using ::strata::testing::WriteFile;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The message, which must start with the path.
std::string ErrorOf(const std::string& path, absl::StatusCode code) {
  const auto model = ModelFile::Open(path);
  EXPECT_EQ(model.status().code(), code) << model.status();
  EXPECT_THAT(std::string(model.status().message()), StartsWith(path));
  return std::string(model.status().message());
}

std::string Written(absl::string_view bytes, const std::string& name = "model.gguf") {
  const std::string path = MakeTestFolder() + "/" + name;
  WriteFile(path, bytes);
  return path;
}

// Writes the parts of a model and returns PREFIX of their names.
std::string WriteParts(const std::vector<std::string>& parts) {
  const std::string prefix = MakeTestFolder() + "/model";
  for (size_t i = 0; i < parts.size(); ++i) {
    WriteFile(PartPath(prefix, static_cast<int>(i) + 1, static_cast<int>(parts.size())), parts[i]);
  }
  return prefix;
}

std::string IdOf(const std::string& path) {
  const auto model = ModelFile::Open(path);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? (*model)->id() : "";
}

// Every tensor holds what the builder put there.
void ExpectDataOfBuilder(const ModelFile& model) {
  for (size_t i = 0; i < model.header().tensors.size(); ++i) {
    const GgufTensor& tensor = model.header().tensors[i];
    std::string data(tensor.bytes, '\0');
    const ModelFile::Location location = model.TensorAt(i);
    ASSERT_TRUE(model.Read(location.part, location.offset, absl::MakeSpan(data)).ok());
    EXPECT_TRUE(data == GgufBuilder::DataOf(tensor.name, tensor.bytes)) << tensor.name;
  }
}

TEST(ModelFile, OpensOneFile) {
  const std::string path = Written(TinyLlama({.n_layer = 3}).Build(), "a-model.gguf");
  const auto model = ModelFile::Open(path);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->name(), "tiny");
  EXPECT_EQ((*model)->architecture(), "llama");
  EXPECT_EQ((*model)->n_layer(), 3);
  EXPECT_EQ((*model)->paths(), std::vector<std::string>{path});
  EXPECT_EQ((*model)->id().size(), 32);
  uint64_t bytes = 0;
  for (const GgufTensor& tensor : (*model)->header().tensors) bytes += tensor.bytes;
  EXPECT_EQ((*model)->tensor_bytes(), bytes);
  ExpectDataOfBuilder(**model);
}

TEST(ModelFile, IsNamedAfterItsFileWhenItHasNoName) {
  GgufBuilder builder = TinyLlama({.n_layer = 2});
  builder.Erase("general.name");
  EXPECT_EQ((*ModelFile::Open(Written(builder.Build(), "my model.v1.gguf")))->name(),
            "my model.v1");
  const std::string prefix = WriteParts(builder.BuildParts(2));
  EXPECT_EQ((*ModelFile::Open(PartPath(prefix, 2, 2)))->name(), "model");
}

// A fault of another system, ollama 16785: escapes of a file's metadata in a terminal.
TEST(ModelFile, ItsNameIsPrintableWhateverTheFileSays) {
  const auto name_of = [](absl::string_view name) {
    GgufBuilder builder = TinyLlama({.n_layer = 2});
    builder.Set("general.name", GgufValue::String(name));
    return (*ModelFile::Open(Written(builder.Build(), "a-model.gguf")))->name();
  };
  EXPECT_EQ(name_of("Mod\xe8le"), "Mod\ufffdle");
  EXPECT_EQ(name_of("\x1b[31mred\nforged"), "\\u001b[31mred\\nforged");
  EXPECT_EQ(name_of(" tiny\n"), "tiny");
  EXPECT_EQ(name_of(" \n"), "a-model");
  const PrintableText name = name_of(std::string(5'000, 'x'));
  EXPECT_EQ(name.str().size(), kShownNameBytesMax);
}

TEST(ModelFile, AFilesNameNeedNotBeUtf8) {
  GgufBuilder builder = TinyLlama({.n_layer = 2});
  builder.Erase("general.name");
  const std::string path = Written(builder.Build(), "mod\xe8le.gguf");
  const auto model = ModelFile::Open(path);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->name(), "mod\ufffdle");
  EXPECT_EQ((*model)->paths().front(), path);
  EXPECT_EQ(ModelFileStem(path), "mod\xe8le");
}

TEST(ModelFile, OpensFromAnyPart) {
  const GgufBuilder builder = TinyLlama({.n_layer = 4});
  const auto whole = ModelFile::Open(Written(builder.Build()));
  ASSERT_TRUE(whole.ok()) << whole.status();
  const std::string prefix = WriteParts(builder.BuildParts(3));
  std::string id;
  for (int part = 1; part <= 3; ++part) {
    const auto model = ModelFile::Open(PartPath(prefix, part, 3));
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->paths().size(), 3);
    EXPECT_EQ((*model)->paths()[1], PartPath(prefix, 2, 3));
    EXPECT_EQ((*model)->header().Find("split.count"), nullptr);
    EXPECT_EQ((*model)->header().Find("split.no"), nullptr);
    EXPECT_EQ((*model)->n_layer(), 4);
    ASSERT_EQ((*model)->header().tensors.size(), (*whole)->header().tensors.size());
    ExpectDataOfBuilder(**model);
    if (part == 1) id = (*model)->id();
    EXPECT_EQ((*model)->id(), id);
  }
}

TEST(ModelFile, PartsMayDifferInAlignment) {
  std::vector<std::string> parts = TinyLlama({.n_layer = 4}).BuildParts(2);
  GgufBuilder wide = TinyLlama({.n_layer = 4});
  wide.alignment = 128;
  parts[1] = wide.BuildParts(2)[1];
  const auto model = ModelFile::Open(PartPath(WriteParts(parts), 1, 2));
  ASSERT_TRUE(model.ok()) << model.status();
  ExpectDataOfBuilder(**model);
}

TEST(ModelFile, NamesAMissingPart) {
  const std::string prefix = WriteParts(TinyLlama({}).BuildParts(3));
  ASSERT_EQ(unlink(PartPath(prefix, 2, 3).c_str()), 0);
  for (const int part : {1, 3}) {
    EXPECT_THAT(ErrorOf(PartPath(prefix, part, 3), absl::StatusCode::kNotFound),
                AllOf(HasSubstr("part 2 of 3 is missing"), HasSubstr(PartPath(prefix, 2, 3))));
  }
}

TEST(ModelFile, RefusesPartsUnderAnotherName) {
  const std::vector<std::string> parts = TinyLlama({}).BuildParts(2);
  EXPECT_THAT(ErrorOf(Written(parts[0]), absl::StatusCode::kInvalidArgument),
              HasSubstr("is one of 2 parts, but is not named"));
  const std::string swapped = WriteParts({parts[1], parts[0]});
  EXPECT_THAT(ErrorOf(PartPath(swapped, 1, 2), absl::StatusCode::kInvalidArgument),
              HasSubstr("is not part 1 of 2: its header says part 2 of 2"));
  const std::string more = WriteParts({parts[0], parts[1], parts[1]});
  EXPECT_THAT(ErrorOf(PartPath(more, 1, 3), absl::StatusCode::kInvalidArgument),
              HasSubstr("is not part 1 of 3: its header says part 1 of 2"));
}

TEST(ModelFile, RefusesPartsOfAnotherModel) {
  std::vector<std::string> parts = TinyLlama({}).BuildParts(3);
  // Another number of parts.
  parts[2] = TinyLlama({}).BuildParts(4)[2];
  std::string prefix = WriteParts(parts);
  EXPECT_EQ(ModelFile::Open(PartPath(prefix, 1, 3)).status().code(),
            absl::StatusCode::kInvalidArgument);
  // Another number of tensors.
  parts[2] = TinyLlama({.n_layer = 5}).BuildParts(3)[2];
  prefix = WriteParts(parts);
  EXPECT_THAT(std::string(ModelFile::Open(PartPath(prefix, 1, 3)).status().message()),
              AllOf(StartsWith(PartPath(prefix, 3, 3)), HasSubstr("a part of another model")));
  // No part at all.
  parts[2] = TinyLlama({}).Build();
  prefix = WriteParts(parts);
  EXPECT_THAT(
      std::string(ModelFile::Open(PartPath(prefix, 1, 3)).status().message()),
      AllOf(StartsWith(PartPath(prefix, 3, 3)), HasSubstr("says no part number of no number")));
}

TEST(ModelFile, RefusesATensorInTwoParts) {
  GgufBuilder builder = TinyLlama({.n_layer = 2});
  builder.EraseTensor("blk.1.ffn_down.weight").Tensor("token_embd.weight", {8});
  EXPECT_THAT(ErrorOf(PartPath(WriteParts(builder.BuildParts(2)), 1, 2),
                      absl::StatusCode::kInvalidArgument),
              HasSubstr("token_embd.weight is in two of the parts"));
}

TEST(ModelFile, IdIsOfTheContent) {
  GgufBuilder builder = TinyLlama({.n_layer = 2});
  const std::string file = builder.Build();
  const std::string id = IdOf(Written(file, "a.gguf"));
  EXPECT_EQ(IdOf(Written(file, "b.gguf")), id);
  // Other weights under the same header.
  std::string other = file;
  for (size_t i = builder.BuildHeader().size(); i < other.size(); i += 64) other[i] ^= 1;
  EXPECT_NE(IdOf(Written(other)), id);
  builder.Set("general.name", GgufValue::String("tinz"));
  EXPECT_NE(IdOf(Written(builder.Build())), id);
}

TEST(ModelFile, RefusesFilesThatAreNoModel) {
  GgufBuilder builder = TinyLlama({.n_layer = 2});
  builder.Erase("llama.block_count");
  EXPECT_THAT(ErrorOf(Written(builder.Build()), absl::StatusCode::kInvalidArgument),
              HasSubstr("llama.block_count is missing"));
  for (const uint32_t layers : {0u, 1000u, ~0u}) {
    builder.Set("llama.block_count", GgufValue::U32(layers));
    EXPECT_THAT(ErrorOf(Written(builder.Build()), absl::StatusCode::kInvalidArgument),
                HasSubstr(absl::StrCat("llama.block_count is ", layers)));
  }
  builder.Erase("general.architecture");
  EXPECT_THAT(ErrorOf(Written(builder.Build()), absl::StatusCode::kInvalidArgument),
              HasSubstr("no general.architecture"));
}

TEST(ModelFile, RefusesPathsThatAreNoFile) {
  const std::string folder = MakeTestFolder();
  EXPECT_THAT(ErrorOf(folder, absl::StatusCode::kInvalidArgument), HasSubstr("is a folder"));
  EXPECT_THAT(ErrorOf(folder + "/none.gguf", absl::StatusCode::kNotFound),
              HasSubstr("No such file"));
  EXPECT_THAT(ErrorOf(Written(""), absl::StatusCode::kInvalidArgument), HasSubstr("it is empty"));
  EXPECT_THAT(ErrorOf(Written("hello, world"), absl::StatusCode::kInvalidArgument),
              HasSubstr("starts with \"hell\""));
  EXPECT_THAT(ErrorOf(Written("x") + "/below.gguf", absl::StatusCode::kNotFound),
              HasSubstr("ot a "));
  const std::string fifo = folder + "/fifo.gguf";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(ErrorOf(fifo, absl::StatusCode::kInvalidArgument), HasSubstr("not a regular file"));
}

TEST(ModelFile, RefusesAFileItMayNotRead) {
  const std::string path = Written(TinyLlama({}).Build());
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  // Root may read every file, so it is another user for a while.
  const bool is_root = geteuid() == 0;
  if (is_root && seteuid(65534) != 0) GTEST_SKIP() << "cannot be a user who may not read the file";
  ErrorOf(path, absl::StatusCode::kPermissionDenied);
  if (is_root) {
    ASSERT_EQ(seteuid(0), 0);
  }
}

TEST(ModelFile, SaysWhereAFileIsCutOff) {
  const std::string file = TinyLlama({}).Build();
  EXPECT_THAT(
      ErrorOf(Written(file.substr(0, file.size() - 5000)), absl::StatusCode::kInvalidArgument),
      AllOf(HasSubstr(absl::StrCat("cut off at byte ", file.size() - 5000)),
            HasSubstr("the header promises")));
}

TEST(ModelFile, ReadsOfAFileThatBecameShorterFail) {
  const std::string path = Written(TinyLlama({}).Build());
  const auto model = ModelFile::Open(path);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(truncate(path.c_str(), 1000), 0);
  std::string data(100, '\0');
  EXPECT_TRUE((*model)->Read(0, 900, absl::MakeSpan(data)).ok());
  const absl::Status status = (*model)->Read(0, 901, absl::MakeSpan(data));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith(path), HasSubstr("ends at byte 1000")));
}

// Overwritten in place, with the time set back; another file of the same size and time; gone;
// truncated in its last page.
TEST(ModelFile, DetectsAChangedFile) {
  namespace fs = std::filesystem;
  const std::string bytes = TinyLlama({}).Build();
  const auto write = [](const std::string& path) {
    const auto time = fs::last_write_time(path);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
    file.close();
    fs::last_write_time(path, time);
  };
  const auto replace = [&](const std::string& path) {
    const auto time = fs::last_write_time(path);
    WriteFile(path + ".new", bytes);
    fs::rename(path + ".new", path);
    fs::last_write_time(path, time);
  };
  const auto remove = [](const std::string& path) { fs::remove(path); };
  const auto cut = [&](const std::string& path) { fs::resize_file(path, bytes.size() - 1); };
  for (const std::function<void(const std::string&)>& change :
       std::vector<std::function<void(const std::string&)>>{write, replace, remove, cut}) {
    const std::string path = Written(bytes);
    const auto model = ModelFile::Open(path);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_TRUE((*model)->CheckUnchanged().ok());
    change(path);
    const absl::Status status = (*model)->CheckUnchanged();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(StartsWith(path), HasSubstr("load the model again")));
    const auto now = ModelFile::Open(path);
    if (now.ok()) {
      EXPECT_NE((*now)->file_key(), (*model)->file_key());
    }
  }
}

TEST(ModelFile, DetectsAChangedPart) {
  const std::string prefix = WriteParts(TinyLlama({}).BuildParts(3));
  const auto model = ModelFile::Open(PartPath(prefix, 1, 3));
  ASSERT_TRUE(model.ok()) << model.status();
  const std::string second = PartPath(prefix, 2, 3);
  std::filesystem::last_write_time(second, std::filesystem::file_time_type());
  EXPECT_THAT(std::string((*model)->CheckUnchanged().message()), StartsWith(second));
}

TEST(ModelFile, OpensAModelOf300Gigabytes) {
  constexpr uint64_t kRow = 8192, kRows = 98304, kLayers = 100;  // 3 GiB for each layer
  GgufBytes header;
  header.Start(kLayers, 2)
      .Entry("general.architecture", GgufValue::String("llama"))
      .Entry("llama.block_count", GgufValue::U32(kLayers));
  for (uint64_t i = 0; i < kLayers; ++i) {
    header.Tensor(absl::StrCat("blk.", i, ".w.weight"), {kRow, kRows}, 0, i * kRow * kRows * 4);
  }
  header.PadTo(32);
  const std::string path = Written(header.bytes());
  const auto bytes = static_cast<off_t>(header.bytes().size() + kLayers * kRow * kRows * 4);
  if (truncate(path.c_str(), bytes) != 0) {
    const std::string reason = std::strerror(errno);
    unlink(path.c_str());
    GTEST_SKIP() << "this file system has no sparse file of " << bytes << " bytes: " << reason;
  }
  rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  const auto model = ModelFile::Open(path);
  getrusage(RUSAGE_SELF, &after);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->tensor_bytes(), kLayers * kRow * kRows * 4);
#ifdef __APPLE__
  constexpr long kUnit = 1;
#else
  constexpr long kUnit = 1024;
#endif
  EXPECT_LT((after.ru_maxrss - before.ru_maxrss) * kUnit, 32 << 20);
  std::string data(16, 'x');
  EXPECT_TRUE((*model)->Read(0, static_cast<uint64_t>(bytes) - 16, absl::MakeSpan(data)).ok());
  EXPECT_EQ(data, std::string(16, '\0'));
  unlink(path.c_str());
}

}  // namespace
}  // namespace strata
