// Reads another program's stream past messages that cannot be parsed.
#pragma once

#include "grpcpp/support/sync_stream.h"

namespace strata {

// Most unreadable messages in a row that are skipped.
inline constexpr int kUnreadableMax = 32;

// As reader->Read(), but skips messages that protobuf cannot parse: Read() returns false for them
// as for the stream's end, and Finish() would then wait for ever.
template <typename Message>
bool ReadNext(grpc::ClientReader<Message>* reader, Message* message) {
  for (int i = 0; i <= kUnreadableMax; ++i) {
    if (reader->Read(message)) return true;
  }
  return false;
}

}  // namespace strata
