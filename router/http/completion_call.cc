#include "router/http/completion_call.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "router/http/answer_writer.h"
#include "router/http/openai_answer.h"
#include "router/serving/generate_call.h"
#include "router/serving/outputs_call.h"

namespace tandem::router {
namespace {

class CompletionCall final : public std::enable_shared_from_this<CompletionCall> {
 public:
  CompletionCall(Router& router, CompletionRequest request, const std::string& request_id,
                 std::vector<std::pair<std::string, std::string>> fields,
                 std::shared_ptr<HttpExchange> exchange)
      : router_(router),
        lease_(router),
        request_(std::move(request)),
        fields_(std::move(fields)),
        exchange_(std::move(exchange)),
        answer_(MakeAnswerWriter(request_, request_id, absl::ToUnixSeconds(router.clock().Now()))),
        left_(request_.prompts.size()) {
    for (size_t i = 0; i < request_.prompts.size(); ++i)
      choices_.push_back(std::make_unique<Choice>(*this, i));
  }

  void Start(const CallHead& head, const std::string& request_id) {
    for (const std::unique_ptr<Choice>& choice : choices_) {
      choice->call = OutputsCall::Create(router_, head, *choice);
      choice->self = shared_from_this();
    }
    exchange_->SetOnGone([self = shared_from_this()] { self->CancelAll(); });
    for (size_t i = 0; i < choices_.size(); ++i) {
      auto prompt = std::make_shared<v1::GenerateRequest>(request_.prompts[i]);
      prompt->set_request_id(choices_.size() == 1 ? request_id : absl::StrCat(request_id, "-", i));
      choices_[i]->call->Start([&]() -> absl::StatusOr<GenerateCall::Request> { return prompt; });
    }
  }

 private:
  // The client's side of one prompt's outputs. What it does is the call's that owns all of them.
  struct Choice final : ClientStream {
    Choice(CompletionCall& its_owner, size_t its_index) : owner(its_owner), index(its_index) {}
    void Write(const v1::GenerateResponse& event) override { owner.OnEvent(*this, event); }
    void Finish(const absl::Status& status) override { owner.OnFinish(*this, status); }
    void Cancel() override { owner.exchange_->Abort(); }

    CompletionCall& owner;
    const size_t index;
    std::shared_ptr<OutputsCall> call;
    std::shared_ptr<CompletionCall> self;  // Until the generation is over.
  };

  const PromptEncoder& EncoderOf(const std::string& model) const {
    for (size_t i = 0; i < router_.num_models(); ++i) {
      if (router_.model(i).name == model) return *router_.model(i).encoder;
    }
    return *router_.model(0).encoder;
  }

  // With the generation's mutex held, which comes before this one's.
  void OnEvent(Choice& choice, const v1::GenerateResponse& event) {
    std::string bytes;
    {
      absl::MutexLock lock(&mutex_);
      if (event.has_started()) encoder_ = &EncoderOf(event.started().model());
      if (!over_ && encoder_ != nullptr)
        bytes = answer_->OnEvent(choice.index * request_.num_outputs + event.output(), event, *encoder_);
      if (!bytes.empty() && !begun_) {
        begun_ = true;
        HttpAnswer head{.fields = fields_};
        head.fields.emplace_back("Content-Type", "text/event-stream; charset=utf-8");
        head.fields.emplace_back("Cache-Control", "no-cache");
        head.fields.emplace_back("X-Accel-Buffering", "no");
        exchange_->Begin(std::move(head));
      }
    }
    exchange_->Write(std::move(bytes),
                     [self = choice.self, call = choice.call](bool ok) { call->OnWriteDone(ok); });
  }

  void OnFinish(Choice& choice, const absl::Status& status) {
    bool cancel = false;
    {
      absl::MutexLock lock(&mutex_);
      --left_;
      if (!status.ok() && !over_) {
        over_ = cancel = true;
        if (begun_) {
          exchange_->Write(answer_->Failure(status), [](bool) {});
          exchange_->End();
        } else {
          exchange_->Answer(WithFields(answer_->Refusal(status, request_.NamesOf(choice.index))));
        }
      } else if (left_ == 0 && !over_) {
        over_ = true;
        if (request_.stream) {
          exchange_->Write(answer_->Ending(), [](bool) {});
          exchange_->End();
        } else {
          exchange_->Answer(WithFields(JsonAnswer(answer_->Whole())));
        }
      }
    }
    // Elsewhere, as the generation's mutex is held.
    exchange_->Write("", [self = std::move(choice.self), call = choice.call, cancel](bool) {
      call->OnDone();
      if (cancel) self->CancelAll();
    });
  }

  void CancelAll() {
    for (const std::unique_ptr<Choice>& choice : choices_) choice->call->OnCancel();
  }

  HttpAnswer WithFields(HttpAnswer answer) const {
    answer.fields.insert(answer.fields.end(), fields_.begin(), fields_.end());
    return answer;
  }

  Router& router_;
  const Router::Lease lease_;
  const CompletionRequest request_;
  const std::vector<std::pair<std::string, std::string>> fields_;
  const std::shared_ptr<HttpExchange> exchange_;
  std::vector<std::unique_ptr<Choice>> choices_;
  absl::Mutex mutex_;
  const std::unique_ptr<AnswerWriter> answer_ ABSL_PT_GUARDED_BY(mutex_);
  const PromptEncoder* encoder_ ABSL_GUARDED_BY(mutex_) = nullptr;  // Of the model they all have.
  size_t left_ ABSL_GUARDED_BY(mutex_);                             // Generations that are not over.
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;                      // The stream's head is out.
  bool over_ ABSL_GUARDED_BY(mutex_) = false;                       // Nothing more is told.
};

}  // namespace

void ServeCompletion(Router& router, const CallHead& head, CompletionRequest request, std::string request_id,
                     std::vector<std::pair<std::string, std::string>> answer_fields,
                     std::shared_ptr<HttpExchange> exchange) {
  std::make_shared<CompletionCall>(router, std::move(request), request_id, std::move(answer_fields),
                                   std::move(exchange))
      ->Start(head, request_id);
}

}  // namespace tandem::router
