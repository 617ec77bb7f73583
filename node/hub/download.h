// Fetches one file by HTTP: over several connections where the server has ranges, goes on where an
// earlier attempt ended, and leaves nothing under the file's name that is not whole and checked.
//
// Beside FILE, while it is fetched, are FILE.part, which is as large as the file, and
// FILE.part.json: {"validator": what names this content, "bytes": N, "missing": [[begin, end], …]}.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/http/http_get.h"
#include "transport/http/ranged_file.h"

namespace strata {

struct DownloadFile {
  WebRequest request;  // asked again where the address that it redirects to has expired
  std::string path;    // absolute
  uint64_t bytes = 0;  // 0: unknown
  std::string sha256;  // hex digits in lower case; empty: unknown
};

struct DownloadOptions {
  int connections = 4;
  absl::Duration retry_first = absl::Milliseconds(500);
  absl::Duration save_every = absl::Seconds(5);            // a process that is killed loses so much
  std::function<bool()> cancelled = [] { return false; };  // any thread
  // Both on the calling thread.
  std::function<void(const std::string& note)> note = [](const std::string&) {};
  std::function<void(uint64_t done, uint64_t total)> progress = [](uint64_t, uint64_t) {};
  // The error of an answer that is no success; any thread.
  std::function<absl::Status(const WebAnswer& answer)> explain;
};

// Blocks, also while another process fetches the same file. After an error what came is kept, and
// the next call goes on there. kFailedPrecondition, kNotFound, kPermissionDenied: it is no GGUF
// file, or the server does not give it; kDataLoss: it is not what the hub says; kResourceExhausted:
// the disk has no room, with the bytes that are missing and what to do; kUnavailable: the network
// or the server failed many times; kCancelled.
absl::Status Download(const DownloadFile& file, const DownloadOptions& options);

// Asks the server about a file, again where it is kUnavailable for half a minute. Uses
// `retry_first`, `cancelled`, `note` and `explain`. kFailedPrecondition: it is no GGUF file.
absl::StatusOr<FileProbe> AskForModel(WebGetter* http, const WebRequest& request,
                                      const DownloadOptions& options);

}  // namespace strata
