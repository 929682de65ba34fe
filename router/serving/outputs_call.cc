#include "router/serving/outputs_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/release.h"
#include "router/serving/request.h"

namespace tandem::router {
namespace {

// The request of output `index` alone.
GenerateCall::Request RequestOf(const v1::GenerateRequest& whole, const std::string& request_id,
                                uint64_t seed, uint32_t index) {
  auto request = std::make_shared<v1::GenerateRequest>(whole);
  request->clear_num_outputs();
  request->mutable_output()->clear_prompt_logprobs();
  request->mutable_output()->clear_prompt_token_ids();
  request->mutable_sampling()->set_seed(seed + index);
  request->set_request_id(absl::StrCat(request_id, "-", index));
  return request;
}

}  // namespace

std::shared_ptr<OutputsCall> OutputsCall::Create(Router& router, const CallHead& head, ClientStream& client) {
  std::shared_ptr<OutputsCall> outputs(new OutputsCall(router, head, client));
  absl::MutexLock lock(&outputs->mutex_);
  Output& first = *outputs->outputs_.emplace_back(std::make_unique<Output>(*outputs, 0));
  first.call = GenerateCall::Create(router, head, first);
  return outputs;
}

void OutputsCall::Start(absl::FunctionRef<absl::StatusOr<GenerateCall::Request>()> read) {
  std::shared_ptr<GenerateCall> first;
  {
    absl::MutexLock lock(&mutex_);
    first = outputs_[0]->call;
  }
  first->Start([&]() -> absl::StatusOr<GenerateCall::Request> {
    TANDEM_ASSIGN_OR_RETURN(GenerateCall::Request request, read());
    absl::MutexLock lock(&mutex_);
    // More than there may be are refused by the call itself.
    if (request->num_outputs() > 1 && request->num_outputs() <= kMaxOutputs) {
      request_ = request;
      num_others_ = request->num_outputs() - 1;
    } else {
      head_.authorization.reset();
    }
    return request;
  });
}

void OutputsCall::OnEvent(Output& output, const v1::GenerateResponse& event) {
  absl::MutexLock lock(&mutex_);
  if (output.index == 0 && event.has_started()) {
    seed_ = event.started().seed();
    if (request_ != nullptr && request_->request_id().empty()) {
      auto named = std::make_shared<v1::GenerateRequest>(*request_);
      named->set_request_id(event.started().request_id());
      request_ = std::move(named);
    }
  }
  if (output.index == 0 && (event.has_chunk() || event.has_finished()) && num_others_ > 0 &&
      !std::exchange(others_begun_, true)) {
    left_ += num_others_;
    Soon(start_, &OutputsCall::StartOthers);
  }
  queue_.push_back({&output, &event});
  WriteNext();
}

void OutputsCall::WriteNext() {
  if (writing_ || gone_ || queue_.empty()) return;
  writing_ = true;
  const Queued& next = queue_.front();
  if (next.output->index == 0) return client_.Write(*next.event);
  numbered_ = *next.event;
  numbered_.set_output(next.output->index);
  client_.Write(numbered_);
}

void OutputsCall::OnWriteDone(bool ok) {
  std::shared_ptr<GenerateCall> call;
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    gone_ = gone_ || !ok;
    call = queue_.front().output->call;
    queue_.pop_front();
    if (ok) WriteNext();
  }
  call->OnWriteDone(ok);
  if (!ok) CancelAll();
  absl::MutexLock lock(&mutex_);
  FinishIfOver();
}

void OutputsCall::OnFinish(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  --left_;
  if (!status.ok() && status_.ok()) {
    status_ = status;
    if (left_ > 0 && !cancelled_) Soon(cancel_, &OutputsCall::CancelAll);
  }
  FinishIfOver();
}

void OutputsCall::FinishIfOver() {
  if (left_ > 0 || writing_ || finished_) return;
  finished_ = true;
  client_.Finish(status_);
}

void OutputsCall::StartOthers() {
  Calls calls;
  std::vector<GenerateCall::Request> requests;
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) {
      left_ -= num_others_;
      FinishIfOver();
      return;
    }
    for (uint32_t i = 1; i <= num_others_; ++i) {
      Output& output = *outputs_.emplace_back(std::make_unique<Output>(*this, i));
      output.call = GenerateCall::Create(router_, head_, output);
      calls.push_back(output.call);
      requests.push_back(RequestOf(*request_, request_->request_id(), seed_, i));
    }
    request_ = nullptr;
    head_.authorization.reset();
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i]->Start([&]() -> absl::StatusOr<GenerateCall::Request> { return requests[i]; });
  }
}

void OutputsCall::OnCancel() {
  CancelAll();
}

void OutputsCall::CancelAll() {
  Calls calls;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    for (const std::unique_ptr<Output>& output : outputs_) calls.push_back(output->call);
  }
  for (const std::shared_ptr<GenerateCall>& call : calls) call->OnCancel();
  // Nothing is added to the queue by calls that are cancelled, and what waits there is not written any more.
  Calls waiting;
  {
    absl::MutexLock lock(&mutex_);
    for (; queue_.size() > (writing_ ? 1 : 0); queue_.pop_back())
      waiting.push_back(queue_.back().output->call);
  }
  for (const std::shared_ptr<GenerateCall>& call : waiting) call->OnWriteDone(false);
}

void OutputsCall::OnDone() {
  Calls calls;
  {
    absl::MutexLock lock(&mutex_);
    for (const std::unique_ptr<Output>& output : outputs_) calls.push_back(output->call);
  }
  for (const std::shared_ptr<GenerateCall>& call : calls) call->OnDone();
}

void OutputsCall::Soon(grpc::Alarm& alarm, void (OutputsCall::*method)()) {
  alarm.Set(gpr_now(GPR_CLOCK_MONOTONIC), [self = shared_from_this(), method](bool) mutable {
    ((*self).*method)();
    ReleaseElsewhere(std::move(self));
  });
}

}  // namespace tandem::router
