#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace tandem {

// Overwrites bytes with zeros. The compiler cannot leave it out, as it could a memset before memory is freed.
void Cleanse(void* bytes, size_t size);

// Overwrites a string that holds a secret, in all of its capacity, and leaves it empty.
void Cleanse(std::string& text);

// Whether the bytes are equal, in a time that depends only on their sizes.
bool EqualInConstantTime(absl::string_view a, absl::string_view b);

// A token, password or file with secrets that a process keeps for long. Its memory is overwritten before it
// is freed: on destruction and when another secret is assigned. A move leaves nothing in the source. A secret
// cannot be printed, and comparisons take constant time.
//
// What others copy from Reveal, such as gRPC, is theirs to overwrite, and most do not
// (docs/operate/security.md). Not thread-safe.
//
// `Allocator`: where the bytes are; tests use one that looks at memory when it is freed.
template <class Allocator>
class BasicSecret {
 public:
  BasicSecret() = default;
  explicit BasicSecret(absl::string_view bytes) : size_(bytes.size()) {
    if (size_ == 0) return;
    bytes_ = Allocator().allocate(size_);
    std::memcpy(bytes_, bytes.data(), size_);
  }
  BasicSecret(const BasicSecret& other) : BasicSecret(other.Reveal()) {}
  BasicSecret(BasicSecret&& other) noexcept { Swap(other); }
  // `other` takes the old bytes along, and overwrites them.
  BasicSecret& operator=(BasicSecret other) noexcept {
    Swap(other);
    return *this;
  }
  ~BasicSecret() {
    if (bytes_ == nullptr) return;
    Cleanse(bytes_, size_);
    Allocator().deallocate(bytes_, size_);
  }

  bool empty() const { return size_ == 0; }
  // The bytes, valid as long as this object is not changed. Do not keep copies.
  absl::string_view Reveal() const { return {bytes_, size_}; }

  friend bool operator==(const BasicSecret& a, const BasicSecret& b) {
    return EqualInConstantTime(a.Reveal(), b.Reveal());
  }
  friend std::ostream& operator<<(std::ostream&, const BasicSecret&) = delete;
  template <class Sink>
  friend void AbslStringify(Sink&, const BasicSecret&) = delete;

 private:
  void Swap(BasicSecret& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(size_, other.size_);
  }

  char* bytes_ = nullptr;
  size_t size_ = 0;
};
using Secret = BasicSecret<std::allocator<char>>;

// A secret of fixed size, such as a key, in the object itself. A move copies it; each copy is overwritten at
// its end.
template <size_t kSize>
struct SecretArray : std::array<uint8_t, kSize> {
  ~SecretArray() { Cleanse(this->data(), kSize); }

  absl::string_view Reveal() const { return {reinterpret_cast<const char*>(this->data()), kSize}; }

  friend bool operator==(const SecretArray& a, const SecretArray& b) {
    return EqualInConstantTime(a.Reveal(), b.Reveal());
  }
  friend std::ostream& operator<<(std::ostream&, const SecretArray&) = delete;
  template <class Sink>
  friend void AbslStringify(Sink&, const SecretArray&) = delete;
};

}  // namespace tandem
