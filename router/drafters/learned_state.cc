#include "router/drafters/learned_state.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/config/sealed_bytes.h"
#include "common/config/token_digest.h"
#include "router/config/config.h"
#include "router/state/open_store.h"
#include "tandem/v1/state.pb.h"

namespace tandem::router {
namespace {

constexpr absl::string_view kLearnedBlob = "learned";
constexpr absl::string_view kPoliciesBlob = "window-policies";
// Names of a foreign file, in a message.
constexpr size_t kMostNamed = 8;

std::string BlobBefore(absl::string_view blob) {
  return absl::StrCat(blob, "-before");
}

// A record as the store has it: nothing when there is none; DataLoss, naming the blob, for a damaged one.
template <class Record>
absl::StatusOr<std::optional<Record>> ReadRecord(RoutingStore& store, absl::string_view blob) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> bytes, GetBlob(store, blob));
  if (!bytes.has_value()) return std::nullopt;
  absl::StatusOr<absl::string_view> message = Unseal(*bytes);
  Record record;
  if (message.ok() && !record.ParseFromArray(message->data(), static_cast<int>(message->size()))) {
    message = absl::DataLossError("not the expected message");
  }
  if (message.ok()) return record;
  return absl::DataLossError(absl::StrCat("the state's record \"", blob, "\": ", message.status().message()));
}

// The record; of one that is damaged the one before, which costs what was learned in between, and an empty
// one where neither is good.
template <class Record>
absl::StatusOr<Record> LastGoodRecord(RoutingStore& store, absl::string_view blob) {
  absl::StatusOr<std::optional<Record>> record = ReadRecord<Record>(store, blob);
  if (absl::IsDataLoss(record.status())) {
    absl::StatusOr<std::optional<Record>> before = ReadRecord<Record>(store, BlobBefore(blob));
    const bool good = before.ok() && before->has_value();
    LogError(good ? "the learned state is damaged; using the copy before it"
                  : "the learned state is damaged; learning starts again",
             {{"error", std::string(record.status().message())}});
    record = good ? std::move(before) : std::optional<Record>();
  }
  if (!record.ok()) return record.status();
  return std::move(*record).value_or(Record());
}

// Nothing happens when the store has the same. What it has is kept as the record before, if it is good.
template <class Record>
absl::Status WriteRecord(const Record& record, absl::string_view blob, RoutingStore& store) {
  const std::string bytes = Seal(record.SerializeAsString());
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> there, GetBlob(store, blob));
  if (there.has_value()) {
    if (*there == bytes) return absl::OkStatus();
    // Two writes, since an etcd bounds the size of one.
    if (ReadRecord<Record>(store, blob).ok()) {
      TANDEM_RETURN_IF_ERROR(PutBlob(store, BlobBefore(blob), *there));
    }
  }
  return PutBlob(store, blob, bytes);
}

// Adds the models of `learned` that `record` does not have.
void AddOthers(const v1::LearnedRouting& learned, v1::LearnedRouting* to) {
  std::set<std::string> known;
  for (const v1::LearnedModel& model : to->models()) known.insert(model.model());
  for (const v1::LearnedModel& model : learned.models()) {
    if (known.count(model.model()) == 0) *to->add_models() = model;
  }
}

// A calibration that is for none of the models served here is somebody's mistake.
absl::Status CheckServed(const v1::LearnedRouting& calibration, const DrafterChooser& chooser) {
  const std::vector<std::string> served = chooser.ModelNames();
  std::vector<std::string> found;
  for (const v1::LearnedModel& model : calibration.models()) {
    if (std::find(served.begin(), served.end(), model.model()) != served.end()) return absl::OkStatus();
    found.push_back(absl::StrCat("\"", absl::CHexEscape(model.model().substr(0, 64)), "\""));
    if (found.size() == kMostNamed) break;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("is for ", found.empty() ? "no model" : absl::StrCat("model ", absl::StrJoin(found, ", ")),
                   ", but this router serves ", absl::StrJoin(served, ", ")));
}

absl::StatusOr<absl::string_view> UnsealCalibration(const CalibrationFile& file) {
  absl::StatusOr<absl::string_view> message = Unseal(file.bytes);
  if (message.ok()) return message;
  return absl::DataLossError(
      absl::StrCat(file.path, ": a damaged calibration: ", message.status().message()));
}

