// A responder that passes everything on to another one; what derives from it changes a part.
#pragma once

#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "node/http/http_server.h"

namespace strata {

class ForwardingResponder : public HttpResponder {
 public:
  explicit ForwardingResponder(std::shared_ptr<HttpResponder> to) : to_(std::move(to)) {}

  void Answer(HttpResponse response) override { to_->Answer(std::move(response)); }
  void Begin(HttpResponse head) override { to_->Begin(std::move(head)); }
  void Write(absl::string_view bytes) override { to_->Write(bytes); }
  void End() override { to_->End(); }
  void OnGone(absl::AnyInvocable<void() &&> fn) override { to_->OnGone(std::move(fn)); }
  void Run(absl::AnyInvocable<void() &&> fn) override { to_->Run(std::move(fn)); }

 private:
  const std::shared_ptr<HttpResponder> to_;  // not shared
};

}  // namespace strata
