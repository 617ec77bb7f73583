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
      if (whole <= 0) return absl::DeadlineExceededError("no result in time");
      ms = static_cast<int>(std::min<int64_t>(whole, 60'000));
    }
    pollfd fd = {.fd = socket, .events = events, .revents = 0};
    if (poll(&fd, 1, ms) > 0) return absl::OkStatus();
  }
}

absl::Status Gone() { return absl::UnavailableError("the other end has closed"); }

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// Fills [data, data + size).
absl::Status ReadAll(int socket, char* data, size_t size, SteadyTime deadline) {
  while (size > 0) {
    const ssize_t n = recv(socket, data, std::min(size, kReadBytes), kFlags);
    if (n == 0 || (n < 0 && !WouldBlock())) return Gone();
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

std::string EncodeTemplateRequest(const TemplateRequest& request) {
  Json messages = Json::array();
  for (const ChatMessage& message : request.messages) {
    Json calls = Json::array();
    for (const ChatToolCall& call : message.calls) {
      calls.push_back({call.id, call.name, call.arguments});
    }
    messages.push_back(
        {message.role, message.content, message.name, message.call_id, std::move(calls)});
  }
  Json tools = Json::array();
  if (request.tools.offered()) {
    for (const ChatTool& tool : request.tools.list) tools.push_back({tool.name, tool.json});
  }
  return Cbor({{"template", request.source.text},
               {"bos", request.source.bos},
               {"eos", request.source.eos},
               {"messages", std::move(messages)},
               {"tools", std::move(tools)},
               {"now_us", absl::ToUnixMicros(request.now)},
               {"opening", request.options.ends_with_opening},
               {"continues", request.options.continues_last},
               {"variables", request.options.variables}});
}

absl::StatusOr<TemplateRequest> DecodeTemplateRequest(absl::string_view bytes) {
  TemplateRequest request;
  try {
    const Json json = Json::from_cbor(bytes);
    request.source = {.text = json.at("template"), .bos = json.at("bos"), .eos = json.at("eos")};
    for (const Json& message : json.at("messages")) {
      request.messages.push_back({.role = message.at(0),
                                  .content = message.at(1),
                                  .name = message.at(2),
                                  .call_id = message.at(3)});
      for (const Json& call : message.at(4)) {
        request.messages.back().calls.push_back(
            {.id = call.at(0), .name = call.at(1), .arguments = call.at(2)});
      }
    }
    for (const Json& tool : json.at("tools")) {
      request.tools.list.push_back({.name = tool.at(0), .json = tool.at(1), .parameters = {}});
    }
    request.now = absl::FromUnixMicros(json.at("now_us"));
    request.options = {.ends_with_opening = json.at("opening"),
                       .continues_last = json.at("continues"),
                       .variables = json.at("variables")};
  } catch (const Json::exception& error) {
    return absl::DataLossError(error.what());
  }
  return request;
}

std::string EncodeTemplateResult(const TemplateResult& result) {
  if (result.is_read) return Cbor({{"read", true}});
  Json json = {{"grown", result.grown_bytes}, {"used_us", result.used_us}};
  if (result.prompt.ok()) {
    json["text"] = result.prompt->text;
    json["bos"] = result.prompt->has_bos;
  } else {
    json["error"] = result.prompt.status().message();
  }
  return Cbor(json);
}

absl::StatusOr<TemplateResult> DecodeTemplateResult(absl::string_view bytes) {
  TemplateResult result;
  try {
    const Json json = Json::from_cbor(bytes);
    if (json.contains("read")) {
      result.is_read = true;
      return result;
    }
    result.grown_bytes = json.at("grown");
    result.used_us = json.at("used_us");
    if (json.contains("error")) {
      result.prompt = absl::InvalidArgumentError(json.at("error").get<std::string>());
    } else {
      result.prompt = ChatTemplate::Prompt{.text = json.at("text"), .has_bos = json.at("bos")};
    }
  } catch (const Json::exception& error) {
    return absl::DataLossError(error.what());
  }
  return result;
}

absl::Status WriteTemplateFrame(int socket, absl::string_view bytes, SteadyTime deadline) {
  char size[8];
  for (int i = 0; i < 8; ++i) size[i] = static_cast<char>(uint64_t{bytes.size()} >> (8 * i));
  for (absl::string_view part : {absl::string_view(size, sizeof(size)), bytes}) {
    while (!part.empty()) {
      const ssize_t n = send(socket, part.data(), part.size(), kFlags);
      if (n < 0 && !WouldBlock()) return Gone();
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