// The models of the file take the places of those in the record, once the chooser has found them good.
absl::Status TakeCalibration(const CalibrationFile& file, DrafterChooser& chooser,
                             v1::LearnedRouting* learned) {
  TANDEM_ASSIGN_OR_RETURN(const absl::string_view message, UnsealCalibration(file));
  v1::LearnedRouting calibration;
  if (!calibration.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path, ": not a calibration; `tandem calibrate` writes them"));
  }
  absl::Status status = chooser.Load(calibration);
  if (status.ok()) status = CheckServed(calibration, chooser);
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(file.path, ": ", status.message()));
  AddOthers(*learned, &calibration);
  *learned = std::move(calibration);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadLearned(const std::optional<CalibrationFile>& calibration, RoutingStore& store,
                         DrafterChooser& chooser) {
  TANDEM_ASSIGN_OR_RETURN(auto record, LastGoodRecord<v1::LearnedRecord>(store, kLearnedBlob));
  if (calibration.has_value()) {
    const Sha256Digest sha256 = Sha256(calibration->bytes);
    const std::string digest(sha256.begin(), sha256.end());
    if (record.calibration_sha256() != digest) {
      const absl::Status status = TakeCalibration(*calibration, chooser, record.mutable_learned());
      if (status.ok()) {
        record.set_calibration_sha256(digest);
        TANDEM_RETURN_IF_ERROR(WriteRecord(record, kLearnedBlob, store));
      } else if (absl::IsDataLoss(status) && !record.calibration_sha256().empty()) {
        LogError("the calibration is damaged; using the stored state of the previous one",
                 {{"error", std::string(status.message())}});
      } else {
        return status;
      }
    }
  }
  for (v1::LearnedModel& model : *record.mutable_learned()->mutable_models()) {
    const std::string name = model.model();
    v1::LearnedRouting one;
    one.set_format_version(record.learned().format_version());
    *one.add_models() = std::move(model);
    if (const absl::Status status = chooser.Load(one); !status.ok()) {
      LogWarning("the learned state of a model no longer fits it; learning starts again",
                 {{"model", name}, {"error", std::string(status.message())}});
    }
  }
  return absl::OkStatus();
}

absl::Status WriteLearned(const DrafterChooser& chooser, RoutingStore& store) {
  TANDEM_ASSIGN_OR_RETURN(const auto before, LastGoodRecord<v1::LearnedRecord>(store, kLearnedBlob));
  v1::LearnedRecord record;
  record.set_calibration_sha256(before.calibration_sha256());
  *record.mutable_learned() = chooser.Save();
  AddOthers(before.learned(), record.mutable_learned());
  if (record.learned().models().empty()) return absl::OkStatus();
  return WriteRecord(record, kLearnedBlob, store);
}

absl::Status ReadPolicies(RoutingStore& store, PolicyMemory& policies) {
  TANDEM_ASSIGN_OR_RETURN(const auto record, LastGoodRecord<v1::WindowPolicyRecord>(store, kPoliciesBlob));
  if (const size_t unreadable = policies.Load(record); unreadable > 0) {
    LogWarning("parts of the learned state of window policies are damaged or of another version",
               {{"left_out", absl::StrCat(unreadable)}, {"of", absl::StrCat(record.policies_size())}});
  }
  return absl::OkStatus();
}

absl::Status WritePolicies(const PolicyMemory& policies, RoutingStore& store) {
  const v1::WindowPolicyRecord record = policies.Save();
  if (record.policies().empty()) return absl::OkStatus();
  return WriteRecord(record, kPoliciesBlob, store);
}

LearnedStateSaver::LearnedStateSaver(const DrafterChooser* chooser, const PolicyMemory* policies,
                                     RoutingStore* store, absl::Duration interval)
    : chooser_(*chooser), policies_(*policies), store_(*store), interval_(interval), thread_([this] {
        Run();
      }) {}

LearnedStateSaver::~LearnedStateSaver() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void LearnedStateSaver::Run() {
  bool stopping = false;
  while (!stopping) {
    {
      absl::MutexLock lock(&mutex_);
      stopping = mutex_.AwaitWithTimeout(absl::Condition(&stopping_), interval_);
    }
    absl::Status status = WriteLearned(chooser_, store_);
    status.Update(WritePolicies(policies_, store_));
    if (!status.ok()) {
      LogError("the learned state could not be stored", {{"error", std::string(status.message())}});
    }
  }
}

}  // namespace tandem::router
