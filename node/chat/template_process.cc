#include "node/chat/template_process.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>

#ifdef __APPLE__
#include <mach/mach.h>
#endif

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "node/chat/chat_format.h"
#include "node/chat/jinja_template.h"
#include "node/chat/template_frames.h"
#include "node/workers/child_process.h"
#include "shard/device/memory.h"

namespace strata {
namespace {

constexpr size_t kTemplatesMax = 32;  // parsed templates in the cache
constexpr absl::Duration kCheckEvery = absl::Milliseconds(5);
// After a larger request freed memory goes back to the system.
constexpr size_t kLargeRequestBytes = 1 << 20;
// Address space that is not memory: arenas and stacks of threads.
constexpr uint64_t kAddressesBytes = 512ull * 1024 * 1024;

// Processor time of this process, so that a busy machine makes no template slow.
absl::Duration ProcessorTime() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

struct Memory {
  uint64_t addresses = 0, resident = 0;  // bytes
};

// Not getrusage(): on Linux its maximum begins with that of the process that started this one.
Memory MemoryNow() {
  Memory memory;
#ifdef __APPLE__
  mach_task_basic_info info;
  mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
  if (task_info(mach_task_self(), MACH_TASK_BASIC_INFO, reinterpret_cast<task_info_t>(&info),
                &count) == KERN_SUCCESS) {
    memory = {.addresses = info.virtual_size, .resident = info.resident_size};
  }
#else
  // Opened once: later this process may open nothing.
  static const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  char text[128] = {};
  if (pread(file, text, sizeof(text) - 1, 0) > 0) {
    std::sscanf(text, "%" SCNu64 " %" SCNu64, &memory.addresses, &memory.resident);
  }
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  memory.addresses *= page;
  memory.resident *= page;
#endif
  return memory;
}

// What got out of Jinja2's sandbox, and then past the interpreter's seal, could open no file and no
// connection and start no process.
void GiveUpRights() {
  SealJinja();
  const rlimit one = {1, 1}, none = {0, 0};  // descriptor 0 is in use
  setrlimit(RLIMIT_NOFILE, &one);
  setrlimit(RLIMIT_NPROC, &none);
}

// Announces itself with an empty frame. Serves requests on a thread with a large stack, while the
// main thread checks the limits.
class TemplateServer {
 public:
  explicit TemplateServer(const TemplateLimits& limits) : limits_(limits) {}

  absl::Status Run() {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, kTemplateStackBytes);
    pthread_t thread;
    const auto serve = [](void* self) -> void* {
      static_cast<TemplateServer*>(self)->Serve();
      return nullptr;
    };
    const int error = pthread_create(&thread, &attributes, serve, this);
    pthread_attr_destroy(&attributes);
    if (error != 0) return absl::ErrnoToStatus(error, "cannot start a thread");
    Watch();
    pthread_join(thread, nullptr);
    return absl::OkStatus();
  }

 private:
  uint64_t Grown() const {
    const uint64_t now = MemoryNow().resident;
    return now - std::min(now, first_.resident);
  }

  // Until Serve() ends.
  void Watch() {
    const auto changed = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return done_ || busy_since_; };
    const auto done = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return done_; };
    absl::MutexLock lock(mu_);
    while (true) {
      mu_.Await(absl::Condition(&changed));
      if (mu_.AwaitWithTimeout(absl::Condition(&done), kCheckEvery)) return;
      if (!busy_since_) continue;
      if (Grown() > limits_.memory_bytes) _exit(kTemplateMemoryExit);
      if (ProcessorTime() - *busy_since_ > absl::Milliseconds(limits_.time_ms)) {
        _exit(kTemplateTimeExit);
      }
    }
  }

  void Serve() {
    GiveUpRights();  // the last thread has been started
    bool connected = WriteTemplateFrame(kChildSocket, "", SteadyTime::InfiniteFuture()).ok();
    while (connected) {
      auto bytes =
          ReadTemplateFrame(kChildSocket, kTemplateRequestBytesMax, SteadyTime::InfiniteFuture());
      if (!bytes.ok()) break;
      SetBusy(true);
      const absl::Duration began = ProcessorTime();
      const bool large = bytes->size() > kLargeRequestBytes;
      TemplateResult result;
      {
        const auto request = DecodeTemplateRequest(*bytes);
        if (!request.ok()) break;
        *bytes = std::string();
        result.prompt = Render(*request);
      }
      if (large) ReleaseFreedMemory();
      result.grown_bytes = Grown();
      result.used_us = absl::ToInt64Microseconds(ProcessorTime() - began);
      connected = Send(result);
      SetBusy(false);
    }
    absl::MutexLock lock(mu_);
    done_ = true;
  }

  absl::StatusOr<ChatTemplate::Prompt> Render(const TemplateRequest& request) {
    const std::string key = request.source.Key();
    auto known = templates_.find(key);
    if (known == templates_.end()) {
      auto read = ChatTemplate::Parse(request.source);
      if (!read.ok()) return ExitIfExhausted(read.status());
      if (templates_.size() >= kTemplatesMax) templates_.clear();
      const std::string format = EncodeChatFormat(LearnChatFormat(**read, request.source));
      known = templates_.emplace(key, Known{*std::move(read), format}).first;
    }
    Send({.is_read = true});
    auto prompt = known->second.chat_template->Render(request.messages, request.tools, request.now,
                                                      request.options);
    if (!prompt.ok()) return ExitIfExhausted(prompt.status());
    prompt->format = known->second.format;
    return prompt;
  }

  static absl::Status ExitIfExhausted(absl::Status status) {
    if (absl::IsResourceExhausted(status)) _exit(kTemplateMemoryExit);
    return status;
  }

  static bool Send(const TemplateResult& result) {
    return WriteTemplateFrame(kChildSocket, EncodeTemplateResult(result),
                              SteadyTime::InfiniteFuture())
        .ok();
  }

  void SetBusy(bool busy) {
    absl::MutexLock lock(mu_);
    busy_since_.reset();
    if (busy) busy_since_ = ProcessorTime();
  }

  struct Known {
    std::shared_ptr<const ChatTemplate> chat_template;  // shared, as Parse() gives it
    std::string format;
  };

  const TemplateLimits limits_;
  const Memory first_ = MemoryNow();

  // Serving thread.
  std::map<std::string, Known> templates_;

  absl::Mutex mu_;
  std::optional<absl::Duration> busy_since_ ABSL_GUARDED_BY(mu_);  // in processor time
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

absl::Status RunTemplateProcess(const TemplateLimits& limits) {
  PreferOomKill();
  if (absl::Status status = StartJinja(); !status.ok()) return status;
  // This limit stops a template that allocates much at once; Watch() one that grows bit by bit.
  const rlim_t addresses =
      MemoryNow().addresses + kTemplateStackBytes + limits.memory_bytes + kAddressesBytes;
  const rlimit limit = {addresses, addresses};
  setrlimit(RLIMIT_AS, &limit);
  std::set_new_handler([] { _exit(kTemplateMemoryExit); });
  return TemplateServer(limits).Run();
}

}  // namespace strata
