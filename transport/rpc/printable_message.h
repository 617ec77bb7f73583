// Messages of other programs as text that may be shown: by a rule of proto/, what is text for
// people is a `string`, and what may be any bytes (a path, a template, a text of several lines) is
// `bytes`. Who answers a call makes its answer printable, so that it can be sent at all, and who
// asked makes it so again: it need not trust the other. Thread-safe.
#pragma once

#include "google/protobuf/message.h"

namespace strata {

// Each `string` of `message` and of all messages in it becomes PrintableText, of at most
// kShownMessageBytesMax bytes. `bytes` stay. Costs a look at each field.
void MakePrintable(google::protobuf::Message* message);

}  // namespace strata
