#include "node/chat/template_frames.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "proto/template.pb.h"

namespace strata {
namespace {

#ifdef MSG_NOSIGNAL
constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
#else
constexpr int kFlags = MSG_DONTWAIT;  // a node ignores SIGPIPE
#endif
constexpr size_t kReadBytes = 1024 * 1024;

// `bytes` are at most kTemplateRequestBytesMax.
bool Parse(absl::string_view bytes, google::protobuf::MessageLite* message) {
  return message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
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
  wire::TemplateRequest wire;
  wire.set_source(request.source.text);
  wire.set_bos(request.source.bos);
  wire.set_eos(request.source.eos);
  for (const ChatMessage& message : request.messages) {
    wire::TemplateMessage* const to = wire.add_messages();
    to->set_role(message.role);
    to->set_content(message.content);
    to->set_name(message.name);
    to->set_call_id(message.call_id);
    to->set_reasoning(message.reasoning);
    for (const ChatToolCall& call : message.calls) {
      wire::TemplateToolCall* const to_call = to->add_calls();
      to_call->set_id(call.id);
      to_call->set_name(call.name);
      to_call->set_arguments(call.arguments);
    }
  }
  if (request.tools.offered()) {
    for (const ChatTool& tool : request.tools.list) {
      wire::TemplateTool* const to = wire.add_tools();
      to->set_name(tool.name);
      to->set_json(tool.json);
    }
  }
  wire.set_now_us(absl::ToUnixMicros(request.now));
  wire.set_ends_with_opening(request.options.ends_with_opening);
  wire.set_continues_last(request.options.continues_last);
  wire.set_variables(request.options.variables);
  return wire.SerializeAsString();
}

absl::StatusOr<TemplateRequest> DecodeTemplateRequest(absl::string_view bytes) {
  wire::TemplateRequest wire;
  if (!Parse(bytes, &wire)) return absl::DataLossError("not a request");
  TemplateRequest request = {
      .source = {.text = wire.source(), .bos = wire.bos(), .eos = wire.eos()},
      .now = absl::FromUnixMicros(wire.now_us()),
      .options = {.ends_with_opening = wire.ends_with_opening(),
                  .continues_last = wire.continues_last(),
                  .variables = wire.variables()}};
  for (const wire::TemplateMessage& message : wire.messages()) {
    request.messages.push_back({.role = message.role(),
                                .content = message.content(),
                                .name = message.name(),
                                .call_id = message.call_id(),
                                .reasoning = message.reasoning()});
    for (const wire::TemplateToolCall& call : message.calls()) {
      request.messages.back().calls.push_back(
          {.id = call.id(), .name = call.name(), .arguments = call.arguments()});
    }
  }
  for (const wire::TemplateTool& tool : wire.tools()) {
    request.tools.list.push_back({.name = tool.name(), .json = tool.json(), .parameters = {}});
  }
  return request;
}

std::string EncodeTemplateResult(const TemplateResult& result) {
  wire::TemplateResult wire;
  wire.set_grown_bytes(result.grown_bytes);
  wire.set_used_us(result.used_us);
  if (result.is_read) {
    wire.set_is_read(true);
  } else if (result.prompt.ok()) {
    wire.set_prompt(result.prompt->text);
    wire.set_has_bos(result.prompt->has_bos);
    wire.set_tools_in_words(result.prompt->tools_in_words);
    wire.set_format(result.prompt->format);
  } else {
    wire.set_error(std::string(result.prompt.status().message()));
  }
  return wire.SerializeAsString();
}

absl::StatusOr<TemplateResult> DecodeTemplateResult(absl::string_view bytes) {
  wire::TemplateResult wire;
  if (!Parse(bytes, &wire) || wire.what_case() == wire::TemplateResult::WHAT_NOT_SET) {
    return absl::DataLossError("not a result");
  }
  TemplateResult result = {
      .is_read = wire.has_is_read(), .grown_bytes = wire.grown_bytes(), .used_us = wire.used_us()};
  if (wire.has_error()) {
    result.prompt = absl::InvalidArgumentError(wire.error());
  } else if (wire.has_prompt()) {
    result.prompt = ChatTemplate::Prompt{.text = wire.prompt(),
                                         .has_bos = wire.has_bos(),
                                         .tools_in_words = wire.tools_in_words(),
                                         .format = wire.format()};
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
