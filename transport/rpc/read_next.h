// Reading what another program streams, in spite of messages that cannot be read.
#pragma once

#include "grpcpp/support/sync_stream.h"

namespace strata {

// Unreadable messages in a row that are passed over.
inline constexpr int kUnreadableMax = 32;

// As reader->Read(), but where a message is none that protobuf takes, the next one is read: Read()
// says the same of it as of the stream's end, and Finish() would then wait for ever.
template <typename Message>
bool ReadNext(grpc::ClientReader<Message>* reader, Message* message) {
  for (int i = 0; i <= kUnreadableMax; ++i) {
    if (reader->Read(message)) return true;
  }
  return false;
}

}  // namespace strata
