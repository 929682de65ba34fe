#include "router/spool/spool_format.h"

#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::router {
namespace {

constexpr absl::string_view kMagic = "TDMSPOOL";
constexpr uint32_t kVersion = 1;
constexpr uint32_t kBodyVersion = 1;
constexpr size_t kTagBytes = 16;
constexpr size_t kAuthenticatedHeadBytes = 32;  // Of a record's head: all in front of the nonce.
constexpr size_t kCrcOffset = 44;
constexpr size_t kMostTextBytes = 65535;
constexpr size_t kMostTop = 255;

template <class Int>
void Put(std::string& out, Int value) {
  for (size_t i = 0; i < sizeof(Int); ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

void PutFloat(std::string& out, float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  Put(out, bits);
}

template <size_t size>
void PutBytes(std::string& out, const std::array<uint8_t, size>& bytes) {
  out.append(reinterpret_cast<const char*>(bytes.data()), size);
}

void PutText(std::string& out, absl::string_view text) {
  const absl::string_view cut = text.substr(0, kMostTextBytes);
  Put(out, static_cast<uint16_t>(cut.size()));
  out.append(cut.data(), cut.size());
}

// Reads bytes from the front. Reading past the end returns zeros and makes `ok` false.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  size_t left() const { return bytes_.size(); }

  absl::string_view Bytes(size_t size) {
    if (size > bytes_.size()) {
      ok_ = false;
      bytes_ = {};
      return {};
    }
    const absl::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  template <class Int>
  Int Number() {
    uint64_t value = 0;
    const absl::string_view bytes = Bytes(sizeof(Int));
    for (size_t i = 0; i < bytes.size(); ++i) {
      value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    }
    return static_cast<Int>(value);
  }
  float Float() {
    const auto bits = Number<uint32_t>();
    float value = 0.0f;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  template <size_t size>
  std::array<uint8_t, size> Array() {
    std::array<uint8_t, size> array{};
    const absl::string_view bytes = Bytes(size);
    std::copy(bytes.begin(), bytes.end(), array.begin());
    return array;
  }
  std::string Text() {
    const absl::string_view bytes = Bytes(Number<uint16_t>());
    return std::string(bytes.data(), bytes.size());
  }

 private:
  absl::string_view bytes_;
  bool ok_ = true;
};

absl::Time TimeOf(uint64_t unix_ms) {
  // Far from where absl::Time ends.
  return absl::FromUnixMillis(static_cast<int64_t>(std::min(unix_ms, uint64_t{1} << 48)));
}

uint64_t UnixMs(absl::Time time) {
  return static_cast<uint64_t>(std::max<int64_t>(absl::ToUnixMillis(time), 0));
}

// A record's head with everything but its checksum.
std::string HeadOf(const SpoolRecordHead& head, size_t body_size) {
  std::string out;
  Put(out, static_cast<uint32_t>(body_size));
  Put(out, static_cast<uint32_t>(head.kind));
  Put(out, UnixMs(head.time));
  PutBytes(out, head.request);
  PutBytes(out, head.nonce);
  return out;
}

std::string WithChecksum(std::string head, absl::string_view body) {
  const uint32_t crc = Crc32(body, Crc32(head));
  Put(head, crc);
  head.append(body.data(), body.size());
  return head;
}

struct FreeCipher {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using Cipher = std::unique_ptr<EVP_CIPHER_CTX, FreeCipher>;

const unsigned char* Bytes(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// The data that is authenticated but not encrypted.
std::string Associated(const SpoolHeader& header, absl::string_view head) {
  std::string associated(reinterpret_cast<const char*>(header.file_id.data()), header.file_id.size());
  absl::StrAppend(&associated, head.substr(0, kAuthenticatedHeadBytes));
  return associated;
}

absl::StatusOr<std::string> Encrypt(const SpoolKey& key, const std::array<uint8_t, 12>& nonce,
                                    absl::string_view associated, absl::string_view plain) {
  const Cipher cipher(EVP_CIPHER_CTX_new());
  std::string out(plain.size() + kTagBytes, '\0');
  auto* const bytes = reinterpret_cast<unsigned char*>(out.data());
  int length = 0;
  int rest = 0;
  const bool done =
      cipher != nullptr &&
      EVP_EncryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, key.data(), nonce.data()) == 1 &&
      EVP_EncryptUpdate(cipher.get(), nullptr, &length, Bytes(associated),
                        static_cast<int>(associated.size())) == 1 &&
      EVP_EncryptUpdate(cipher.get(), bytes, &length, Bytes(plain), static_cast<int>(plain.size())) == 1 &&
      EVP_EncryptFinal_ex(cipher.get(), bytes + length, &rest) == 1 &&
      EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes, bytes + plain.size()) == 1;
  if (!done) return absl::InternalError("OpenSSL cannot encrypt with AES-256-GCM");
  return out;
}

absl::StatusOr<std::string> Decrypt(const SpoolKey& key, const std::array<uint8_t, 12>& nonce,
                                    absl::string_view associated, absl::string_view body) {
  const absl::Status wrong =
      absl::InvalidArgumentError("the record was encrypted with another key, or its bytes were changed");
  if (body.size() < kTagBytes) return wrong;
  const Cipher cipher(EVP_CIPHER_CTX_new());
  std::string out(body.size() - kTagBytes, '\0');
  std::string tag(body.substr(out.size()));
  auto* const bytes = reinterpret_cast<unsigned char*>(out.data());
  int length = 0;
  int rest = 0;
  const bool done =
      cipher != nullptr &&
      EVP_DecryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, key.data(), nonce.data()) == 1 &&
      EVP_DecryptUpdate(cipher.get(), nullptr, &length, Bytes(associated),
                        static_cast<int>(associated.size())) == 1 &&
      EVP_DecryptUpdate(cipher.get(), bytes, &length, Bytes(body), static_cast<int>(out.size())) == 1 &&
      EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, kTagBytes, tag.data()) == 1 &&
      EVP_DecryptFinal_ex(cipher.get(), bytes + length, &rest) == 1;
  if (!done) return wrong;
  return out;
}

std::string BodyOf(const SpoolRecord& record) {
  std::string body;
  Put(body, kBodyVersion);
  PutText(body, record.request_id);
  PutText(body, record.model);
  PutText(body, record.adapter);
  Put(body, record.vocabulary_fingerprint);
  PutFloat(body, record.temperature);
  Put(body, static_cast<uint32_t>(record.prompt.size()));
  Put(body, static_cast<uint32_t>(record.output.size()));
  for (const uint32_t token : record.prompt) Put(body, token);
  for (const SpoolRecord::OutputToken& token : record.output) {
    Put(body, token.chosen.token);
    PutFloat(body, token.chosen.logprob);
    const size_t num_top = std::min(token.top.size(), kMostTop);
    Put(body, static_cast<uint8_t>(num_top));
    for (size_t i = 0; i < num_top; ++i) {
      Put(body, token.top[i].token);
      PutFloat(body, token.top[i].logprob);
    }
  }
  return body;
}

}  // namespace

uint32_t Crc32(absl::string_view bytes, uint32_t before) {
  static const auto table = [] {
    std::array<uint32_t, 256> entries{};
    for (uint32_t i = 0; i < entries.size(); ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value & 1) != 0 ? 0xedb88320u ^ (value >> 1) : value >> 1;
      entries[i] = value;
    }
    return entries;
  }();
  uint32_t crc = ~before;
  for (const char c : bytes) crc = table[(crc ^ static_cast<uint8_t>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

std::array<uint8_t, 8> SpoolKeyId(const SpoolKey& key) {
  std::string text = "tandem spool key ";
  absl::StrAppend(&text, key.Reveal());
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest{};
  SHA256(Bytes(text), text.size(), digest.data());
  Cleanse(text);
  std::array<uint8_t, 8> id{};
  std::copy_n(digest.begin(), id.size(), id.begin());
  return id;
}

SpoolDigest SpoolRequestDigest(absl::string_view tenant, absl::string_view request_id) {
  std::string text = "tandem spool request ";
  Put(text, static_cast<uint32_t>(tenant.size()));
  absl::StrAppend(&text, tenant, request_id);
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest{};
  SHA256(Bytes(text), text.size(), digest.data());
  SpoolDigest cut{};
  std::copy_n(digest.begin(), cut.size(), cut.begin());
  return cut;
}

std::string EncodeSpoolHeader(const SpoolHeader& header) {
  std::string out(kMagic);
  Put(out, kVersion);
  PutBytes(out, header.file_id);
  PutBytes(out, header.key_id);
  Put(out, UnixMs(header.created));
  out.resize(kSpoolHeaderBytes - sizeof(uint32_t), '\0');
  Put(out, Crc32(out));
  return out;
}

absl::StatusOr<SpoolHeader> ParseSpoolHeader(absl::string_view bytes, absl::string_view path) {
  const auto wrong = [path](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
  };
  if (bytes.size() < kSpoolHeaderBytes) {
    return wrong(absl::StrCat(bytes.size(), " bytes, expected a header of ", kSpoolHeaderBytes));
  }
  Reader reader(bytes.substr(0, kSpoolHeaderBytes));
  if (reader.Bytes(kMagic.size()) != kMagic)
    return wrong("not a spool file: it does not begin with TDMSPOOL");
  const auto version = reader.Number<uint32_t>();
  SpoolHeader header;
  header.file_id = reader.Array<16>();
  header.key_id = reader.Array<8>();
  header.created = TimeOf(reader.Number<uint64_t>());
  Reader crc(bytes.substr(kSpoolHeaderBytes - sizeof(uint32_t), sizeof(uint32_t)));
  if (crc.Number<uint32_t>() != Crc32(bytes.substr(0, kSpoolHeaderBytes - sizeof(uint32_t)))) {
    return wrong("the header's checksum does not match its bytes");
  }
  if (version != kVersion) return wrong(absl::StrCat("version ", version, ", expected ", kVersion));
  return header;
}

absl::StatusOr<std::string> EncodeSpoolRecord(const SpoolHeader& header, const SpoolKey& key,
                                              const SpoolRecord& record) {
  SpoolRecordHead head{.time = record.time, .request = SpoolRequestDigest(record.tenant, record.request_id)};
  if (RAND_bytes(head.nonce.data(), static_cast<int>(head.nonce.size())) != 1) {
    return absl::InternalError("OpenSSL has no random numbers");
  }
  const std::string plain = BodyOf(record);
  const size_t body_size = plain.size() + kTagBytes;
  if (body_size > kMostSpoolBodyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a record of ", body_size, " bytes, expected at most ", kMostSpoolBodyBytes));
  }
  std::string bytes = HeadOf(head, body_size);
  TANDEM_ASSIGN_OR_RETURN(const std::string body, Encrypt(key, head.nonce, Associated(header, bytes), plain));
  return WithChecksum(std::move(bytes), body);
}

std::string EncodeSpoolTombstone(const SpoolDigest& request, absl::Time time) {
  return WithChecksum(HeadOf({.kind = SpoolRecordKind::kTombstone, .time = time, .request = request}, 0), "");
}

SpoolScan ScanSpoolFile(absl::string_view bytes) {
  SpoolScan scan;
  scan.end = std::min(bytes.size(), kSpoolHeaderBytes);
  while (bytes.size() - scan.end >= kSpoolRecordHeadBytes) {
    const absl::string_view rest = bytes.substr(scan.end);
    Reader reader(rest);
    const auto body_size = reader.Number<uint32_t>();
    const auto kind = reader.Number<uint32_t>();
    SpoolEntry entry{.offset = scan.end};
    entry.head.time = TimeOf(reader.Number<uint64_t>());
    entry.head.request = reader.Array<16>();
    entry.head.nonce = reader.Array<12>();
    const auto crc = reader.Number<uint32_t>();
    const bool is_request = kind == static_cast<uint32_t>(SpoolRecordKind::kRequest);
    const bool is_tombstone = kind == static_cast<uint32_t>(SpoolRecordKind::kTombstone);
    if (!is_request && !is_tombstone) break;
    if (body_size > kMostSpoolBodyBytes || (is_tombstone && body_size != 0)) break;
    const absl::string_view body = reader.Bytes(body_size);
    if (!reader.ok() || Crc32(body, Crc32(rest.substr(0, kCrcOffset))) != crc) break;
    entry.head.kind = static_cast<SpoolRecordKind>(kind);
    entry.size = kSpoolRecordHeadBytes + body_size;
    scan.end += entry.size;
    scan.entries.push_back(entry);
  }
  return scan;
}

absl::StatusOr<SpoolRecord> DecodeSpoolRecord(absl::string_view bytes, const SpoolHeader& header,
                                              const SpoolEntry& entry, const SpoolKey& key) {
  const absl::string_view whole = bytes.substr(std::min(entry.offset, bytes.size()), entry.size);
  if (whole.size() < kSpoolRecordHeadBytes) return absl::InvalidArgumentError("expected a record");
  TANDEM_ASSIGN_OR_RETURN(const std::string plain, Decrypt(key, entry.head.nonce, Associated(header, whole),
                                                           whole.substr(kSpoolRecordHeadBytes)));
  Reader reader(plain);
  const auto version = reader.Number<uint32_t>();
  if (version != kBodyVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("a body of version ", version, ", expected ", kBodyVersion));
  }
  SpoolRecord record{.time = entry.head.time};
  record.request_id = reader.Text();
  record.model = reader.Text();
  record.adapter = reader.Text();
  record.vocabulary_fingerprint = reader.Number<uint64_t>();
  record.temperature = reader.Float();
  const size_t num_prompt = reader.Number<uint32_t>();
  const size_t num_output = reader.Number<uint32_t>();
  // Before memory is taken for them: of an output token at least 9 bytes.
  if (!reader.ok() || num_prompt > reader.left() / 4 || num_output > reader.left() / 9) {
    return absl::InvalidArgumentError("the record is shorter than the tokens that it announces");
  }
  for (size_t i = 0; i < num_prompt; ++i) record.prompt.push_back(reader.Number<uint32_t>());
  for (size_t i = 0; i < num_output && reader.ok(); ++i) {
    SpoolRecord::OutputToken& token = record.output.emplace_back();
    token.chosen.token = reader.Number<uint32_t>();
    token.chosen.logprob = reader.Float();
    const size_t num_top = reader.Number<uint8_t>();
    for (size_t k = 0; k < num_top && reader.ok(); ++k) {
      token.top.push_back({.token = reader.Number<uint32_t>(), .logprob = reader.Float()});
    }
  }
  if (!reader.ok() || reader.left() != 0) {
    return absl::InvalidArgumentError("the record's length does not match its header");
  }
  return record;
}

}  // namespace tandem::router
