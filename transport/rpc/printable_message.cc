#include "transport/rpc/printable_message.h"

#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

using google::protobuf::FieldDescriptor;

std::string Printable(const std::string& text) {
  return PrintableText::From(text, kShownMessageBytesMax).str();
}

}  // namespace

void MakePrintable(google::protobuf::Message* message) {
  const google::protobuf::Reflection* const reflection = message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(*message, &fields);
  std::string scratch;
  for (const FieldDescriptor* field : fields) {
    const int n = field->is_repeated() ? reflection->FieldSize(*message, field) : 1;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      for (int i = 0; i < n; ++i) {
        MakePrintable(field->is_repeated() ? reflection->MutableRepeatedMessage(message, field, i)
                                           : reflection->MutableMessage(message, field));
      }
    } else if (field->type() == FieldDescriptor::TYPE_STRING) {
      for (int i = 0; i < n; ++i) {
        const std::string& text =
            field->is_repeated()
                ? reflection->GetRepeatedStringReference(*message, field, i, &scratch)
                : reflection->GetStringReference(*message, field, &scratch);
        if (text.size() <= kShownMessageBytesMax && IsPrintable(text)) continue;
        if (field->is_repeated()) {
          reflection->SetRepeatedString(message, field, i, Printable(text));
        } else {
          reflection->SetString(message, field, Printable(text));
        }
      }
    }
  }
}

}  // namespace strata
