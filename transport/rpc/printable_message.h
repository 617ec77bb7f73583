// Makes messages of other programs printable: by a rule of proto/, text for people is a `string`,
// and a field of any bytes (a path, a template, text of several lines) is `bytes`. The server of a
// call makes its response printable, so that it can be sent at all, and the client does so again,
// because it need not trust the server. Thread-safe.
#pragma once

#include "google/protobuf/message.h"

namespace strata {

// Each `string` of `message` and of all messages in it becomes PrintableText, of at most
// kShownMessageBytesMax bytes. `bytes` stay. Visits each field.
void MakePrintable(google::protobuf::Message* message);

}  // namespace strata
