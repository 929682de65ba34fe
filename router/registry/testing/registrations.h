#pragma once

#include <string>

#include "tandem/v1/registry.pb.h"

namespace tandem::router::testing {

inline constexpr uint64_t kVocabulary = 0x1234;

// 16 bytes that differ by `number`.
inline std::string InstanceBytes(uint64_t number) {
  std::string bytes(16, 'i');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(number >> (8 * i));
  return bytes;
}

// A server that started at `number` milliseconds.
inline v1::ServerRegistration ServerAt(const std::string& name, const std::string& address, uint64_t number) {
  v1::ServerRegistration server;
  server.mutable_instance()->set_name(name);
  server.mutable_instance()->set_instance(InstanceBytes(number));
  server.mutable_instance()->set_started_unix_ms(number);
  server.set_address(address);
  server.set_version("1.0");
  server.mutable_capacity()->set_max_running(4);
  server.mutable_capacity()->set_max_waiting(8);
  return server;
}

// Of the model "letters".
inline v1::ServerRegistration VerifierAt(const std::string& name, const std::string& address,
                                         uint64_t number) {
  v1::ServerRegistration server = ServerAt(name, address, number);
  v1::RegisteredVerifier& verifier = *server.mutable_verifier();
  verifier.mutable_model()->set_name("letters");
  verifier.mutable_model()->set_vocabulary_fingerprint(kVocabulary);
  verifier.mutable_model()->set_weight_type("bf16");
  verifier.set_weights_sha256(std::string(32, 'w'));
  return server;
}

// With one draft model.
inline v1::ServerRegistration DrafterAt(const std::string& name, const std::string& address, uint64_t number,
                                        const std::string& model) {
  v1::ServerRegistration server = ServerAt(name, address, number);
  v1::RegisteredDraftModel& draft = *server.mutable_drafter()->add_models();
  draft.mutable_model()->set_name(model);
  draft.mutable_model()->set_vocabulary_fingerprint(kVocabulary);
  draft.set_weights_sha256(std::string(32, 'd'));
  return server;
}

}  // namespace tandem::router::testing
