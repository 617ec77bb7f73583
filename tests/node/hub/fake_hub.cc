#include "tests/node/hub/fake_hub.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/sha.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"

namespace strata::testing {
namespace {

constexpr size_t kPieceBytes = 64 * 1024;

bool SendAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

FakeRequest ParseHead(absl::string_view head) {
  FakeRequest request;
  for (const absl::string_view line : absl::StrSplit(head, "\r\n")) {
    if (request.path.empty()) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      if (words.size() > 1) request.path = words[1];
      continue;
    }
    const std::vector<std::string> field = absl::StrSplit(line, absl::MaxSplits(": ", 1));
    if (field.size() == 2) request.headers[absl::AsciiStrToLower(field[0])] = field[1];
  }
  return request;
}

}  // namespace

std::string FakeRequest::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

bool FakeRequest::IsForData() const { return Header("range") != "bytes=0-3"; }

FakeHub::FakeHub(std::function<FakeReply(const FakeRequest&)> answer)
    : answer_(std::move(answer)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  if (bind(listener_, reinterpret_cast<sockaddr*>(&at), size) != 0 || listen(listener_, 64) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size) != 0) {
    std::abort();
  }
  port_ = ntohs(at.sin_port);
  accepts_ = std::thread([this] { Accept(); });
}

FakeHub::~FakeHub() {
  {
    absl::MutexLock lock(mu_);
    stops_ = true;
    for (const int fd : connections_) shutdown(fd, SHUT_RDWR);
  }
  shutdown(listener_, SHUT_RDWR);
  accepts_.join();
  close(listener_);
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(mu_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

std::string FakeHub::url() const { return absl::StrCat("http://127.0.0.1:", port_); }

std::vector<FakeRequest> FakeHub::requests() const {
  absl::MutexLock lock(mu_);
  return requests_;
}

uint64_t FakeHub::body_bytes() const {
  absl::MutexLock lock(mu_);
  return body_bytes_;
}

size_t FakeHub::connections() const {
  absl::MutexLock lock(mu_);
  return accepted_;
}

void FakeHub::Accept() {
  for (;;) {
    const int fd = accept(listener_, nullptr, nullptr);
    absl::MutexLock lock(mu_);
    if (fd < 0 || stops_) {
      if (fd >= 0) close(fd);
      return;
    }
    connections_.push_back(fd);
    ++accepted_;
    threads_.emplace_back([this, fd] { Serve(fd); });
  }
}

void FakeHub::Serve(int fd) {
  std::string in;
  for (bool goes_on = true; goes_on;) {
    size_t end = 0;
    while ((end = in.find("\r\n\r\n")) == std::string::npos) {
      char bytes[4096];
      const ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
      if (n <= 0) break;
      in.append(bytes, static_cast<size_t>(n));
    }
    if (end == std::string::npos) break;
    const FakeRequest request = ParseHead(in.substr(0, end));
    in.erase(0, end + 4);
    {
      absl::MutexLock lock(mu_);
      requests_.push_back(request);
    }
    FakeReply reply;
    {
      absl::MutexLock lock(answer_mu_);
      reply = answer_(request);
    }
    reply.headers.emplace("Content-Length", absl::StrCat(reply.body.size()));
    std::string head = absl::StrCat("HTTP/1.1 ", reply.status, " As the test says\r\n");
    for (const auto& [name, value] : reply.headers) {
      absl::StrAppend(&head, name, ": ", value, "\r\n");
    }
    goes_on = SendAll(fd, head + "\r\n");
    const absl::string_view body = absl::string_view(reply.body).substr(0, reply.cut_after);
    for (size_t at = 0; goes_on && at < body.size(); at += kPieceBytes) {
      if (reply.each_64_kib > absl::ZeroDuration()) absl::SleepFor(reply.each_64_kib);
      goes_on = SendAll(fd, body.substr(at, kPieceBytes));
      absl::MutexLock lock(mu_);
      body_bytes_ += std::min(kPieceBytes, body.size() - at);
    }
    goes_on = goes_on && body.size() == reply.body.size();
  }
  absl::MutexLock lock(mu_);
  std::erase(connections_, fd);
  close(fd);
}

FakeReply ServeFile(const FakeRequest& request, const std::string& content,
                    const std::string& etag) {
  FakeReply reply = {.headers = {{"ETag", etag}, {"Content-Type", "application/octet-stream"}}};
  const std::string if_range = request.Header("if-range");
  const std::string asked = request.Header("range");
  absl::string_view range = asked;
  if (!absl::ConsumePrefix(&range, "bytes=") || (!if_range.empty() && if_range != etag)) {
    reply.body = content;
    return reply;
  }
  const std::vector<std::string> ends = absl::StrSplit(range, '-');
  uint64_t first = 0, last = 0;
  if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &first) || !absl::SimpleAtoi(ends[1], &last) ||
      first >= content.size()) {
    reply.status = 416;
    reply.headers["Content-Range"] = absl::StrCat("bytes */", content.size());
    return reply;
  }
  last = std::min<uint64_t>(last, content.size() - 1);
  reply.status = 206;
  reply.headers["Content-Range"] = absl::StrCat("bytes ", first, "-", last, "/", content.size());
  reply.body = content.substr(first, last - first + 1);
  return reply;
}

FakeReply RepositoryOf(const std::string& repo, const std::string& commit, const std::string& file,
                       const std::string& content) {
  const nlohmann::json json = {
      {"id", repo},
      {"sha", commit},
      {"siblings",
       {{{"rfilename", "README.md"}, {"size", 10}},
        {{"rfilename", file},
         {"size", content.size()},
         {"lfs", {{"sha256", Sha256Of(content)}, {"size", content.size()}}}}}}};
  return {.headers = {{"Content-Type", "application/json"}}, .body = json.dump()};
}

std::string FakeModel(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::string block;
  while (block.size() < 4096) block += static_cast<char>(random());
  std::string content = "GGUF";
  content.reserve(bytes + block.size());
  for (uint32_t i = 0; content.size() < bytes; ++i) {  // no two blocks are equal
    std::memcpy(block.data(), &i, sizeof(i));
    content += block;
  }
  content.resize(bytes);
  return content;
}

std::string Sha256Of(const std::string& content) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(content.data()), content.size(), digest);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), sizeof(digest)));
}

}  // namespace strata::testing
