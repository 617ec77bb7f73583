#include "node/chat/template_frames.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using Json = nlohmann::json;

#ifdef MSG_NOSIGNAL
constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
#else
constexpr int kFlags = MSG_DONTWAIT;  // a node ignores SIGPIPE
#endif
constexpr size_t kReadBytes = 1024 * 1024;

std::string Cbor(const Json& json) {
  std::string bytes;
  Json::to_cbor(json, bytes);
  return bytes;
}

// Waits for `events`. kDeadlineExceeded.
absl::Status Await(int socket, short events, SteadyTime deadline) {
  while (true) {
    int ms = -1;
    if (deadline != SteadyTime::InfiniteFuture()) {
      const int64_t whole = absl::ToInt64Milliseconds(
          absl::Ceil(deadline - SteadyTime::Now(), absl::Milliseconds(1)));
      if (whole <= 0) return absl::DeadlineExceededError("no answer in time");
      ms = static_cast<int>(std::min<int64_t>(whole, 60'000));
    }
    pollfd fd = {.fd = socket, .events = events, .revents = 0};
    if (poll(&fd, 1, ms) > 0) return absl::OkStatus();
  }
}

absl::Status Gone() { return absl::UnavailableError("nobody is at the other end"); }

bool WantsToWait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// Fills [data, data + size).
absl::Status ReadAll(int socket, char* data, size_t size, SteadyTime deadline) {
  while (size > 0) {
    const ssize_t n = recv(socket, data, std::min(size, kReadBytes), kFlags);
    if (n == 0 || (n < 0 && !WantsToWait())) return Gone();
    if (n < 0) {
      if (auto status = Await(socket, POLLIN, deadline); !status.ok()) return status;
      continue;
    }
    data += n;
    size -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeTemplateRequest(const TemplateRequest& question) {
  Json messages = Json::array();
  for (const ChatMessage& message : question.messages) {
    Json calls = Json::array();
    for (const ChatToolCall& call : message.calls) {
      calls.push_back({call.id, call.name, call.arguments});
    }
    messages.push_back(
        {message.role, message.content, message.name, message.call_id, std::move(calls)});
  }
  Json tools = Json::array();
  if (question.tools.offered()) {
    for (const ChatTool& tool : question.tools.list) tools.push_back({tool.name, tool.json});
  }
  return Cbor({{"template", question.source.text},
               {"bos", question.source.bos},
               {"eos", question.source.eos},
               {"messages", std::move(messages)},
               {"tools", std::move(tools)},
               {"now_us", absl::ToUnixMicros(question.now)},
               {"opening", question.wish.ends_with_opening},
               {"continues", question.wish.continues_last},
               {"variables", question.wish.variables}});
}

absl::StatusOr<TemplateRequest> DecodeTemplateRequest(absl::string_view bytes) {
  TemplateRequest question;
  try {
    const Json json = Json::from_cbor(bytes);
    question.source = {.text = json.at("template"), .bos = json.at("bos"), .eos = json.at("eos")};
    for (const Json& message : json.at("messages")) {
      question.messages.push_back({.role = message.at(0),
                                   .content = message.at(1),
                                   .name = message.at(2),
                                   .call_id = message.at(3)});
      for (const Json& call : message.at(4)) {
        question.messages.back().calls.push_back(
            {.id = call.at(0), .name = call.at(1), .arguments = call.at(2)});
      }
    }
    for (const Json& tool : json.at("tools")) {
      question.tools.list.push_back({.name = tool.at(0), .json = tool.at(1), .parameters = {}});
    }
    question.now = absl::FromUnixMicros(json.at("now_us"));
    question.wish = {.ends_with_opening = json.at("opening"),
                     .continues_last = json.at("continues"),
                     .variables = json.at("variables")};
  } catch (const Json::exception& error) {
    return absl::DataLossError(error.what());
  }
  return question;
}

std::string EncodeTemplateResult(const TemplateResult& answer) {
  if (answer.is_read) return Cbor({{"read", true}});
  Json json = {{"grown", answer.grown_bytes}, {"used_us", answer.used_us}};
  if (answer.prompt.ok()) {
    json["text"] = answer.prompt->text;
    json["bos"] = answer.prompt->has_bos;
  } else {
    json["error"] = answer.prompt.status().message();
  }
  return Cbor(json);
}

absl::StatusOr<TemplateResult> DecodeTemplateResult(absl::string_view bytes) {
  TemplateResult answer;
  try {
    const Json json = Json::from_cbor(bytes);
    if (json.contains("read")) {
      answer.is_read = true;
      return answer;
    }
    answer.grown_bytes = json.at("grown");
    answer.used_us = json.at("used_us");
    if (json.contains("error")) {
      answer.prompt = absl::InvalidArgumentError(json.at("error").get<std::string>());
    } else {
      answer.prompt = ChatTemplate::Prompt{.text = json.at("text"), .has_bos = json.at("bos")};
    }
  } catch (const Json::exception& error) {
    return absl::DataLossError(error.what());
  }
  return answer;
}

absl::Status WriteTemplateFrame(int socket, absl::string_view bytes, SteadyTime deadline) {
  char size[8];
  for (int i = 0; i < 8; ++i) size[i] = static_cast<char>(uint64_t{bytes.size()} >> (8 * i));
  for (absl::string_view part : {absl::string_view(size, sizeof(size)), bytes}) {
    while (!part.empty()) {
      const ssize_t n = send(socket, part.data(), part.size(), kFlags);
      if (n < 0 && !WantsToWait()) return Gone();
      if (n < 0) {
        if (auto status = Await(socket, POLLOUT, deadline); !status.ok()) return status;
        continue;
      }
      part.remove_prefix(static_cast<size_t>(n));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadTemplateFrame(int socket, size_t bytes_max, SteadyTime deadline) {
  char prefix[8];
  if (auto status = ReadAll(socket, prefix, sizeof(prefix), deadline); !status.ok()) return status;
  uint64_t size = 0;
  for (int i = 7; i >= 0; --i) size = size << 8 | static_cast<unsigned char>(prefix[i]);
  if (size > bytes_max) return absl::DataLossError("a frame that is too large");
  std::string bytes(size, '\0');
  if (auto status = ReadAll(socket, bytes.data(), size, deadline); !status.ok()) return status;
  return bytes;
}

}  // namespace strata
