#include "transport/discovery/mdns_poll.h"

#include <sys/time.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "avahi-common/timeval.h"

// The two types that avahi-common/watch.h declares and leaves to the loop to define.

struct AvahiWatch {
  void Watch(AvahiWatchEvent wanted) {
    handle.reset();
    handle = loop->WatchFd(
        fd,
        {.readable = (wanted & AVAHI_WATCH_IN) != 0, .writable = (wanted & AVAHI_WATCH_OUT) != 0},
        [this](strata::EventLoop::FdEvents events) {
          // Avahi's own type for a set of them.
          // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange)
          happened = static_cast<AvahiWatchEvent>((events.readable ? AVAHI_WATCH_IN : 0) |
                                                  (events.writable ? AVAHI_WATCH_OUT : 0));
          callback(this, fd, happened, userdata);  // may free this
        });
  }

  strata::EventLoop* loop;
  int fd;
  AvahiWatchCallback callback;
  void* userdata;
  AvahiWatchEvent happened = {};
  std::unique_ptr<strata::EventLoop::Handle> handle;
};

struct AvahiTimeout {
  // `at` is of the wall clock; null: never.
  void Set(const timeval* at) {
    handle.reset();
    if (at == nullptr) return;
    const int64_t delay_us = std::max<int64_t>(0, -avahi_age(at));
    handle = loop->StartTimer({.delay_ms = static_cast<uint64_t>((delay_us + 999) / 1000)},
                              [this] { callback(this, userdata); });  // may free this
  }

  strata::EventLoop* loop;
  AvahiTimeoutCallback callback;
  void* userdata;
  std::unique_ptr<strata::EventLoop::Handle> handle;
};

namespace strata {
namespace {

EventLoop* LoopOf(const AvahiPoll* api) { return static_cast<EventLoop*>(api->userdata); }

}  // namespace

MdnsPoll::MdnsPoll(EventLoop* loop)
    : api_{
          .userdata = loop,
          .watch_new =
              [](const AvahiPoll* api, int fd, AvahiWatchEvent events, AvahiWatchCallback callback,
                 void* userdata) {
                auto* watch = new AvahiWatch{
                    .loop = LoopOf(api), .fd = fd, .callback = callback, .userdata = userdata};
                watch->Watch(events);
                return watch;
              },
          .watch_update = [](AvahiWatch* watch, AvahiWatchEvent events) { watch->Watch(events); },
          .watch_get_events = [](AvahiWatch* watch) { return watch->happened; },
          .watch_free = [](AvahiWatch* watch) { delete watch; },
          .timeout_new =
              [](const AvahiPoll* api, const timeval* at, AvahiTimeoutCallback callback,
                 void* userdata) {
                auto* timeout = new AvahiTimeout{
                    .loop = LoopOf(api), .callback = callback, .userdata = userdata};
                timeout->Set(at);
                return timeout;
              },
          .timeout_update = [](AvahiTimeout* timeout, const timeval* at) { timeout->Set(at); },
          .timeout_free = [](AvahiTimeout* timeout) { delete timeout; },
      } {}

}  // namespace strata
