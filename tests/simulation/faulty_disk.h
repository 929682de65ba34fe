#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/random.h"

struct sqlite3_file;
struct sqlite3_vfs;

namespace tandem::simulation {

// While this object exists, SQLite writes to this disk in memory. It can be full, fail to sync, and lose
// power at any write. After a loss of power, each write that was not synced may be there or not, perhaps only
// some of its sectors. For one connection at a time.
class FaultyDisk {
 public:
  explicit FaultyDisk(Random random);
  ~FaultyDisk();
  FaultyDisk(const FaultyDisk&) = delete;
  FaultyDisk& operator=(const FaultyDisk&) = delete;

  // The power goes at the so-manieth change from now on, a sync counting as one; the first is 1.
  void LosePowerAt(uint64_t change) { power_ends_at_ = num_changes_ + change; }
  bool has_power() const { return has_power_; }
  // Nobody has a file open any more.
  void Restart();
  // Files may have so many bytes together.
  void SetCapacity(uint64_t bytes) { capacity_ = bytes; }
  uint64_t used() const;
  void FailSyncs(uint32_t count) { failing_syncs_ = count; }

  uint64_t num_changes() const { return num_changes_; }
  uint64_t num_torn() const { return num_torn_; }  // Writes of which a part was kept when the power went,
  uint64_t num_lost() const { return num_lost_; }  // and of which nothing was,
  uint64_t num_full() const { return num_full_; }  // writes that there was no room for,
  uint64_t num_failed_syncs() const { return num_failed_syncs_; }  // and syncs that failed.

  // For SQLite's callbacks.
  struct File;
  std::shared_ptr<File> Open(const std::string& name, bool create);
  bool Exists(const std::string& name) const;
  int Delete(const std::string& name);
  int Write(File& file, uint64_t offset, const void* data, size_t size);
  int Truncate(File& file, uint64_t size);
  int Sync(File& file);

 private:
  // Whether a change may still be made; it counts.
  bool CountChange();

  Random random_;
  std::unique_ptr<sqlite3_vfs> vfs_;
  sqlite3_vfs* const before_;
  std::map<std::string, std::shared_ptr<File>> files_;
  bool has_power_ = true;
  uint64_t capacity_ = UINT64_MAX;
  uint32_t failing_syncs_ = 0;
  uint64_t num_changes_ = 0;
  uint64_t power_ends_at_ = UINT64_MAX;
  uint64_t num_torn_ = 0;
  uint64_t num_lost_ = 0;
  uint64_t num_full_ = 0;
  uint64_t num_failed_syncs_ = 0;
};

}  // namespace tandem::simulation
