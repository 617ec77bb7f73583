#include "transport/rpc/request_log.h"

#include <string>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

std::string Line(LogFormat format) {
  const LineFormat lines(format);
  std::string line;
  lines.Begin(absl::FromUnixMillis(1'767'323'045'678), "generation", &line);
  lines.Add("id", "req-1/2", &line);
  lines.Add("model", "The \"big\"\none\x01\xFF", &line);
  lines.Add("empty", "", &line);
  lines.Add("tokens", int64_t{-3}, &line);
  lines.End(&line);
  return line;
}

TEST(RequestLog, ALineForPeopleIsOneLine) {
  EXPECT_EQ(Line(LogFormat::kText),
            "2026-01-02T03:04:05.678Z generation id=req-1/2 model=\"The "
            "\\\"big\\\"\\\\none\\\\u0001\ufffd\" "
            "empty=\"\" tokens=-3\n");
}

TEST(RequestLog, ALineForProgramsIsJson) {
  EXPECT_EQ(Line(LogFormat::kJson),
            "{\"time\":\"2026-01-02T03:04:05.678Z\",\"event\":\"generation\",\"id\":\"req-1/2\","
            "\"model\":\"The \\\"big\\\"\\\\none\\\\u0001\ufffd\",\"empty\":\"\",\"tokens\":-3}\n");
}

TEST(RequestLog, UntrustedIdsAreMadePlain) {
  EXPECT_EQ(PlainRequestId("req-1.a_B:2/3"), "req-1.a_B:2/3");
  EXPECT_EQ(PlainRequestId("a b\n\"\xC3\xA4"), "a_b____");
  EXPECT_EQ(PlainRequestId(std::string(500, 'x')).size(), kRequestIdBytesMax);
}

TEST(RequestLog, IsOffByDefault) { EXPECT_FALSE(RequestLogOn()); }

}  // namespace
}  // namespace strata
