#include "tests/fuzz/service_calls.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/log/globals.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "google/protobuf/stubs/logging.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/support/byte_buffer.h"
#include "tests/support/raw_message.h"
#include "transport/rpc/grpc_channel.h"

namespace strata::fuzz {
namespace {

// On a busy machine a call may be late, but not each time.
constexpr absl::Duration kCallMax = absl::Seconds(1);
constexpr int kTries = 4;
constexpr std::chrono::seconds kDeadline(8);
constexpr int kCallsMax = 4;

[[noreturn]] void Fail(const Method& method, const char* what) {
  std::fprintf(stderr, "%s: %s\n", method.name.c_str(), what);
  std::abort();
}

}  // namespace

ServiceCaller::ServiceCaller(const std::string& address)
    : stub_(std::make_unique<grpc::GenericStub>(MakeChannel(address))) {}

grpc::Status ServiceCaller::Once(const Method& method, absl::string_view bytes) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kDeadline);
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = stub_->PrepareCall(&context, method.name, &queue);
  call->StartCall(nullptr);
  bool going = next();
  const std::vector<std::string> messages =
      method.messages != nullptr ? method.messages(bytes) : std::vector{std::string(bytes)};
  for (size_t i = 0; going && i < messages.size(); ++i) {
    call->Write(testing::MessageOf(messages[i]), nullptr);
    going = next();
  }
  if (going) {
    call->WritesDone(nullptr);
    going = next();
  }
  // Reads on also where the server reads no more: the call's end comes behind its messages.
  going = true;
  for (int answers = 0; going; ++answers) {
    if (method.answers_max > 0 && answers == method.answers_max) context.TryCancel();
    grpc::ByteBuffer answer;
    call->Read(&answer, nullptr);
    going = next();
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  queue.Shutdown();
  while (next()) {
  }
  return status;
}

void ServiceCaller::Call(const Method& method, std::string bytes) {
  // A stream's bytes may be right or wrong.
  const bool known = method.prepare != nullptr;
  const bool parses = known && method.prepare(&bytes);
  for (int i = 0; i < kTries; ++i) {
    const absl::Time begin = absl::Now();
    const grpc::Status status = Once(method, bytes);
    // gRPC itself has no message for bytes that do not parse.
    if (parses && !status.ok() && status.error_message().empty())
      Fail(method, "an error without a message");
    if (known && !parses && status.ok()) Fail(method, "took bytes that do not parse");
    if (absl::Now() - begin < kCallMax) return;
  }
  Fail(method, "takes too long");
}

size_t TakeSize(absl::string_view* bytes) {
  if (bytes->size() < 2) return 0;
  const auto byte = [bytes](size_t at) {
    return static_cast<size_t>(static_cast<unsigned char>((*bytes)[at]));
  };
  const size_t size = byte(0) | byte(1) << 8;
  bytes->remove_prefix(2);
  return size;
}

void ServiceCaller::CallAll(absl::Span<const Method> methods, absl::string_view input) {
  for (int i = 0; i < kCallsMax && input.size() >= 3; ++i) {
    const Method& method = methods[static_cast<unsigned char>(input[0]) % methods.size()];
    input.remove_prefix(1);
    const size_t size = TakeSize(&input);
    const std::string bytes(input.substr(0, size));
    input.remove_prefix(bytes.size());
    Call(method, bytes);
  }
}

void BeQuiet() {
  google::protobuf::SetLogHandler(nullptr);
  absl::SetMinLogLevel(absl::LogSeverityAtLeast::kFatal);
}

const std::string& FuzzFolder() {
  struct Folder {
    Folder() : path(std::filesystem::temp_directory_path().string() + "/strata-fuzz-XXXXXX") {
      if (mkdtemp(path.data()) == nullptr) std::abort();
    }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
    std::string path;
  };
  static const Folder folder;
  return folder.path;
}

}  // namespace strata::fuzz
