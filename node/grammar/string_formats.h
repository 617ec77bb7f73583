// The values of "format" that are kept, each as a regular expression of whole texts. Pure.
#pragma once

#include <string>

namespace strata {

// Null: the format is unknown, and so a remark.
const char* FormatRegex(const std::string& format);

}  // namespace strata
