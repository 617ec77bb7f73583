#include "transport/security/secret.h"

#include <openssl/crypto.h>

namespace strata {

void Wipe(std::string* text) {
  text->resize(text->capacity());
  OPENSSL_cleanse(text->data(), text->size());
  text->clear();
}

void Secret::WipeAndDelete::operator()(std::string* text) const {
  Wipe(text);
  delete text;
}

Secret::Secret() : text_(new std::string) {}

Secret::Secret(std::string text) : text_(new std::string) {
  text_->swap(text);
  Wipe(&text);  // a short text was copied
}

}  // namespace strata
