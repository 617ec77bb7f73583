#include "node/chat/template_check.h"

#include <utility>

#include "absl/synchronization/notification.h"
#include "node/chat/chat_format.h"
#include "transport/base/wall_clock.h"

namespace strata {

struct TemplateCheck::Pending {
  std::vector<ChatTemplate::Source> sources;
  OnChecked then;
  std::vector<ChatSupport> results;
};

void TemplateCheck::Check(std::vector<ChatTemplate::Source> sources, OnChecked then) {
  auto pending = std::make_shared<Pending>();
  pending->sources = std::move(sources);
  pending->then = std::move(then);
  CheckNext(std::move(pending));
}

void TemplateCheck::CheckNext(std::shared_ptr<Pending> pending) {
  while (pending->results.size() < pending->sources.size()) {
    const ChatTemplate::Source& source = pending->sources[pending->results.size()];
    if (source.text.empty()) {
      pending->results.push_back({absl::NotFoundError("the model's file has no chat template")});
      continue;
    }
    std::string key = source.Key();
    {
      absl::MutexLock lock(mu_);
      if (const auto known = known_.find(key); known != known_.end()) {
        pending->results.push_back(known->second);
        continue;
      }
    }
    pool_->Render(
        {.model = "", .client = ""},
        {.source = source, .messages = {{.role = "user", .content = "Hi"}}, .now = WallNow()},
        [this, pending, key = std::move(key)](auto prompt) {
          ChatSupport support;
          if (prompt.ok()) {
            const ChatFormat format = DecodeChatFormat(prompt->format);
            support.tools_in_words = prompt->tools_in_words;
            support.thinks = format.is_harmony || format.thoughts.is_taught;
          }
          if (absl::IsInvalidArgument(prompt.status())) support.status = prompt.status();
          if (prompt.ok() || absl::IsInvalidArgument(prompt.status())) {
            absl::MutexLock lock(mu_);
            if (known_.size() >= kKnownMax) known_.clear();
            known_[key] = support;
          }
          pending->results.push_back(std::move(support));
          CheckNext(pending);
        });
    return;
  }
  std::move(pending->then)(std::move(pending->results));
}

ChatSupport CheckTemplate(const ChatTemplate::Source& source) {
  TemplatePool pool({});
  TemplateCheck check(&pool);
  ChatSupport support;
  absl::Notification done;
  check.Check({source}, [&](std::vector<ChatSupport> results) {
    support = std::move(results[0]);
    done.Notify();
  });
  done.WaitForNotification();
  return support;
}

}  // namespace strata
