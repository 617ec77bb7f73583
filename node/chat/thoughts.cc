#include "node/chat/thoughts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "node/chat/tool_call_form.h"

namespace strata {
namespace {

struct Marks {
  absl::string_view open, close;
};
// Of families whose templates do not show a thought in the history, most particular first.
constexpr Marks kKnown[] = {{"<seed:think>", "</seed:think>"},
                            {"<|START_THINKING|>", "<|END_THINKING|>"},
                            {"<|channel>thought", "<channel|>"},
                            {"<|inner_prefix|>", "<|inner_suffix|>"},
                            {"<|begin_of_thought|>", "<|end_of_thought|>"},
                            {"◁think▷", "◁/think▷"},
                            {"[THINK]", "[/THINK]"},
                            {"<think>", "</think>"},
                            {"<thinking>", "</thinking>"},
                            {"<thought>", "</thought>"},
                            {"<reasoning>", "</reasoning>"}};

ThoughtForm FormOf(const Marks& marks, bool is_taught) {
  return {.open = std::string(marks.open),
          .close = std::string(marks.close),
          .close_text = absl::StrCat("\n", marks.close, "\n\n"),
          .is_taught = is_taught};
}

// The marks beside the thought in a message that shows it.
std::optional<ThoughtForm> FormIn(absl::string_view rendered, absl::string_view plain) {
  const size_t thought = rendered.find(kProbeThought);
  if (thought == absl::string_view::npos) return std::nullopt;
  const size_t behind = thought + kProbeThought.size();
  const size_t words = rendered.find(kProbeWords, behind);
  if (words == absl::string_view::npos) return std::nullopt;
  const absl::string_view before = rendered.substr(0, thought);
  const absl::string_view close_text = rendered.substr(behind, words - behind);
  for (const Marks& known : kKnown) {
    if (absl::EndsWith(absl::StripTrailingAsciiWhitespace(before), known.open) &&
        absl::StartsWith(absl::StripLeadingAsciiWhitespace(close_text), known.close)) {
      ThoughtForm form = FormOf(known, true);
      form.close_text = std::string(close_text);
      return form;
    }
  }
  // Others are tags of one line.
  const size_t tag = before.find_last_of("<[");
  absl::string_view open =
      tag == absl::string_view::npos ? "" : absl::StripAsciiWhitespace(before.substr(tag));
  const absl::string_view close = absl::StripAsciiWhitespace(close_text);
  // What is before the content of any message is no mark of a thought.
  const bool is_marked = !absl::StartsWith(plain, absl::StrCat(before, kProbeWords));
  if (!is_marked) open = "";
  if ((is_marked && open.empty()) || close.empty() || absl::StrContains(open, '\n') ||
      absl::StrContains(close, '\n') || !absl::StrContains("<[", close[0])) {
    return std::nullopt;
  }
  return ThoughtForm{.open = std::string(open),
                     .close = std::string(close),
                     .close_text = std::string(close_text),
                     .is_taught = true};
}

}  // namespace

bool ThoughtForm::IsOpenIn(absl::string_view prompt) const {
  return absl::EndsWith(absl::StripTrailingAsciiWhitespace(prompt), open);
}

bool ThoughtForm::MayFollow(absl::string_view prompt) const {
  return !absl::EndsWith(absl::StripTrailingAsciiWhitespace(prompt), close);
}

ThoughtForm LearnThoughtForm(const ThoughtProbe& rendered, absl::string_view chat_template) {
  if (auto form = FormIn(rendered.thought, rendered.plain)) return *std::move(form);
  for (const Marks& known : kKnown) {
    if (!absl::StrContains(chat_template, known.close)) continue;
    ThoughtForm form = FormOf(known, true);
    // A message without a thought may show how one ends.
    const absl::string_view before = rendered.plain.substr(0, rendered.plain.rfind(kProbeWords));
    const size_t close = before.rfind(known.close);
    if (close != absl::string_view::npos &&
        SkipSpace(before, close + known.close.size()) == before.size()) {
      form.close_text = std::string(before.substr(close));
    }
    return form;
  }
  return FormOf({"<think>", "</think>"}, false);
}

ThoughtSplitter::ThoughtSplitter(Options options) : options_(std::move(options)) {
  if (options_.begins_open) in_ = In::kThought;
  if (!options_.splits) in_ = In::kContent;
}

ThoughtSplitter::Piece ThoughtSplitter::Add(absl::string_view text) {
  Piece piece;
  if (in_ == In::kContent && pending_.empty()) {
    piece.content = std::string(text);
    return piece;
  }
  pending_.append(text);
  while (!pending_.empty() && Read(&piece)) {
  }
  return piece;
}

// Does what it can with pending_; false: more has to come.
bool ThoughtSplitter::Read(Piece* piece) {
  const absl::string_view text = pending_;
  const auto skip = [this](size_t bytes) {
    pending_.erase(0, bytes);
    read_ += bytes;
  };
  switch (in_) {
    case In::kStart:
    case In::kBehind: {
      size_t at = 0;
      const MarkMatch match =
          options_.form.open.empty() ? MarkMatch::kNo : MatchMark(text, options_.form.open, &at);
      if (match == MarkMatch::kPartial) return false;
      if (match == MarkMatch::kYes) {
        skip(at);
        in_ = In::kThought;
        if (had_thought_) any_ = false;
        return true;
      }
      if (in_ == In::kBehind) skip(SkipSpace(text, 0));
      in_ = In::kContent;
      return true;
    }
    case In::kThought: {
      if (!any_) {
        skip(SkipSpace(text, 0));
        if (pending_.empty()) return false;
        // Some models repeat the mark that the prompt ends with.
        size_t at = 0;
        const bool may_repeat =
            options_.begins_open && thought_end_ == 0 && !options_.form.open.empty();
        const MarkMatch again =
            may_repeat ? MatchMark(pending_, options_.form.open, &at) : MarkMatch::kNo;
        if (again == MarkMatch::kPartial) return false;
        if (again == MarkMatch::kYes) {
          skip(at);
          return true;
        }
      }
      const std::string& close = options_.form.close;
      const size_t end = pending_.find(close);
      size_t kept =
          end != std::string::npos ? end : pending_.size() - BytesOfBegunMark(pending_, close);
      // Spaces before the mark are not the thought's.
      while (kept > 0 && absl::ascii_isspace(static_cast<unsigned char>(pending_[kept - 1]))) {
        --kept;
      }
      if (kept > 0) {
        if (!any_ && had_thought_) piece->thought += "\n\n";
        any_ = true;
      }
      piece->thought.append(pending_, 0, kept);
      if (end == std::string::npos) {
        skip(kept);
        return false;
      }
      skip(end + close.size());
      thought_end_ = read_;
      had_thought_ = had_thought_ || any_;
      in_ = In::kBehind;
      return true;
    }
    case In::kContent:
      piece->content += pending_;
      skip(pending_.size());
      return false;
  }
  return false;
}

ThoughtSplitter::Piece ThoughtSplitter::Finish() {
  Piece piece;
  if (in_ == In::kThought) {
    const absl::string_view rest = absl::StripAsciiWhitespace(pending_);
    // One byte may be anything; more of a mark is a part of it.
    const bool is_mark = rest.size() > 1 && absl::StartsWith(options_.form.close, rest);
    if (!rest.empty() && !is_mark) {
      piece.thought = std::string(absl::StripTrailingAsciiWhitespace(pending_));
    }
  } else if (in_ != In::kBehind || SkipSpace(pending_, 0) < pending_.size()) {
    piece.content = std::exchange(pending_, {});
  }
  pending_.clear();
  return piece;
}

}  // namespace strata
