// Draft models that a running drafter loads and unloads, over gRPC, with the demo's.

#include "drafter/rpc/draft_model_pool.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/temporary_folder.h"
#include "common/rpc/draft_wire.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kModels[] = TANDEM_SOURCE_DIR "/deploy/demo-models";

std::string DraftFolder(absl::string_view name) {
  return absl::StrCat(kModels, "/tandem-draft-", name);
}

class DraftModelPoolTest : public ::testing::Test {
 protected:
  // Serves general-1m.
  void Start(DraftModelPool::Options options, const std::vector<std::string>& merges = {}) {
    options.specs = ParseModelSpecs({absl::StrCat("general=", DraftFolder("general-1m"))}).value();
    options.merges = ParseMergeSpecs(merges, options.specs).value();
    options.load.kv_tokens = 1024;
    auto models = DraftModelPool::Open(std::move(options), &registry_);
    ASSERT_TRUE(models.ok()) << models.status();
    models_ = *std::move(models);
    service_ = std::make_unique<DrafterService>(&metrics_);
    service_->SetChanges(models_->Changes());
    server_ = ServerRunner::Start({.listen_address = "127.0.0.1:0"},
                                  {{v1::Drafter::service_full_name(), service_.get()}}, {})
                  .value();
    stub_ = v1::Drafter::NewStub(server_->InProcessChannel());
    ASSERT_TRUE(models_->Load().ok());
    models_->Serve(service_.get(), {}, {}, &constraint_metrics_, &clock_, [this] { ++changes_; });
  }
  ~DraftModelPoolTest() override {
    if (models_ == nullptr) return;
    models_->Stop();
    server_.reset();
    service_.reset();
  }

  absl::StatusOr<v1::LoadDraftModelResponse> Load(const v1::LoadDraftModelRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::LoadDraftModelResponse response;
    const absl::Status status = FromGrpcStatus(stub_->LoadDraftModel(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }
  absl::StatusOr<v1::LoadDraftModelResponse> Load(const std::string& folder, const std::string& name,
                                                  bool replace = false, const std::string& version = "") {
    v1::LoadDraftModelRequest request;
    request.set_folder(folder);
    request.set_name(name);
    request.set_replace(replace);
    request.set_version(version);
    return Load(request);
  }
  absl::StatusOr<uint32_t> Unload(const std::string& name) {
    v1::UnloadDraftModelRequest request;
    request.set_name(name);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::UnloadDraftModelResponse response;
    const absl::Status status = FromGrpcStatus(stub_->UnloadDraftModel(&context, request, &response));
    if (!status.ok()) return status;
    return response.sessions();
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const v1::ModelInfo& info : models_->infos()) names.push_back(info.name());
    return names;
  }
  double MemoryMetric() {
    const std::string text = registry_.Expose();
    const size_t at = text.find("\ntandem_drafter_model_memory_bytes ");
    return std::stod(text.substr(at + sizeof("\ntandem_drafter_model_memory_bytes")));
  }

  SystemClock clock_;
  MetricsRegistry registry_;
  DrafterMetrics metrics_{&registry_};
  ConstraintMetrics constraint_metrics_{&registry_, "tandem_drafter"};
  std::unique_ptr<DraftModelPool> models_;
  std::unique_ptr<DrafterService> service_;
  std::unique_ptr<ServerRunner> server_;
  std::unique_ptr<v1::Drafter::Stub> stub_;
  std::atomic<int> changes_{0};
};

// A session of general-1m on a stream of its own.
class OpenDraft {
 public:
  OpenDraft(v1::Drafter::Stub& stub, const std::string& model, uint64_t fingerprint) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stream_ = stub.Draft(&context_);
    const TokenIds tokens = {1, 20, 300, 40, 50};
    stream_->Write(
        DraftRequestToProto({1, OpenSession{.epoch = 1,
                                            .draft_model = model,
                                            .vocabulary_fingerprint = fingerprint,
                                            .tokens = tokens,
                                            .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, tokens),
                                            .sampling = {.temperature = 0.0f},
                                            .prompt_length = 5,
                                            .budget = {.depth = 3, .nodes = 6, .branching = 2}}}));
    v1::DraftResponse response;
    while (stream_->Read(&response)) {
      if (response.has_refused()) refusal_ = response.refused().message();
      if (response.has_refused() || (response.has_grow() && response.grow().exhausted())) break;
    }
  }
  ~OpenDraft() {
    context_.TryCancel();
    stream_->Finish();
  }
  const std::string& refusal() const { return refusal_; }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::DraftRequest, v1::DraftResponse>> stream_;
  std::string refusal_;
};

