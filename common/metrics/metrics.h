#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace prometheus {
class Counter;
class Exposer;
class Gauge;
class Histogram;
class Registry;
}  // namespace prometheus

namespace tandem {

// Handles of single time series: cheap to copy, valid as long as their registry, thread-safe. Look them up
// once (With takes a lock) and keep them. A default-constructed handle drops everything.

// Only goes up.
class Counter {
 public:
  Counter() = default;
  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}
  void Increment(double by = 1.0) const;
  double value() const;

 private:
  prometheus::Counter* counter_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  explicit Gauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  void Set(double value) const;
  void Add(double by) const;
  double value() const;

 private:
  prometheus::Gauge* gauge_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;
  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}
  void Observe(double value) const;

 private:
  prometheus::Histogram* histogram_ = nullptr;
};

// A metric's name, help text and label keys. Names follow Prometheus: prefix `tandem_`, base units, `_total`
// for counters; checked by assertion. A series has one value per key, in the order of `labels`.
struct MetricDefinition {
  std::string name;
  std::string help;
  std::vector<std::string> labels;
};

// A label key has at most this many values per family, and a family this many series; further ones count
// under "other", as do values that are not UTF-8 or longer than 128 bytes. So labels may contain names that
// clients choose.
inline constexpr size_t kMaxLabelValues = 999;
inline constexpr size_t kMaxSeries = 10000;
inline constexpr absl::string_view kOtherLabel = "other";

// All series of one metric. Owned by the registry. With is thread-safe.
template <class Handle>
class MetricFamily {
 public:
  // The series with these label values, one per key of the definition; created on first use.
  Handle With(std::initializer_list<absl::string_view> values = {}) {
    return With(absl::Span<const absl::string_view>(values.begin(), values.size()));
  }
  Handle With(absl::Span<const absl::string_view> values);

  ~MetricFamily();

 private:
  friend class MetricsRegistry;
  struct State;
  explicit MetricFamily(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

using CounterFamily = MetricFamily<Counter>;
using GaugeFamily = MetricFamily<Gauge>;
using HistogramFamily = MetricFamily<Histogram>;

// Upper bounds in seconds for latencies, from 1 ms to 60 s, roughly doubling.
std::vector<double> LatencyBuckets();
// `count` bounds, each `factor` times the one before.
std::vector<double> ExponentialBuckets(double first, double factor, int count);

// The metrics of a process. Families live as long as the registry; add each once. Thread-safe.
class MetricsRegistry {
 public:
  MetricsRegistry();
  // A part of another registry, which outlives it, for what a process has several of: families are added once
  // in each part, and their series, which are the whole's, have the label `key` with `value` besides, unless
  // the definition has one of the labels `instead` that say the same. They stay when the part ends.
  MetricsRegistry(MetricsRegistry* whole, std::string key, std::string value,
                  std::vector<std::string> instead);
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  CounterFamily& AddCounter(MetricDefinition definition);
  GaugeFamily& AddGauge(MetricDefinition definition);
  // `buckets`: upper bounds, strictly increasing.
  HistogramFamily& AddHistogram(MetricDefinition definition, std::vector<double> buckets);

  // Calls `read` at every scrape, from the scraping thread, for a gauge without labels.
  void AddGaugeCallback(MetricDefinition definition, std::function<double()> read);

  // tandem_build_info{version}, and process_ start_time_seconds, resident_memory_bytes, cpu_seconds_total,
  // open_fds and max_fds, and tandem_log_lines_dropped_total.
  void AddProcessMetrics(absl::string_view version);

  // Everything in Prometheus' text format.
  std::string Expose() const;

 private:
  friend class MetricsServer;
  struct State;
  std::unique_ptr<State> state_;
};

// Serves a registry at http://address/metrics until destroyed.
class MetricsServer {
 public:
  // `address` is "host:port", port 0 takes a free one. Unavailable, naming the address, when it cannot be
  // bound. `registry` outlives the server.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& address,
                                                              const MetricsRegistry* registry);
  ~MetricsServer();

  int port() const { return port_; }

 private:
  MetricsServer();

  std::unique_ptr<prometheus::Exposer> exposer_;
  int port_ = 0;
};

}  // namespace tandem
