#include "transport/link/link_probe.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/impl/service_type.h"
#include "gtest/gtest.h"
#include "proto/probe.grpc.pb.h"
#include "tests/transport/rpc/grpc_server.h"
#include "transport/rpc/grpc_channel.h"

namespace strata {
namespace {

using testing::HasSubstr;

// A node that answers measurements on loopback.
class LinkProbe : public testing::Test {
 protected:
  static bool Always() { return true; }

  const std::unique_ptr<grpc::Service> service_ = MakeLinkProbeService();
  ServiceServer server_{{.service = service_.get()}};
  const std::string address_ = server_.address();
};

TEST_F(LinkProbe, MeasuresRoundTripsAndThroughput) {
  const auto speed = MeasureLink({.address = address_}, Always);
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_GT(speed->round_trip_p50_us(), 0u);
  EXPECT_GE(speed->round_trip_p99_us(), speed->round_trip_p50_us());
  EXPECT_GT(speed->bytes_per_s(), 0u);
}

TEST_F(LinkProbe, EndsAtOnceWhenTheMachinesAreNeeded) {
  const auto speed = MeasureLink({.address = address_}, [] { return false; });
  EXPECT_EQ(speed.status().code(), absl::StatusCode::kAborted) << speed.status();
}

TEST_F(LinkProbe, KeepsItsResultsWhenTheMachinesAreNeededLater) {
  int frames = 0;
  const auto speed = MeasureLink({.address = address_}, [&] { return ++frames < 20; });
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_GT(speed->round_trip_p50_us(), 0u);
  EXPECT_EQ(speed->bytes_per_s(), 0u);
}

TEST_F(LinkProbe, ReportsWhenNothingAnswers) {
  server_.Stop();
  const auto speed = MeasureLink({.address = address_, .timeout = absl::Seconds(1)}, Always);
  EXPECT_FALSE(speed.ok());
  EXPECT_THAT(speed.status().message(), HasSubstr(address_));
}

TEST_F(LinkProbe, RefusesRepliesThatAreTooLarge) {
  const auto stub = wire::LinkProbe::NewStub(MakeChannel(address_));
  grpc::ClientContext context;
  const auto stream = stub->Echo(&context);
  wire::EchoFrame frame;
  frame.set_reply_bytes(kEchoFrameBytesMax + 1);
  stream->Write(frame);
  EXPECT_FALSE(stream->Read(&frame));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(LinkProbe, AnswersABoundedNumberAtATime) {
  const auto stub = wire::LinkProbe::NewStub(MakeChannel(address_));
  using Stream = grpc::ClientReaderWriter<wire::EchoFrame, wire::EchoFrame>;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<Stream>> streams;
  wire::EchoFrame frame, reply;
  for (int i = 0; i < kEchoStreamsMax; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(stub->Echo(contexts.back().get()));
    ASSERT_TRUE(streams.back()->Write(frame) && streams.back()->Read(&reply));
  }
  const auto one_more = MeasureLink({.address = address_}, Always);
  EXPECT_EQ(one_more.status().code(), absl::StatusCode::kResourceExhausted) << one_more.status();
  for (auto& stream : streams) {
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
  }
  // There is room again once they have ended, which is noticed a moment later.
  absl::Status status;
  do {
    status = MeasureLink({.address = address_}, Always).status();
  } while (absl::IsResourceExhausted(status));
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace strata
