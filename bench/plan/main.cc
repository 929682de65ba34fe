// tandem-plan: simulates how a cluster serves a traffic, and finds the cheapest layout that meets a target
// (docs/operate/planning.md). Opens no connection and needs no model.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <system_error>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/plan/plan_file.h"
#include "bench/plan/report_html.h"
#include "bench/plan/sweep.h"

namespace tandem::plan {
namespace {

struct Flags {
  std::string plan;
  std::string json;
  std::string html;
  size_t threads = std::max(std::thread::hardware_concurrency(), 1u);
  uint32_t slices = 1;
  bool until_met = false;
  bool quiet = false;
};

// Shows progress: a bar on a terminal, otherwise a line for each 10 %.
class ProgressBar {
 public:
  void Show(double done) {
    constexpr int kBarWidth = 40;
    const auto steps = static_cast<int>(done * (terminal_ ? 100 : 10) + 1e-9);
    if (steps == shown_) return;
    shown_ = steps;
    if (!terminal_) {
      std::fprintf(stderr, "simulated %d %%\n", 10 * steps);
      return;
    }
    const int filled = steps * kBarWidth / 100;
    std::fprintf(stderr, "\r[%s%s] %3d %%%s", std::string(filled, '#').c_str(),
                 std::string(kBarWidth - filled, ' ').c_str(), steps, steps == 100 ? "\n" : "");
  }
  // Ends the bar's line.
  void Close() {
    if (terminal_ && shown_ >= 0 && shown_ < 100) std::fprintf(stderr, "\n");
    shown_ = 100;
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  int shown_ = -1;
};

// Checked before the simulation, which may take long.
bool CanWrite(const std::string& file) {
  if (file.empty()) return true;
  std::error_code ignored;
  const bool is_new = !std::filesystem::exists(file, ignored);
  const bool opened = std::ofstream(file, std::ios::app).is_open();
  if (!opened) std::fprintf(stderr, "tandem-plan: cannot write %s\n", file.c_str());
  if (opened && is_new) std::filesystem::remove(file, ignored);
  return opened;
}

bool Write(const std::string& file, const std::string& text) {
  if (file.empty()) return true;
  std::ofstream out(file);
  out << text;
  out.flush();
  if (!out) std::fprintf(stderr, "tandem-plan: cannot write %s\n", file.c_str());
  return static_cast<bool>(out);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "tandem-plan: %s\n", std::string(status.message()).c_str());
  return 1;
}

int Run(const Flags& flags) {
  const absl::StatusOr<Plan> plan = LoadPlan(flags.plan);
  if (!plan.ok()) return Fail(plan.status());
  if (!CanWrite(flags.json) || !CanWrite(flags.html)) return 1;
  ProgressBar bar;
  RunOptions options{
      .threads = flags.threads, .slices = flags.slices, .until_met = flags.until_met, .on_progress = {}};
  if (!flags.quiet) options.on_progress = [&bar](double done) { bar.Show(done); };
  const auto start = std::chrono::steady_clock::now();
  const absl::StatusOr<PlanOutcome> outcome = RunPlan(*plan, options);
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  bar.Close();
  if (!outcome.ok()) return Fail(outcome.status());
  std::cout << "Simulated.\n";
  for (const std::string& note : plan->notes) std::cout << note << "\n";
  std::cout << "\n" << PlanTable(*plan, *outcome);
  if (!flags.quiet) std::fprintf(stderr, "The simulation took %.1f s.\n", took);
  const bool written = Write(flags.json, PlanJson(*plan, *outcome).dump(1) + "\n") &&
                       Write(flags.html, PlanHtml(*plan, *outcome));
  return written ? 0 : 1;
}

}  // namespace
}  // namespace tandem::plan

int main(int argc, char** argv) {
  CLI::App app(
      "Sizes a cluster: simulates router, verifiers and drafters under given traffic, in virtual time.",
      "tandem-plan");
  tandem::plan::Flags flags;
  app.add_option("plan", flags.plan, "YAML file of the plan (docs/operate/planning.md).")->required();
  app.add_option("--json", flags.json, "File to write all figures to.");
  app.add_option("--html", flags.html, "File to write a report with plots to.");
  app.add_option("--threads", flags.threads,
                 "Simulations to run at a time. Default: as many as the machine has cores.")
      ->check(CLI::Range(1, 1024));
  app.add_option(
         "--slices", flags.slices,
         "Cut the time of each simulation into this many parts, each with its own warm-up and thread.")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_flag("--until-met", flags.until_met,
               "Simulate layouts in order of price and stop at the first that meets the plan's target.");
  app.add_flag("--quiet", flags.quiet, "Print no progress.");
  CLI11_PARSE(app, argc, argv);
  return tandem::plan::Run(flags);
}
