// Whether models' chat templates can be read and take a plain chat, so that people hear of it when
// a model is loaded, and clients in the list of models. Each template is tried once. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "node/chat/chat_template.h"
#include "node/chat/template_pool.h"

namespace strata {

struct ChatSupport {
  absl::Status status;          // not OK: chats fail, and why
  bool tools_in_words = false;  // ChatTemplate::Prompt's
  bool thinks = false;          // it shows thoughts
};

class TemplateCheck {
 public:
  // REQUIRES: `pool` outlives this, which outlives the calls of `then`.
  explicit TemplateCheck(TemplatePool* pool) : pool_(pool) {}

  // Calls `then` once, on this thread or one of the pool's, with one result for each source. A
  // source without text is no template. What cannot be tried at present, for want of a process,
  // passes.
  using OnChecked = absl::AnyInvocable<void(std::vector<ChatSupport>) &&>;
  void Check(std::vector<ChatTemplate::Source> sources, OnChecked then);

 private:
  static constexpr size_t kKnownMax = 256;

  struct Pending;
  void CheckNext(std::shared_ptr<Pending> pending);  // shared with a callback of the pool

  TemplatePool* const pool_;
  absl::Mutex mu_;
  std::map<std::string, ChatSupport> known_ ABSL_GUARDED_BY(mu_);  // by ChatTemplate::Source::Key()
};

// Blocks; starts a process for it.
ChatSupport CheckTemplate(const ChatTemplate::Source& source);

}  // namespace strata
