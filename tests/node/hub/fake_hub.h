// A web server of a test's own on a free port of the loopback, which answers as the test says, also
// wrongly: cut off, slowly, by another file. A thread for each connection.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace strata::testing {

struct FakeRequest {
  std::string path;                            // and query
  std::map<std::string, std::string> headers;  // names in lower case

  std::string Header(const std::string& name) const;  // empty: none
  // Whether it asks for more than a file's first bytes, by which a client looks what it is.
  bool IsForData() const;
};

struct FakeReply {
  int status = 200;
  std::map<std::string, std::string> headers;
  std::string body;
  size_t cut_after = std::string::npos;  // bytes of the body, after which the connection ends
  absl::Duration each_64_kib;            // what these take at least
};

class FakeHub {
 public:
  // `answer` is called by one thread at a time.
  explicit FakeHub(std::function<FakeReply(const FakeRequest&)> answer);
  ~FakeHub();

  uint16_t port() const { return port_; }
  std::string url() const;
  std::vector<FakeRequest> requests() const;  // so far
  uint64_t body_bytes() const;                // sent so far
  size_t connections() const;                 // accepted so far

 private:
  void Accept();
  void Serve(int fd);

  const std::function<FakeReply(const FakeRequest&)> answer_;
  int listener_ = -1;
  uint16_t port_ = 0;
  mutable absl::Mutex mu_;
  std::vector<FakeRequest> requests_ ABSL_GUARDED_BY(mu_);
  std::vector<int> connections_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
  uint64_t body_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  size_t accepted_ ABSL_GUARDED_BY(mu_) = 0;
  bool stops_ ABSL_GUARDED_BY(mu_) = false;
  absl::Mutex answer_mu_;
  std::thread accepts_;
};

// The answer of a server that has `content`, whole or the range that is asked for.
FakeReply ServeFile(const FakeRequest& request, const std::string& content,
                    const std::string& etag = "\"1\"");

// The answer of Hugging Face's API about a repository with one file.
FakeReply RepositoryOf(const std::string& repo, const std::string& commit, const std::string& file,
                       const std::string& content);

// "GGUF" and bytes that differ by `seed`.
std::string FakeModel(size_t bytes, uint32_t seed = 1);
// Hex digits.
std::string Sha256Of(const std::string& content);

}  // namespace strata::testing
