#include "transport/base/host_lookup.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "transport/base/mutex.h"
#include "transport/base/thread_name.h"

namespace strata {
namespace {

HostAddresses AddressesOf(const std::string& host) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &first); error != 0) {
    const std::string why =
        absl::StrCat(host, ": ", error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error));
    return error == EAI_NONAME ? absl::NotFoundError(why) : absl::UnavailableError(why);
  }
  const absl::Cleanup free_all = [first] { freeaddrinfo(first); };
  std::vector<std::string> addresses;
  for (const addrinfo* each = first; each != nullptr; each = each->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(each->ai_addr, each->ai_addrlen, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) == 0 &&
        !absl::c_linear_search(addresses, text)) {
      addresses.emplace_back(text);
    }
  }
  if (addresses.empty()) return absl::NotFoundError(absl::StrCat(host, ": has no address"));
  return addresses;
}

struct LookUp {
  Mutex mu;
  EventLoop* loop ABSL_GUARDED_BY(mu) = nullptr;    // null: cancelled
  absl::AnyInvocable<void(HostAddresses) &&> done;  // of the loop thread; null: cancelled
};

class LookUpHandle final : public EventLoop::Handle {
 public:
  explicit LookUpHandle(std::shared_ptr<LookUp> look_up) : look_up_(std::move(look_up)) {}
  ~LookUpHandle() override {
    look_up_->done = nullptr;
    MutexLock lock(&look_up_->mu);
    look_up_->loop = nullptr;
  }

 private:
  const std::shared_ptr<LookUp> look_up_;  // shared with the thread
};

}  // namespace

std::unique_ptr<EventLoop::Handle> LookUpHost(EventLoop* loop, const std::string& host,
                                              absl::AnyInvocable<void(HostAddresses) &&> done) {
  auto look_up = std::make_shared<LookUp>();
  {
    MutexLock lock(&look_up->mu);
    look_up->loop = loop;
  }
  look_up->done = std::move(done);
  std::thread([look_up, host] {
    NameThread("host lookup");
    HostAddresses addresses = AddressesOf(host);
    MutexLock lock(&look_up->mu);
    if (look_up->loop == nullptr) return;
    look_up->loop->Post([look_up, addresses = std::move(addresses)]() mutable {
      auto done = std::move(look_up->done);
      if (done != nullptr) std::move(done)(std::move(addresses));
    });
  }).detach();
  return std::make_unique<LookUpHandle>(std::move(look_up));
}

}  // namespace strata
