#include "coordinator/models/desired_state_file.h"

#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "transport/base/state_file.h"
#include "transport/base/thread_name.h"
#include "transport/security/private_file.h"

namespace strata {
namespace {

static_assert(kDesiredStatesMax * (kDesiredStateBytesMax + 1024) <= kPrivateFileBytesMax);
constexpr absl::Duration kWriteAgain = absl::Minutes(1);

absl::StatusOr<std::string> ReadDesired(const std::string& path) {
  const absl::StatusOr<Secret> file = ReadPrivateFile(path);
  if (!file.ok()) return file.status();
  return std::string(file->Reveal());
}

}  // namespace

DesiredStateFile::DesiredStateFile(std::string path, const std::string& owner)
    : path_(std::move(path)) {
  absl::MutexLock lock(mu_);
  const auto opened = store_.Open(ReadDesired(path_), owner);
  if (opened.ok()) {
    opened_ = *opened;
    return;
  }
  store_.OnSetAside(
      absl::Status(opened.status().code(), absl::StrCat(path_, ": ", opened.status().message())),
      SetAside(path_));
  LOG(WARNING) << store_.problem();
}

DesiredStateFile::~DesiredStateFile() {
  {
    absl::MutexLock lock(mu_);
    stopping_ = true;
  }
  if (writer_.joinable()) writer_.join();
}

void DesiredStateFile::Keep(const DesiredStatePtr& desired, const std::string& owner) {
  absl::MutexLock lock(mu_);
  store_.Keep(desired, owner);
  if (store_.is_due() && !writer_.joinable()) {
    writer_ = std::thread([this] {
      NameThread("desired-state");
      WriteChanges();
    });
  }
}

std::vector<std::string> DesiredStateFile::Problems() const {
  absl::MutexLock lock(mu_);
  std::vector<std::string> problems;
  for (const std::string& one : {store_.problem(), store_.write_problem()}) {
    if (!one.empty()) problems.push_back(one);
  }
  return problems;
}

void DesiredStateFile::WriteChanges() {
  while (true) {
    std::string bytes, before;
    {
      const auto due = [this]()
                           ABSL_SHARED_LOCKS_REQUIRED(mu_) { return store_.is_due() || stopping_; };
      absl::MutexLock lock(mu_);
      const absl::Duration limit = store_.has_failed() ? kWriteAgain : absl::InfiniteDuration();
      if (!mu_.AwaitWithTimeout(absl::Condition(&due), limit)) store_.TryAgain();
      if (!store_.is_due()) return;
      before = store_.write_problem();
      bytes = store_.BeginWrite();
    }
    const absl::Status written = WritePrivateFile(path_, bytes, PrivateFileMode::kReplace);
    DesiredVersion settled;
    {
      absl::MutexLock lock(mu_);
      store_.EndWrite(written);
      settled = store_.settled();
      if (!written.ok() && store_.write_problem() != before) LOG(WARNING) << store_.write_problem();
    }
    if (on_settled_) on_settled_(settled);
  }
}

}  // namespace strata
