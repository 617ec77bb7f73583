// Lets libavahi-core run on the loop: its AvahiPoll in terms of EventLoop. Loop thread.
#pragma once

#include "avahi-common/watch.h"
#include "transport/base/event_loop.h"

namespace strata {

class MdnsPoll {
 public:
  // `loop` outlives it; it outlives the AvahiServer that uses it.
  explicit MdnsPoll(EventLoop* loop);
  MdnsPoll(const MdnsPoll&) = delete;
  MdnsPoll& operator=(const MdnsPoll&) = delete;

  const AvahiPoll* api() const { return &api_; }

 private:
  AvahiPoll api_;
};

}  // namespace strata