TEST_F(DraftModelPoolTest, LoadsReplacesAndUnloads) {
  Start({.models_folder = kModels, .digests_weights = true});
  const uint64_t fingerprint = models_->infos()[0].vocabulary_fingerprint();
  const double alone = MemoryMetric();
  const auto loaded = Load("tandem-draft-code-1m", "acme", false, "2026-11-01");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->model().name(), "acme");
  EXPECT_EQ(loaded->model().version(), "2026-11-01");
  EXPECT_GT(loaded->model().level_seconds(), 0.0);
  EXPECT_EQ(loaded->kv_tokens(), 1024u);
  EXPECT_GT(loaded->memory_bytes(), 1u << 20);
  EXPECT_EQ(MemoryMetric(), alone + static_cast<double>(loaded->memory_bytes()));
  EXPECT_THAT(Names(), ElementsAre("general", "acme"));
  EXPECT_EQ(changes_, 1);
  const v1::RegisteredDrafter registered = models_->registered();
  ASSERT_EQ(registered.models_size(), 2);
  EXPECT_EQ(registered.models(1).model().version(), "2026-11-01");
  EXPECT_EQ(registered.models(1).weights_sha256().size(), 32u);
  EXPECT_NE(registered.models(1).weights_sha256(), registered.models(0).weights_sha256());
  {
    const OpenDraft session(*stub_, "acme", fingerprint);
    EXPECT_EQ(session.refusal(), "");
    const auto replaced = Load("tandem-draft-math-1m", "acme", true, "2026-11-02");
    ASSERT_TRUE(replaced.ok()) << replaced.status();
    EXPECT_EQ(replaced->sessions(), 1u);
    EXPECT_THAT(Names(), ElementsAre("general", "acme"));
    EXPECT_EQ(models_->infos()[1].version(), "2026-11-02");
    EXPECT_EQ(MemoryMetric(), alone + 2.0 * static_cast<double>(loaded->memory_bytes()))
        << "the session goes on with the version that it has";
    EXPECT_EQ(models_->registered().models(1).model().version(), "2026-11-02");
  }
  const absl::StatusOr<uint32_t> unloaded = Unload("acme");
  ASSERT_TRUE(unloaded.ok()) << unloaded.status();
  EXPECT_EQ(*unloaded, 0u);
  EXPECT_THAT(Names(), ElementsAre("general"));
  EXPECT_THAT(OpenDraft(*stub_, "acme", fingerprint).refusal(), HasSubstr("no draft model acme"));
  // The stream's end, which ends its session, is heard of by and by.
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (MemoryMetric() != alone && absl::Now() < deadline) {
    (void)OpenDraft(*stub_, "general", fingerprint);
  }
  EXPECT_EQ(MemoryMetric(), alone);
  EXPECT_THAT(registry_.Expose(),
              HasSubstr("tandem_drafter_model_changes_total{change=\"load\",outcome=\"ok\"} 2"));
}

