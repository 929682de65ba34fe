#include "common/metrics/metrics.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "common/base/log_queue.h"
#include "prometheus/counter.h"
#include "prometheus/exposer.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace tandem {
namespace {

constexpr size_t kMaxLabelBytes = 128;

template <class Handle>
struct PrometheusType;
template <>
struct PrometheusType<Counter> {
  using Type = prometheus::Counter;
};
template <>
struct PrometheusType<Gauge> {
  using Type = prometheus::Gauge;
};
template <>
struct PrometheusType<Histogram> {
  using Type = prometheus::Histogram;
};

// For metrics that are also exported under another server's names; Prometheus reserves colons for recording
// rules.
constexpr absl::string_view kForeignPrefix = "vllm:";

[[maybe_unused]] bool IsIdentifier(absl::string_view name) {
  if (name.empty() || absl::ascii_isdigit(static_cast<unsigned char>(name[0]))) return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_';
  });
}

// Mistakes of the program, found the first time a debug build runs it.
void AssertValid([[maybe_unused]] const MetricDefinition& definition, [[maybe_unused]] bool counter) {
  assert(IsIdentifier(absl::StripPrefix(definition.name, kForeignPrefix)) &&
         "metric names are lower-case identifiers");
  assert(!definition.help.empty() && "every metric says what it measures");
  assert((absl::StartsWith(definition.name, kForeignPrefix) ||
          counter == absl::EndsWith(definition.name, "_total")) &&
         "counters, and only they, end in _total");
  for ([[maybe_unused]] const std::string& key : definition.labels) {
    assert(IsIdentifier(key) && !absl::StartsWith(key, "__") && key != "le" && "label keys are identifiers");
  }
}

// Length of the well-formed UTF-8 character at the start of `text`; 0 when there is none.
size_t CharacterLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates and what lies beyond the last code point.
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f)) return 0;
  if ((lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f)) return 0;
  return length;
}

bool IsUsableLabel(absl::string_view value) {
  if (value.size() > kMaxLabelBytes) return false;
  while (!value.empty()) {
    const size_t length = CharacterLength(value);
    if (length == 0) return false;
    value.remove_prefix(length);
  }
  return true;
}

// What is read when it is scraped: gauges, and as their names tell, counters.
class CallbackGauges final : public prometheus::Collectable {
 public:
  void Add(MetricDefinition definition, std::function<double()> read) {
    absl::MutexLock lock(&mutex_);
    gauges_.push_back({std::move(definition), std::move(read)});
  }

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<Entry> gauges;
    {
      absl::MutexLock lock(&mutex_);
      gauges = gauges_;
    }
    std::vector<prometheus::MetricFamily> families;
    for (const Entry& gauge : gauges) {
      prometheus::ClientMetric metric;
      const bool is_counter = absl::EndsWith(gauge.definition.name, "_total");
      (is_counter ? metric.counter.value : metric.gauge.value) = gauge.read();
      families.push_back({gauge.definition.name,
                          gauge.definition.help,
                          is_counter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge,
                          {std::move(metric)}});
    }
    return families;
  }

 private:
  struct Entry {
    MetricDefinition definition;
    std::function<double()> read;
  };

  mutable absl::Mutex mutex_;
  std::vector<Entry> gauges_ ABSL_GUARDED_BY(mutex_);
};

// CPU time of this process, all its threads.
double CpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Resident memory from /proc; not-a-number where there is no such thing.
double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double total_pages = 0;
  double resident_pages = 0;
  if (!(file >> total_pages >> resident_pages)) return std::nan("");
  return resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// File descriptors in use, from /proc; not-a-number where there is no such thing, or none is left to look
// with.
double OpenDescriptors() {
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/fd", error);
  if (error) return std::nan("");
  // The look itself has one.
  double count = -1;
  for (; entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (error) return std::nan("");
    ++count;
  }
  return count;
}

double MaxDescriptors() {
  rlimit limit = {};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<double>(limit.rlim_cur) : std::nan("");
}

}  // namespace

void Counter::Increment(double by) const {
  if (counter_ != nullptr) counter_->Increment(by);
}
double Counter::value() const {
  return counter_ == nullptr ? 0.0 : counter_->Value();
}

void Gauge::Set(double value) const {
  if (gauge_ != nullptr) gauge_->Set(value);
}
void Gauge::Add(double by) const {
  if (gauge_ != nullptr) gauge_->Increment(by);
}
double Gauge::value() const {
  return gauge_ == nullptr ? 0.0 : gauge_->Value();
}

