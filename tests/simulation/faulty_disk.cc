#include "tests/simulation/faulty_disk.h"

#include <sqlite3.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace tandem::simulation {

struct FaultyDisk::File {
  struct Change {
    uint64_t offset = 0;  // Of a write; the new size otherwise.
    std::string data;
    bool is_write = true;
  };
  void Apply(const Change& change) {
    if (!change.is_write) return content.resize(change.offset);
    if (content.size() < change.offset + change.data.size())
      content.resize(change.offset + change.data.size());
    content.replace(change.offset, change.data.size(), change.data);
  }

  std::string content;           // As its readers see it.
  std::string durable;           // As it was when it was last synced,
  bool is_durable = false;       // if it ever was,
  std::vector<Change> unsynced;  // and what came since.
  std::map<int, std::unique_ptr<char[]>> shared_memory;
};

namespace {

constexpr size_t kSector = 512;

struct OpenFile {
  sqlite3_file base;
  FaultyDisk* disk;
  std::shared_ptr<FaultyDisk::File>* file;
};

OpenFile& At(sqlite3_file* file) {
  return *reinterpret_cast<OpenFile*>(file);
}

int Close(sqlite3_file* file) {
  delete std::exchange(At(file).file, nullptr);
  return SQLITE_OK;
}

int Read(sqlite3_file* file, void* data, int size, sqlite3_int64 offset) {
  if (!At(file).disk->has_power()) return SQLITE_IOERR_READ;
  const std::string& content = (*At(file).file)->content;
  const auto wanted = static_cast<size_t>(size);
  const auto from = static_cast<size_t>(offset);
  const size_t there = from >= content.size() ? 0 : std::min(wanted, content.size() - from);
  if (there > 0) std::memcpy(data, content.data() + from, there);
  if (there == wanted) return SQLITE_OK;
  std::memset(static_cast<char*>(data) + there, 0, wanted - there);
  return SQLITE_IOERR_SHORT_READ;
}

int WriteAt(sqlite3_file* file, const void* data, int size, sqlite3_int64 offset) {
  return At(file).disk->Write(**At(file).file, static_cast<uint64_t>(offset), data,
                              static_cast<size_t>(size));
}

int TruncateTo(sqlite3_file* file, sqlite3_int64 size) {
  return At(file).disk->Truncate(**At(file).file, static_cast<uint64_t>(size));
}

int SyncFile(sqlite3_file* file, int) {
  return At(file).disk->Sync(**At(file).file);
}

int FileSize(sqlite3_file* file, sqlite3_int64* size) {
  *size = static_cast<sqlite3_int64>((*At(file).file)->content.size());
  return SQLITE_OK;
}

int Lock(sqlite3_file*, int) {
  return SQLITE_OK;
}

int CheckReservedLock(sqlite3_file*, int* is_locked) {
  *is_locked = 0;
  return SQLITE_OK;
}

int FileControl(sqlite3_file*, int, void*) {
  return SQLITE_NOTFOUND;
}

int SectorSize(sqlite3_file*) {
  return kSector;
}

int DeviceCharacteristics(sqlite3_file*) {
  return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

int ShmMap(sqlite3_file* file, int region, int size, int extend, void volatile** memory) {
  std::unique_ptr<char[]>& found = (*At(file).file)->shared_memory[region];
  if (found == nullptr && extend != 0) found = std::make_unique<char[]>(static_cast<size_t>(size));
  *memory = found.get();
  return SQLITE_OK;
}

int ShmLock(sqlite3_file*, int, int, int) {
  return SQLITE_OK;
}

void ShmBarrier(sqlite3_file*) {}

int ShmUnmap(sqlite3_file* file, int is_last) {
  if (is_last != 0) (*At(file).file)->shared_memory.clear();
  return SQLITE_OK;
}

constexpr sqlite3_io_methods kMethods = {2,
                                         Close,
                                         Read,
                                         WriteAt,
                                         TruncateTo,
                                         SyncFile,
                                         FileSize,
                                         Lock,
                                         Lock,
                                         CheckReservedLock,
                                         FileControl,
                                         SectorSize,
                                         DeviceCharacteristics,
                                         ShmMap,
                                         ShmLock,
                                         ShmBarrier,
                                         ShmUnmap,
                                         nullptr,
                                         nullptr};

FaultyDisk& DiskOf(sqlite3_vfs* vfs) {
  return *static_cast<FaultyDisk*>(vfs->pAppData);
}

int OpenAt(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* flags_out) {
  FaultyDisk& disk = DiskOf(vfs);
  file->pMethods = nullptr;
  if (!disk.has_power()) return SQLITE_CANTOPEN;
  std::shared_ptr<FaultyDisk::File> found =
      disk.Open(name == nullptr ? std::string() : std::string(name), (flags & SQLITE_OPEN_CREATE) != 0);
  if (found == nullptr) return SQLITE_CANTOPEN;
  At(file).disk = &disk;
  At(file).file = new std::shared_ptr<FaultyDisk::File>(std::move(found));
  file->pMethods = &kMethods;
  if (flags_out != nullptr) *flags_out = flags;
  return SQLITE_OK;
}

int DeleteAt(sqlite3_vfs* vfs, const char* name, int) {
  return DiskOf(vfs).Delete(name);
}

int Access(sqlite3_vfs* vfs, const char* name, int, int* result) {
  *result = DiskOf(vfs).Exists(name) ? 1 : 0;
  return SQLITE_OK;
}

int FullPathname(sqlite3_vfs*, const char* name, int size, char* full) {
  return sqlite3_snprintf(size, full, "%s", name) != nullptr ? SQLITE_OK : SQLITE_CANTOPEN;
}

// The same on every run.
int Randomness(sqlite3_vfs*, int size, char* bytes) {
  for (int i = 0; i < size; ++i) bytes[i] = static_cast<char>(37 * i + 11);
  return size;
}

int Sleep(sqlite3_vfs*, int microseconds) {
  return microseconds;
}

int CurrentTime(sqlite3_vfs*, double* days) {
  *days = 2460000.0;
  return SQLITE_OK;
}

}  // namespace

FaultyDisk::FaultyDisk(Random random)
    : random_(random), vfs_(std::make_unique<sqlite3_vfs>()), before_(sqlite3_vfs_find(nullptr)) {
  *vfs_ = {};
  vfs_->iVersion = 1;
  vfs_->szOsFile = sizeof(OpenFile);
  vfs_->mxPathname = 512;
  vfs_->zName = "tandem-faulty-disk";
  vfs_->pAppData = this;
  vfs_->xOpen = OpenAt;
  vfs_->xDelete = DeleteAt;
  vfs_->xAccess = Access;
  vfs_->xFullPathname = FullPathname;
  vfs_->xRandomness = Randomness;
  vfs_->xSleep = Sleep;
  vfs_->xCurrentTime = CurrentTime;
  sqlite3_vfs_register(vfs_.get(), /*makeDflt=*/1);
}

FaultyDisk::~FaultyDisk() {
  sqlite3_vfs_unregister(vfs_.get());
  sqlite3_vfs_register(before_, /*makeDflt=*/1);
}

std::shared_ptr<FaultyDisk::File> FaultyDisk::Open(const std::string& name, bool create) {
  // Without a name it is for whoever opened it alone.
  if (name.empty()) return std::make_shared<File>();
  const auto found = files_.find(name);
  if (found != files_.end()) return found->second;
  if (!create) return nullptr;
  return files_[name] = std::make_shared<File>();
}

bool FaultyDisk::Exists(const std::string& name) const {
  return files_.count(name) > 0;
}

uint64_t FaultyDisk::used() const {
  uint64_t bytes = 0;
  for (const auto& [name, file] : files_) bytes += file->content.size();
  return bytes;
}

bool FaultyDisk::CountChange() {
  if (!has_power_) return false;
  if (++num_changes_ == power_ends_at_) has_power_ = false;
  return true;
}

// A name that was taken away stays away: SQLite asks for the directory to be synced.
int FaultyDisk::Delete(const std::string& name) {
  if (!CountChange()) return SQLITE_IOERR_DELETE;
  return files_.erase(name) > 0 ? SQLITE_OK : SQLITE_IOERR_DELETE_NOENT;
}

int FaultyDisk::Write(File& file, uint64_t offset, const void* data, size_t size) {
  if (!CountChange()) return SQLITE_IOERR_WRITE;
  const uint64_t end = offset + size;
  if (end > file.content.size() && used() + (end - file.content.size()) > capacity_) {
    ++num_full_;
    return SQLITE_FULL;
  }
  file.unsynced.push_back({.offset = offset, .data = std::string(static_cast<const char*>(data), size)});
  file.Apply(file.unsynced.back());
  // It may have reached the disk, but nobody is told.
  return has_power_ ? SQLITE_OK : SQLITE_IOERR_WRITE;
}

int FaultyDisk::Truncate(File& file, uint64_t size) {
  if (!CountChange()) return SQLITE_IOERR_TRUNCATE;
  file.unsynced.push_back({.offset = size, .is_write = false});
  file.Apply(file.unsynced.back());
  return has_power_ ? SQLITE_OK : SQLITE_IOERR_TRUNCATE;
}

int FaultyDisk::Sync(File& file) {
  if (!CountChange() || !has_power_) return SQLITE_IOERR_FSYNC;
  if (failing_syncs_ > 0) {
    --failing_syncs_;
    ++num_failed_syncs_;
    return SQLITE_IOERR_FSYNC;
  }
  file.durable = file.content;
  file.is_durable = true;
  file.unsynced.clear();
  return SQLITE_OK;
}

void FaultyDisk::Restart() {
  // All, none, or any of what was not synced.
  const double kept = random_.Chance(0.2) ? 1.0 : random_.Chance(0.2) ? 0.0 : random_.Uniform();
  for (auto at = files_.begin(); at != files_.end();) {
    File& file = *at->second;
    file.shared_memory.clear();
    if (!file.is_durable && !random_.Chance(kept)) {
      at = files_.erase(at);
      continue;
    }
    const std::vector<File::Change> changes = std::exchange(file.unsynced, {});
    file.content = file.durable;
    for (const File::Change& change : changes) {
      if (!random_.Chance(kept)) {
        ++num_lost_;
        continue;
      }
      if (!change.is_write || change.data.size() <= kSector || random_.Chance(0.5)) {
        file.Apply(change);
        continue;
      }
      ++num_torn_;
      for (size_t begin = 0; begin < change.data.size(); begin += kSector) {
        if (random_.Chance(0.5)) {
          file.Apply({.offset = change.offset + begin, .data = change.data.substr(begin, kSector)});
        }
      }
    }
    file.durable = file.content;
    file.is_durable = true;
    ++at;
  }
  has_power_ = true;
  power_ends_at_ = UINT64_MAX;
  failing_syncs_ = 0;
}

}  // namespace tandem::simulation
