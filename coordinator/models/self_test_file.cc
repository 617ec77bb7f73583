#include "coordinator/models/self_test_file.h"

#include <algorithm>
#include <utility>

#include "absl/log/log.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/generation/self_tests.h"
#include "shard/model/weight_blocks.h"
#include "transport/security/private_file.h"

namespace strata {
namespace {

// Then the BLAKE3 of the rest, which is a SelfTestList.
constexpr absl::string_view kHead = "strata self-tests 1\n";

}  // namespace

SelfTestFile::SelfTestFile(std::string path) : path_(std::move(path)) {
  if (!path_.empty()) Read();
}

SelfTestFile::~SelfTestFile() {
  {
    absl::MutexLock lock(mu_);
    stopping_ = true;
  }
  if (writer_.joinable()) writer_.join();
}

void SelfTestFile::Read() {
  const auto file = ReadPrivateFile(path_);
  if (absl::IsNotFound(file.status())) return;
  absl::Status status = file.status();
  absl::MutexLock lock(mu_);
  if (status.ok()) {
    absl::string_view bytes = file->Reveal();
    const bool is_whole =
        absl::ConsumePrefix(&bytes, kHead) && bytes.size() >= kWeightHashBytes &&
        HashOfBytes(bytes.substr(kWeightHashBytes)) == bytes.substr(0, kWeightHashBytes) &&
        tests_.ParseFromString(std::string(bytes.substr(kWeightHashBytes)));
    if (is_whole) return;
    status = absl::DataLossError(absl::StrCat(path_, " is damaged, or of another version"));
  }
  tests_.Clear();
  LOG(WARNING) << "earlier self-tests are not known: " << status.message();
}

void SelfTestFile::Keep(const wire::SelfTest& test) {
  if (test.points().empty()) return;
  absl::MutexLock lock(mu_);
  auto* const tests = tests_.mutable_tests();
  tests->erase(
      std::remove_if(tests->begin(), tests->end(),
                     [&test](const wire::SelfTest& other) { return IsSameSelfTest(test, other); }),
      tests->end());
  *tests->Add() = test;
  while (tests->size() > 1 && (static_cast<size_t>(tests->size()) > kSelfTestsMax ||
                               tests_.ByteSizeLong() > kSelfTestsBytesMax)) {
    tests->DeleteSubrange(0, 1);
  }
  changed_ = true;
  if (!path_.empty() && !writer_.joinable()) writer_ = std::thread([this] { WriteChanges(); });
}

std::vector<wire::SelfTest> SelfTestFile::Of(absl::string_view model_id) const {
  std::vector<wire::SelfTest> found;
  absl::MutexLock lock(mu_);
  for (const wire::SelfTest& test : tests_.tests()) {
    if (test.model_id() == model_id) found.push_back(test);
  }
  return found;
}

void SelfTestFile::WriteChanges() {
  while (true) {
    std::string tests;
    {
      absl::MutexLock lock(mu_);
      const auto due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return changed_ || stopping_; };
      mu_.Await(absl::Condition(&due));
      if (!std::exchange(changed_, false)) return;
      tests = tests_.SerializeAsString();
    }
    const absl::Status written = WritePrivateFile(
        path_, absl::StrCat(kHead, HashOfBytes(tests), tests), PrivateFileMode::kReplace);
    if (!written.ok()) LOG(WARNING) << "self-tests are not kept: " << written.message();
  }
}

}  // namespace strata
