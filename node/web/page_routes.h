// The page at /: its files are part of the program, compressed when it was built (bundle.py).
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "node/api/api_route.h"

namespace strata {

struct PageFile {
  absl::string_view path;
  absl::string_view content_type;
  absl::string_view tag;    // of its content: an ETag without quotes
  absl::string_view bytes;  // by gzip
};

// Empty: the program was built without the page.
absl::Span<const PageFile> PageFiles();

// Those of the page, or of words about how to get it. Everybody gets them: they hold nothing of the
// cluster. REQUIRES: `files` outlive the routes.
ApiRoutes PageRoutes(absl::Span<const PageFile> files);

}  // namespace strata