TEST_F(DraftModelPoolTest, RefusesWhatItCannotServe) {
  const TemporaryFolder outside;
  Start({.models_folder = kModels, .max_models = 3}, {"both=general+ngram"});
  const auto refused = [&](const absl::Status& status, absl::StatusCode code, const char* text) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  using Code = absl::StatusCode;
  refused(Load("tandem-draft-code-1m", "general").status(), Code::kAlreadyExists,
          "holds \"general\" already");
  refused(Load("tandem-draft-code-1m", "general", true).status(), Code::kFailedPrecondition,
          "\"both\" of this drafter is merged from \"general\"");
  refused(Load("../../docs", "x").status(), Code::kInvalidArgument,
          "does not exist below the drafter's --models-folder");
  refused(Load(outside.path(), "x").status(), Code::kInvalidArgument, "does not exist below");
  refused(Load("", "x").status(), Code::kInvalidArgument, "does not exist below");
  refused(Load("train", "x").status(), Code::kInvalidArgument, "folder: ");
  refused(Load("tandem-draft-code-1m", "two words").status(), Code::kInvalidArgument, "name: \"two words\"");
  refused(Load("tandem-draft-code-1m", "x", false, "a\nb").status(), Code::kInvalidArgument,
          "version: \"a\\nb\"");
  v1::LoadDraftModelRequest request;
  request.set_folder("tandem-draft-code-1m");
  request.set_kv_tokens(1025);
  refused(Load(request).status(), Code::kInvalidArgument, "kv_tokens: 1025, expected 256 to 1024");
  refused(Unload("general").status(), Code::kFailedPrecondition, "is merged from \"general\"");
  refused(Unload("nobody").status(), Code::kNotFound, "no model \"nobody\"");
  request.set_kv_tokens(256);
  const auto loaded = Load(request);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->model().name(), "tandem-draft-code-1m");
  EXPECT_EQ(loaded->kv_tokens(), 256u);
  refused(Load("tandem-draft-math-1m", "x").status(), Code::kResourceExhausted, "holds 3 models");
  EXPECT_TRUE(Unload("both").ok());
  EXPECT_TRUE(Unload("general").ok()) << "nothing is made of it any more";
  refused(Unload("tandem-draft-code-1m").status(), Code::kFailedPrecondition, "last model");
}

TEST_F(DraftModelPoolTest, TheMemoryLimitIsKept) {
  // Of one model, and half of another.
  const auto model = Model::Load(DraftFolder("general-1m")).value();
  const uint64_t one = ModelHost::MemoryOf(*model, {.kv_tokens = 1024}).total();
  Start({.models_folder = kModels, .memory_limit = one * 3 / 2});
  const absl::Status status = Load("tandem-draft-code-1m", "x").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              ::testing::ContainsRegex("memory: the model takes [0-9.]+ MiB \\(weights [0-9.]+ MiB, keys and "
                                       "values [0-9.]+ MiB\\), and [0-9.]+ MiB of the [0-9.]+ MiB of "
                                       "--models-memory are in use"));
  v1::LoadDraftModelRequest small;
  small.set_folder("tandem-draft-code-1m");
  small.set_kv_tokens(256);
  EXPECT_EQ(Load(small).ok(), ModelHost::MemoryOf(*model, {.kv_tokens = 256}).total() <= one / 2);

  MetricsRegistry registry;
  const absl::Status start =
      DraftModelPool::Open({.specs = {{"a", DraftFolder("general-1m")}, {"b", DraftFolder("code-1m")}},
                            .load = {.kv_tokens = 1024},
                            .memory_limit = one * 3 / 2},
                           &registry)
          .status();
  EXPECT_EQ(start.code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(DraftModelPoolTest, WithoutAFolderModelsStay) {
  Start({});
  EXPECT_THAT(std::string(Load("tandem-draft-code-1m", "x").status().message()),
              HasSubstr("--models-folder"));
  EXPECT_EQ(Unload("general").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(DraftModelPoolTest, TheFoldersCardSaysTheVersion) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.PathOf("learned"));
  const auto write = [&](absl::string_view card) {
    for (const char* name : {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
                             "generation_config.json"}) {
      folder.Write(absl::StrCat("learned/", name),
                   ReadFile(absl::StrCat(DraftFolder("code-1m"), "/", name), 64 << 20).value());
    }
    folder.Write("learned/draft_card.json", card);
  };
  write(R"({"version": "acme-7", "steps": 100})");
  Start({.models_folder = folder.path()});
  const auto loaded = Load("learned", "");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->model().version(), "acme-7");
  for (const auto& [card, text] :
       std::vector<std::pair<const char*, const char*>>{{"[]", "expected an object"},
                                                        {R"({"version": 7})", "field version: found 7"},
                                                        {R"({"version": "a b"})", "field version: \"a b\""},
                                                        {"{", "draft_card.json: byte"}}) {
    write(card);
    const absl::Status status = Load("learned", "x").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << card;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text)) << card;
  }
}

}  // namespace
}  // namespace tandem
