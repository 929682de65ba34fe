#include "common/config/secret.h"

#include <openssl/crypto.h>

namespace tandem {

void Cleanse(void* bytes, size_t size) {
  OPENSSL_cleanse(bytes, size);
}

void Cleanse(std::string& text) {
  text.resize(text.capacity());
  Cleanse(text.data(), text.size());
  text.clear();
}

bool EqualInConstantTime(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace tandem
