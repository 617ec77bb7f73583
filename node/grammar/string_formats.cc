#include "node/grammar/string_formats.h"

#include <map>

#include "absl/strings/str_cat.h"

namespace strata {
namespace {

std::map<std::string, std::string> MakeFormats() {
  const std::string date =
      R"((?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29)"
      R"(|\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30))"
      R"(|02-(?:0[1-9]|1\d|2[0-8]))))";
  const std::string time =
      R"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d))";
  // RFC 3339, appendix A.
  const std::string clock =
      R"(T(?:\d{1,9}H(?:\d{1,9}M(?:\d{1,9}S)?)?|\d{1,9}M(?:\d{1,9}S)?|\d{1,9}S))";
  const std::string days =
      R"((?:\d{1,9}Y(?:\d{1,9}M(?:\d{1,9}D)?)?|\d{1,9}M(?:\d{1,9}D)?|\d{1,9}D))";
  const std::string octet = R"((?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
  const std::string label = "[A-Za-z0-9]+(?:-+[A-Za-z0-9]+)*";  // of any length
  const std::string part = "[0-9a-fA-F]{1,4}";
  std::string ipv6 =
      absl::StrCat("(?:", part, ":){7}", part, "|::|:(?::", part, "){1,7}|(?:", part, ":){1,7}:");
  for (int before = 1; before <= 6; ++before) {
    absl::StrAppend(&ipv6, "|(?:", part, ":){", before, "}(?::", part, "){1,", 7 - before, "}");
  }
  const std::string path = R"((?:[A-Za-z0-9._~:@!$&'()*+,;=-]|%[0-9A-Fa-f]{2}))";
  std::map<std::string, std::string> formats = {
      {"date", date},
      {"time", time},
      {"date-time", absl::StrCat(date, "T", time)},
      {"duration", absl::StrCat("P(?:", days, "(?:", clock, ")?|", clock, R"(|\d{1,9}W))")},
      {"uuid", "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
      {"ipv4", absl::StrCat("(?:", octet, R"(\.){3})", octet)},
      {"ipv6", ipv6},
      {"hostname", absl::StrCat(label, R"((?:\.)", label, ")*")},
      {"email", R"([A-Za-z0-9_'+-]*[A-Za-z0-9_+-](?:\.[A-Za-z0-9_'+-]*[A-Za-z0-9_+-])*)"
                R"(@(?:[A-Za-z0-9]+(?:-+[A-Za-z0-9]+)*\.)+[A-Za-z]{2,})"},
      {"uri", absl::StrCat("[A-Za-z][A-Za-z0-9+.-]*:(?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?(?:/", path,
                           "*)*|", path, "+(?:/", path, R"(*)*)(?:\?(?:)", path,
                           "|[/?])*)?(?:#(?:", path, "|[/?])*)?")},
  };
  for (auto& [name, regex] : formats) regex = absl::StrCat("^(?:", regex, ")$");
  return formats;
}

}  // namespace

const char* FormatRegex(const std::string& format) {
  static const auto* const formats = new std::map<std::string, std::string>(MakeFormats());
  const auto found = formats->find(format);
  return found == formats->end() ? nullptr : found->second.c_str();
}

}  // namespace strata
