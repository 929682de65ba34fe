#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/compiled.h"

namespace tandem {

// The messages between a verifier and the process that compiles for it, over a socket. A frame is a length
// followed by that many bytes. First comes the vocabulary and, once it is sorted, an empty answer; then job,
// answer, job, answer, and so on. Both processes are of the same build.

std::string EncodeVocabulary(const GrammarVocabulary& vocabulary);
absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> DecodeVocabulary(absl::string_view bytes);

std::string EncodeJob(const ConstraintSource& source);
absl::StatusOr<ConstraintSource> DecodeJob(absl::string_view bytes);

// Encodes the result of CompileConstraint.
std::string EncodeAnswer(const absl::StatusOr<std::string>& answer);
absl::StatusOr<std::string> DecodeAnswer(std::string bytes);

// Most bytes of a frame.
inline constexpr uint32_t kMostFrameBytes = 1u << 27;
// The bytes of a frame's length, in front of it.
std::string FrameLength(size_t bytes);
// The number of bytes that follow; InvalidArgument for more than kMostFrameBytes. `length` has 4 bytes.
absl::StatusOr<size_t> ParseFrameLength(absl::string_view length);

// Blocking, on a socket. OutOfRange at its end before the first byte.
absl::Status WriteFrame(int socket, absl::string_view bytes);
absl::StatusOr<std::string> ReadFrame(int socket);

}  // namespace tandem
