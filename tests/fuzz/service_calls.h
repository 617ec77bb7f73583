// Any bytes as calls of a gRPC server in this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "grpcpp/generic/generic_stub.h"

namespace strata::fuzz {

// One method of a service, with its requests.
struct Method {
  std::string name;  // "/strata.wire.Node/GetInfo"
  // Whether the bytes are its request. Values that would reach out of this process (an address to
  // dial, a path to write) are changed. Null: unknown.
  bool (*prepare)(std::string* bytes);
  int answers_max = 0;  // after so many the call is cancelled; 0: it ends by itself
  // The messages of a call that has several; null: the bytes are one.
  std::vector<std::string> (*messages)(absl::string_view bytes) = nullptr;
};

// `prepare` for a `Request` that stays as it is.
template <typename Request>
bool Parses(std::string* bytes) {
  return Request().ParseFromString(*bytes);
}
// `prepare` for a `Request` that `tame` changes.
template <typename Request, void (*tame)(Request*)>
bool ParsesTamed(std::string* bytes) {
  Request request;
  if (!request.ParseFromString(*bytes)) return false;
  tame(&request);
  *bytes = request.SerializeAsString();
  return true;
}

class ServiceCaller {
 public:
  explicit ServiceCaller(const std::string& address);

  // Aborts where the call takes too long, or ends with an error without a message.
  void Call(const Method& method, std::string bytes);

  // Calls one after the other: the method's number, two bytes of length, so many bytes.
  void CallAll(absl::Span<const Method> methods, absl::string_view input);

 private:
  grpc::Status Once(const Method& method, absl::string_view bytes);

  std::unique_ptr<grpc::GenericStub> stub_;
};

// Nothing listens there: connections are refused at once.
inline constexpr char kNowhere[] = "127.0.0.1:1";

// Silences the log but for failed checks. For fuzz targets with gRPC's threads, at their start.
void BeQuiet();

// Removes the first two bytes and returns their number, the lower byte first; 0: there are not two.
size_t TakeSize(absl::string_view* bytes);

// Removed with all that is in it when the process ends.
const std::string& FuzzFolder();

}  // namespace strata::fuzz
