// The terminal while `strata status --watch` draws on it: its keys come one by one, frames go to
// its other screen, and it is as before when this is gone. Drawing never waits for a slow terminal.
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
  // `loop` and the descriptors outlive it. kFailedPrecondition: out_fd is no terminal, or one that
  // cannot draw; else the system's errors.
  static absl::StatusOr<std::unique_ptr<StatusTerminal>> Open(EventLoop* loop, Options options,
                                                              Callbacks callbacks);
  // Waits a moment for a slow terminal to take what makes it as it was.
  virtual ~StatusTerminal() = default;

  // As it is now.
  virtual ftxui::Dimensions size() const = 0;
  // Lines of the terminal's size, from its upper left. Of several while the terminal is slow, the
  // newest is drawn.
  virtual void Draw(absl::string_view frame) = 0;
  // Gives the terminal back, runs `fn`, and takes it again: the screen is empty then.
  virtual void WhileGivenBack(absl::AnyInvocable<void() &&> fn) = 0;
};

}  // namespace strata
