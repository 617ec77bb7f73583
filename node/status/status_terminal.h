// The terminal while `strata status --watch` draws on it: unbuffered keys, frames on the alternate
// screen, and the terminal is restored at the end. Drawing never waits for a slow terminal.
//
// Loop thread only.
#pragma once

#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ftxui/screen/terminal.hpp"
#include "node/status/status_keys.h"
#include "transport/base/event_loop.h"

namespace strata {

class StatusTerminal {
 public:
  struct Options {
    int in_fd = 0;  // keys, if it is a terminal
    int out_fd = 1;
  };
  // On the loop's thread.
  struct Callbacks {
    absl::AnyInvocable<void(const std::vector<Key>&)> on_keys;
    absl::AnyInvocable<void()> on_gone;  // the terminal was closed
  };
  // `loop` and the descriptors outlive it. kFailedPrecondition: out_fd is no terminal, or a dumb
  // one; else the system's errors.
  static absl::StatusOr<std::unique_ptr<StatusTerminal>> Open(EventLoop* loop, Options options,
                                                              Callbacks callbacks);
  // Restores the terminal; waits a moment if it is slow.
  virtual ~StatusTerminal() = default;

  // The current size.
  virtual ftxui::Dimensions size() const = 0;
  // Draws lines of the terminal's size, from its upper left. A slow terminal gets only the newest
  // frame.
  virtual void Draw(absl::string_view frame) = 0;
  // Restores the terminal, runs `fn`, and takes the terminal again, with an empty screen.
  virtual void WhileRestored(absl::AnyInvocable<void() &&> fn) = 0;
};

}  // namespace strata
