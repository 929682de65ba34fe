#include "bench/load_bench.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/aligned_buffer.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/cpu_weights.h"
#include "common/engine/cpu/thread_team.h"
#include "common/model/model.h"

namespace tandem {
namespace {

constexpr uint64_t kPieceBytes = 256 << 10;

// A file, open for reading.
class OpenFile {
 public:
  static absl::StatusOr<std::unique_ptr<OpenFile>> Open(const std::string& path) {
    std::error_code error;
    const uint64_t num_bytes = std::filesystem::file_size(path, error);
    const int fd = error ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return absl::UnavailableError(absl::StrCat(path, ": cannot open"));
    return std::unique_ptr<OpenFile>(new OpenFile(fd, num_bytes));
  }
  ~OpenFile() { ::close(fd_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  uint64_t num_bytes() const { return num_bytes_; }
  // A hint: pages that somebody has mapped or not written yet stay.
  void Forget() const { (void)::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED); }

  // The pieces that nobody has taken from `next` yet. Whether all could be read.
  bool ReadPieces(std::atomic<uint64_t>* next, std::vector<char>* buffer) const {
    while (true) {
      const uint64_t at = next->fetch_add(kPieceBytes);
      if (at >= num_bytes_) return true;
      uint64_t done = 0;
      const uint64_t size = std::min(kPieceBytes, num_bytes_ - at);
      while (done < size) {
        const ssize_t count = ::pread(fd_, buffer->data() + done, size - done, static_cast<off_t>(at + done));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return false;
        done += static_cast<uint64_t>(count);
      }
    }
  }

 private:
  OpenFile(int fd, uint64_t num_bytes) : fd_(fd), num_bytes_(num_bytes) {}

  const int fd_;
  const uint64_t num_bytes_;
};

using Files = std::vector<std::unique_ptr<OpenFile>>;

absl::StatusOr<Files> OpenWeightFiles(const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<std::string> paths;
  std::error_code error;
  if (fs::is_regular_file(path, error)) {
    paths.push_back(path);
  } else {
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
      if (it->path().extension() == ".safetensors") paths.push_back(it->path().string());
    }
  }
  if (paths.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a GGUF file, or a folder with .safetensors files"));
  }
  std::sort(paths.begin(), paths.end());
  Files files;
  for (const std::string& each : paths) {
    TANDEM_ASSIGN_OR_RETURN(files.emplace_back(), OpenFile::Open(each));
  }
  return files;
}

double SecondsSince(absl::Time start) {
  return absl::ToDoubleSeconds(absl::Now() - start);
}

absl::StatusOr<double> ReadAll(const Files& files, int threads) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadTeam> team, ThreadTeam::Create(threads));
  std::vector<std::vector<char>> buffers(static_cast<size_t>(threads), std::vector<char>(kPieceBytes));
  std::atomic<bool> ok = true;
  const absl::Time start = absl::Now();
  for (const std::unique_ptr<OpenFile>& file : files) {
    std::atomic<uint64_t> next = 0;
    team->Run([&](int thread) {
      if (!file->ReadPieces(&next, &buffers[static_cast<size_t>(thread)])) ok = false;
    });
  }
  const double seconds = SecondsSince(start);
  if (!ok) return absl::UnavailableError("a file could not be read to its end");
  return seconds;
}

// Seconds that it takes to get so much memory from the system and to write all of it.
absl::StatusOr<double> WriteMemory(uint64_t num_bytes, ThreadTeam* team) {
  const absl::Time start = absl::Now();
  TANDEM_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(num_bytes, 1, "a measurement"));
  team->Run([&](int thread) {
    constexpr size_t kPageBytes = 4096;
    const auto num_pages = static_cast<uint32_t>(buffer.num_bytes() / kPageBytes);
    const Share share = ShareOf(num_pages, thread, team->num_threads());
    for (size_t page = share.begin; page < share.end; ++page) {
      std::memset(buffer.data<char>() + page * kPageBytes, 1, kPageBytes);
    }
  });
  return SecondsSince(start);
}

LoadTimes TimesOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {.fastest = values.front(), .median = values[values.size() / 2]};
}

}  // namespace

absl::StatusOr<LoadBenchResult> RunLoadBench(const LoadBenchOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const Files files, OpenWeightFiles(options.path));
  LoadBenchResult result;
  for (const std::unique_ptr<OpenFile>& file : files) result.file_bytes += file->num_bytes();
  CpuEngineOptions engine_options;
  engine_options.num_blocks = 1;
  engine_options.num_threads = options.threads;
  engine_options.instruction_set = options.instruction_set;
  engine_options.weight_type = options.weight_type;
  engine_options.max_rows = 1;
  const auto forget = [&] {
    if (!options.cold) return;
    for (const std::unique_ptr<OpenFile>& file : files) file->Forget();
  };
  {
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, Model::Load(options.path));
    result.packed_bytes = BytesReadPerStep(*model, options.weight_type);
  }
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadTeam> team, ThreadTeam::Create(options.threads));
  std::vector<double> by_one, read, write, open, pack, load;
  for (int i = 0; i < options.repetitions; ++i) {
    forget();
    TANDEM_ASSIGN_OR_RETURN(by_one.emplace_back(), ReadAll(files, 1));
    forget();
    TANDEM_ASSIGN_OR_RETURN(read.emplace_back(), ReadAll(files, options.threads));
    forget();
    // An embedding, and what is left of pages, come on top.
    TANDEM_RETURN_IF_ERROR(WriteMemory(result.packed_bytes + result.packed_bytes / 4, team.get()).status());
    TANDEM_ASSIGN_OR_RETURN(write.emplace_back(), WriteMemory(result.packed_bytes, team.get()));
    const absl::Time start = absl::Now();
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, Model::Load(options.path));
    open.push_back(SecondsSince(start));
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, CreateCpuEngine(model, engine_options));
    load.push_back(SecondsSince(start));
    pack.push_back(load.back() - open.back());
  }
  result.read_by_one = TimesOf(by_one);
  result.read = TimesOf(read);
  result.write = TimesOf(write);
  result.open = TimesOf(open);
  result.pack = TimesOf(pack);
  result.load = TimesOf(load);
  return result;
}

std::string LoadBenchTable(const LoadBenchOptions& options, const LoadBenchResult& result) {
  constexpr double kGiga = 1e9;
  std::string table = absl::StrFormat(
      "%.3f GB in files, %.3f GB in memory, seconds\n\n"
      "| | read by 1 | read by %d | write by %d | open | pack | load | load / read by 1 | load / read by %d "
      "|\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
      static_cast<double>(result.file_bytes) / kGiga, static_cast<double>(result.packed_bytes) / kGiga,
      options.threads, options.threads, options.threads);
  for (const auto& [name, of] : {std::pair("median", &LoadTimes::median), {"fastest", &LoadTimes::fastest}}) {
    const double load = result.load.*of;
    absl::StrAppendFormat(&table, "| %s | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %.2f | %.2f |\n", name,
                          result.read_by_one.*of, result.read.*of, result.write.*of, result.open.*of,
                          result.pack.*of, load, load / (result.read_by_one.*of), load / (result.read.*of));
  }
  return table;
}

}  // namespace tandem
