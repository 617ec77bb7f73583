#include "transport/rpc/grpc_status.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

TEST(GrpcStatus, EveryCodeSurvivesTheRoundTrip) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "words");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
    wire::Status wire;
    ToWire(status, "", &wire);
    EXPECT_EQ(FromWire(wire), status);
  }
}

TEST(GrpcStatus, StatusesOfThePeerAreDistinguishedFromGrpcs) {
  EXPECT_TRUE(IsFromPeer(ToGrpc(absl::UnavailableError("it is still loading"))));
  EXPECT_FALSE(IsFromPeer(grpc::Status(grpc::StatusCode::UNAVAILABLE, "Socket closed")));
}

TEST(GrpcStatus, UnknownCodesBecomeUnknown) {
  wire::Status wire;
  wire.set_message("?");
  for (int code : {-1, 17, 1 << 30}) {
    wire.set_code(code);
    EXPECT_EQ(FromWire(wire).code(), absl::StatusCode::kUnknown) << code;
  }
}

TEST(GrpcStatus, WhereComesBeforeTheMessage) {
  wire::Status wire;
  ToWire(absl::AbortedError("gone"), "stage 1 (layers 2-4)", &wire);
  EXPECT_EQ(FromWire(wire), absl::AbortedError("stage 1 (layers 2-4): gone"));
}

TEST(GrpcStatus, OkHasNoWhere) {
  wire::Status wire;
  ToWire(absl::OkStatus(), "stage 1", &wire);
  EXPECT_EQ(wire.where(), "");
  EXPECT_TRUE(FromWire(wire).ok());
}

TEST(GrpcStatus, ALongMessageLosesItsMiddle) {
  const std::string text = "first words " + std::string(100'000, '\n') + " last words";
  const std::string sent = ToGrpc(absl::AbortedError(text)).error_message();
  EXPECT_THAT(sent, StartsWith("first words "));
  EXPECT_THAT(sent, EndsWith(" last words"));
  EXPECT_LE(sent.size(), kStatusMessageBytesMax / 3 + 64);  // a line feed is sent as %0A
}

TEST(GrpcStatus, CutsBetweenCharacters) {
  for (size_t shift = 0; shift < 4; ++shift) {
    std::string text(shift, 'x');
    while (text.size() < 20'000) text += "\xF0\x9F\x8C\x8D";
    const std::string sent = ToGrpc(absl::AbortedError(text)).error_message();
    EXPECT_EQ(sent.find('?'), std::string::npos) << shift;
  }
}

// Line feeds stay: a worker's last output has some.
TEST(GrpcStatus, WhatIsSaidSteersNoTerminal) {
  const std::string text = "one\ntwo\x1b[2J\xff\u202e";
  const std::string shown = "one\ntwo\\u001b[2J\ufffd\\u202e";
  EXPECT_EQ(ToGrpc(absl::AbortedError(text)).error_message(), shown);
  EXPECT_EQ(FromGrpc(grpc::Status(grpc::StatusCode::ABORTED, text)).message(), shown);
  wire::Status wire;
  ToWire(absl::AbortedError(text), "stage\n1", &wire);
  EXPECT_EQ(wire.message(), shown);
  wire.set_message(text);
  EXPECT_EQ(FromWire(wire).message(), "stage\\n1: " + shown);
}

TEST(GrpcStatus, AnUnreadableMessageIsNoOtherVersion) {
  const grpc::Status unreadable(grpc::StatusCode::UNIMPLEMENTED,
                                "No message returned for unary request");
  EXPECT_TRUE(IsUnreadable(unreadable));
  EXPECT_FALSE(IsUnknownCall(unreadable));
  EXPECT_EQ(FromGrpc(unreadable).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(IsUnreadable(grpc::Status(grpc::StatusCode::INTERNAL, "")));
  EXPECT_NE(FromGrpc(grpc::Status(grpc::StatusCode::INTERNAL, "")).message(), "");
  EXPECT_FALSE(IsUnreadable(grpc::Status(grpc::StatusCode::INTERNAL, "RST_STREAM")));

  EXPECT_TRUE(IsUnknownCall(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "")));
  EXPECT_FALSE(IsUnknownCall(ToGrpc(absl::UnimplementedError("no such architecture"))));
}

}  // namespace
}  // namespace strata