void Histogram::Observe(double value) const {
  if (histogram_ != nullptr) histogram_->Observe(value);
}

std::vector<double> LatencyBuckets() {
  return {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0};
}

std::vector<double> ExponentialBuckets(double first, double factor, int count) {
  std::vector<double> buckets;
  for (int i = 0; i < count; ++i, first *= factor) buckets.push_back(first);
  return buckets;
}

template <class Handle>
struct MetricFamily<Handle>::State {
  using Metric = typename PrometheusType<Handle>::Type;

  State(prometheus::Family<Metric>* prometheus_family, std::vector<std::string> label_keys,
        prometheus::Labels fixed_labels)
      : family(prometheus_family),
        keys(std::move(label_keys)),
        fixed(std::move(fixed_labels)),
        seen(keys.size()) {}

  // The value itself, or "other" when the key has had its share.
  absl::string_view Bound(size_t key_index, absl::string_view value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (!IsUsableLabel(value)) return kOtherLabel;
    absl::flat_hash_set<std::string>& values = seen[key_index];
    if (values.contains(value) || value == kOtherLabel) return value;
    if (values.size() >= kMaxLabelValues) return kOtherLabel;
    values.emplace(value);
    return value;
  }

  Metric& Series(const std::vector<std::string>& values) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    auto found = series.find(values);
    if (found != series.end()) return *found->second;
    prometheus::Labels labels = fixed;
    for (size_t i = 0; i < keys.size(); ++i) labels.emplace(keys[i], values[i]);
    Metric* metric = nullptr;
    if constexpr (std::is_same_v<Metric, prometheus::Histogram>) {
      metric = &family->Add(labels, buckets);
    } else {
      metric = &family->Add(labels);
    }
    series.emplace(values, metric);
    return *metric;
  }

  prometheus::Family<Metric>* const family;
  const std::vector<std::string> keys;
  const prometheus::Labels fixed;
  std::vector<double> buckets;  // Histograms only; set before use.
  absl::Mutex mutex;
  std::vector<absl::flat_hash_set<std::string>> seen ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<std::vector<std::string>, Metric*> series ABSL_GUARDED_BY(mutex);
};

template <class Handle>
MetricFamily<Handle>::MetricFamily(std::unique_ptr<State> state) : state_(std::move(state)) {}

template <class Handle>
MetricFamily<Handle>::~MetricFamily() = default;

template <class Handle>
Handle MetricFamily<Handle>::With(absl::Span<const absl::string_view> values) {
  assert(values.size() == state_->keys.size() && "one value per label key");
  if (values.size() != state_->keys.size()) return Handle();
  absl::MutexLock lock(&state_->mutex);
  std::vector<std::string> bounded;
  for (size_t i = 0; i < values.size(); ++i) bounded.emplace_back(state_->Bound(i, values[i]));
  // Each key's bound allows a product that none of them would.
  if (state_->series.size() >= kMaxSeries && !state_->series.contains(bounded)) {
    bounded.assign(values.size(), std::string(kOtherLabel));
  }
  return Handle(&state_->Series(bounded));
}

template class MetricFamily<Counter>;
template class MetricFamily<Gauge>;
template class MetricFamily<Histogram>;

struct MetricsRegistry::State {
  // Of every series of the definition.
  prometheus::Labels FixedOf(const MetricDefinition& definition) const {
    for (const std::string& label : definition.labels) {
      if (std::find(instead.begin(), instead.end(), label) != instead.end()) return {};
    }
    return fixed;
  }

  std::shared_ptr<prometheus::Registry> registry;
  std::shared_ptr<CallbackGauges> callbacks;
  // Of a part.
  prometheus::Labels fixed;
  std::vector<std::string> instead;
  absl::Mutex mutex;
  std::vector<std::unique_ptr<CounterFamily>> counters ABSL_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<GaugeFamily>> gauges ABSL_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<HistogramFamily>> histograms ABSL_GUARDED_BY(mutex);
};

MetricsRegistry::MetricsRegistry() : state_(std::make_unique<State>()) {
  state_->registry = std::make_shared<prometheus::Registry>();
  state_->callbacks = std::make_shared<CallbackGauges>();
}

MetricsRegistry::MetricsRegistry(MetricsRegistry* whole, std::string key, std::string value,
                                 std::vector<std::string> instead)
    : state_(std::make_unique<State>()) {
  assert(IsIdentifier(key) && "label keys are identifiers");
  state_->registry = whole->state_->registry;
  state_->callbacks = whole->state_->callbacks;
  state_->fixed = whole->state_->fixed;
  state_->fixed.emplace(std::move(key), IsUsableLabel(value) ? std::move(value) : std::string(kOtherLabel));
  state_->instead = std::move(instead);
}

