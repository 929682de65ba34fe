#include "common/grammar/compile_job.h"

#include <sys/socket.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

static_assert(std::endian::native == std::endian::little);

void AppendWord(uint32_t word, std::string* bytes) {
  char raw[sizeof(word)];
  std::memcpy(raw, &word, sizeof(word));
  bytes->append(raw, sizeof(word));
}

// Reads from the front of some bytes.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : bytes_(bytes) {}

  absl::StatusOr<absl::string_view> Bytes(size_t count) {
    if (count > bytes_.size()) return absl::DataLossError("a message between processes ends too early");
    const absl::string_view read = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return read;
  }
  absl::StatusOr<uint32_t> Word() {
    TANDEM_ASSIGN_OR_RETURN(const absl::string_view raw, Bytes(sizeof(uint32_t)));
    uint32_t word = 0;
    std::memcpy(&word, raw.data(), sizeof(word));
    return word;
  }
  absl::string_view rest() const { return bytes_; }

 private:
  absl::string_view bytes_;
};

absl::Status Failure(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// `count` bytes, or fewer at the end of the file.
absl::StatusOr<std::string> ReadBytes(int socket, size_t count) {
  std::string bytes(count, '\0');
  size_t have = 0;
  while (have < count) {
    const ssize_t read = ::read(socket, bytes.data() + have, count - have);
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return Failure("reading");
    if (read == 0) break;
    have += static_cast<size_t>(read);
  }
  bytes.resize(have);
  return bytes;
}

}  // namespace

std::string EncodeVocabulary(const GrammarVocabulary& vocabulary) {
  std::string bytes;
  AppendWord(static_cast<uint32_t>(vocabulary.size()), &bytes);
  for (const std::string& token : vocabulary.bytes()) {
    AppendWord(static_cast<uint32_t>(token.size()), &bytes);
    bytes += token;
  }
  AppendWord(static_cast<uint32_t>(vocabulary.end_tokens().size()), &bytes);
  for (const TokenId token : vocabulary.end_tokens()) AppendWord(static_cast<uint32_t>(token), &bytes);
  return bytes;
}

absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> DecodeVocabulary(absl::string_view bytes) {
  Reader reader(bytes);
  TANDEM_ASSIGN_OR_RETURN(const uint32_t size, reader.Word());
  std::vector<std::string> tokens;
  for (uint32_t i = 0; i < size; ++i) {
    TANDEM_ASSIGN_OR_RETURN(const uint32_t length, reader.Word());
    TANDEM_ASSIGN_OR_RETURN(const absl::string_view token, reader.Bytes(length));
    tokens.emplace_back(token);
  }
  TANDEM_ASSIGN_OR_RETURN(const uint32_t num_end_tokens, reader.Word());
  std::vector<TokenId> end_tokens;
  for (uint32_t i = 0; i < num_end_tokens; ++i) {
    TANDEM_ASSIGN_OR_RETURN(const uint32_t token, reader.Word());
    end_tokens.push_back(static_cast<TokenId>(token));
  }
  return GrammarVocabulary::Create(std::move(tokens), std::move(end_tokens));
}

std::string EncodeJob(const ConstraintSource& source) {
  std::string bytes;
  AppendWord(static_cast<uint32_t>(source.form), &bytes);
  AppendWord(source.any_whitespace ? 1 : 0, &bytes);
  return bytes + source.text;
}

absl::StatusOr<ConstraintSource> DecodeJob(absl::string_view bytes) {
  Reader reader(bytes);
  TANDEM_ASSIGN_OR_RETURN(const uint32_t form, reader.Word());
  TANDEM_ASSIGN_OR_RETURN(const uint32_t any_whitespace, reader.Word());
  return ConstraintSource{.form = static_cast<ConstraintSource::Form>(form),
                          .text = std::string(reader.rest()),
                          .any_whitespace = any_whitespace != 0};
}

std::string EncodeAnswer(const absl::StatusOr<std::string>& answer) {
  std::string bytes;
  AppendWord(static_cast<uint32_t>(answer.status().raw_code()), &bytes);
  return bytes + (answer.ok() ? *answer : std::string(answer.status().message()));
}

absl::StatusOr<std::string> DecodeAnswer(std::string bytes) {
  Reader reader(bytes);
  TANDEM_ASSIGN_OR_RETURN(const uint32_t code, reader.Word());
  if (code != 0) return absl::Status(static_cast<absl::StatusCode>(code), reader.rest());
  bytes.erase(0, sizeof(code));
  return bytes;
}

std::string FrameLength(size_t bytes) {
  std::string length;
  AppendWord(static_cast<uint32_t>(bytes), &length);
  return length;
}

absl::StatusOr<size_t> ParseFrameLength(absl::string_view length) {
  Reader reader(length);
  TANDEM_ASSIGN_OR_RETURN(const uint32_t bytes, reader.Word());
  if (bytes > kMostFrameBytes) return absl::InvalidArgumentError("a message between processes is too long");
  return size_t{bytes};
}

absl::Status WriteFrame(int socket, absl::string_view bytes) {
  if (bytes.size() > kMostFrameBytes) return absl::InvalidArgumentError("a message is too long to be sent");
  const std::string frame = absl::StrCat(FrameLength(bytes.size()), bytes);
  for (size_t sent = 0; sent < frame.size();) {
    const ssize_t written = ::send(socket, frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failure("writing");
    sent += static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFrame(int socket) {
  TANDEM_ASSIGN_OR_RETURN(const std::string length, ReadBytes(socket, sizeof(uint32_t)));
  if (length.empty()) return absl::OutOfRangeError("no more messages");
  TANDEM_ASSIGN_OR_RETURN(const size_t count, ParseFrameLength(length));
  TANDEM_ASSIGN_OR_RETURN(std::string bytes, ReadBytes(socket, count));
  if (bytes.size() < count) return absl::DataLossError("a message between processes ends too early");
  return bytes;
}

}  // namespace tandem