MetricsRegistry::~MetricsRegistry() = default;

CounterFamily& MetricsRegistry::AddCounter(MetricDefinition definition) {
  AssertValid(definition, /*counter=*/true);
  auto& family =
      prometheus::BuildCounter().Name(definition.name).Help(definition.help).Register(*state_->registry);
  auto state =
      std::make_unique<CounterFamily::State>(&family, definition.labels, state_->FixedOf(definition));
  absl::MutexLock lock(&state_->mutex);
  state_->counters.push_back(std::unique_ptr<CounterFamily>(new CounterFamily(std::move(state))));
  return *state_->counters.back();
}

GaugeFamily& MetricsRegistry::AddGauge(MetricDefinition definition) {
  AssertValid(definition, /*counter=*/false);
  auto& family =
      prometheus::BuildGauge().Name(definition.name).Help(definition.help).Register(*state_->registry);
  auto state = std::make_unique<GaugeFamily::State>(&family, definition.labels, state_->FixedOf(definition));
  absl::MutexLock lock(&state_->mutex);
  state_->gauges.push_back(std::unique_ptr<GaugeFamily>(new GaugeFamily(std::move(state))));
  return *state_->gauges.back();
}

HistogramFamily& MetricsRegistry::AddHistogram(MetricDefinition definition, std::vector<double> buckets) {
  AssertValid(definition, /*counter=*/false);
  assert(!buckets.empty() && std::is_sorted(buckets.begin(), buckets.end(), std::less_equal<double>()));
  auto& family =
      prometheus::BuildHistogram().Name(definition.name).Help(definition.help).Register(*state_->registry);
  auto state =
      std::make_unique<HistogramFamily::State>(&family, definition.labels, state_->FixedOf(definition));
  state->buckets = std::move(buckets);
  absl::MutexLock lock(&state_->mutex);
  state_->histograms.push_back(std::unique_ptr<HistogramFamily>(new HistogramFamily(std::move(state))));
  return *state_->histograms.back();
}

void MetricsRegistry::AddGaugeCallback(MetricDefinition definition, std::function<double()> read) {
  AssertValid(definition, /*counter=*/false);
  assert(definition.labels.empty() && "a gauge that is read at the scrape has no labels");
  state_->callbacks->Add(std::move(definition), std::move(read));
}

void MetricsRegistry::AddProcessMetrics(absl::string_view version) {
  AddGauge(
      {.name = "tandem_build_info", .help = "Always 1; the label names the version.", .labels = {"version"}})
      .With({version})
      .Set(1.0);
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  AddGauge({.name = "process_start_time_seconds", .help = "Unix time at which the process started."})
      .With({})
      .Set(now);
  AddGaugeCallback({.name = "process_resident_memory_bytes", .help = "Resident memory."}, ResidentBytes);
  AddGaugeCallback({.name = "process_open_fds", .help = "Open file descriptors."}, OpenDescriptors);
  AddGaugeCallback({.name = "process_max_fds", .help = "Limit on open file descriptors."}, MaxDescriptors);
  state_->callbacks->Add({.name = "tandem_log_lines_dropped_total",
                          .help = "Log lines that were dropped because standard error was not read in time."},
                         [] { return static_cast<double>(DroppedLogLines()); });
  state_->callbacks->Add({.name = "process_cpu_seconds_total", .help = "CPU time of all threads."},
                         CpuSeconds);
}

std::string MetricsRegistry::Expose() const {
  std::vector<prometheus::MetricFamily> families = state_->registry->Collect();
  for (prometheus::MetricFamily& family : state_->callbacks->Collect()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

MetricsServer::MetricsServer() = default;
MetricsServer::~MetricsServer() = default;

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                                    const MetricsRegistry* registry) {
  std::unique_ptr<MetricsServer> server(new MetricsServer());
  try {
    // Idle connections are closed soon, so that a few of them cannot prevent scrapes.
    server->exposer_ = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", address, "num_threads", "4", "request_timeout_ms", "2000"});
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("metrics address \"", address, "\" cannot be bound (", error.what(),
                     "); expected host:port, with a port that no other process uses"));
  }
  server->exposer_->RegisterCollectable(registry->state_->registry);
  server->exposer_->RegisterCollectable(registry->state_->callbacks);
  const std::vector<int> ports = server->exposer_->GetListeningPorts();
  if (!ports.empty()) server->port_ = ports[0];
  return server;
}

}  // namespace tandem
