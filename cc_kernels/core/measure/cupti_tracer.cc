#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/measure/device.h"

namespace tf_interop {

#define TF_INTEROP_CUPTI_ENTRY_POINTS(X) \
  X(cuptiActivityDisable)                \
  X(cuptiActivityEnable)                 \
  X(cuptiActivityFlushAll)               \
  X(cuptiActivityGetNextRecord)          \
  X(cuptiActivityGetNumDroppedRecords)   \
  X(cuptiActivityRegisterCallbacks)      \
  X(cuptiFinalize)                       \
  X(cuptiGetResultString)

namespace {

constexpr int kOldestMajor = 12;

std::vector<std::string> CuptiCandidates(int driver_version) {
  std::vector<std::string> all;
  for (int major = std::max(driver_version / 1000, kOldestMajor); major >= kOldestMajor; --major) {
    const std::string name = "libcupti.so." + std::to_string(major);
    // NVIDIA's wheels have one folder for each library up to CUDA 12, and one for all from 13 on.
    const std::string package = major == 12 ? "cuda_cupti" : "cu" + std::to_string(major);
    const std::vector<std::string> usual =
        LibraryCandidates("TF_INTEROP_LIBCUPTI", name, "nvidia/" + package + "/lib/" + name);
    if (usual.front() != name) return usual;  // TF_INTEROP_LIBCUPTI is set
    all.insert(all.end(), usual.begin(), usual.end());
    // The CUDA toolkit's folders, which the loader may not search.
    for (const std::string& folder : {"-" + std::to_string(major), std::string()}) {
      all.push_back("/usr/local/cuda" + folder + "/lib64/" + name);
      all.push_back("/usr/local/cuda" + folder + "/extras/CUPTI/lib64/" + name);
    }
  }
  return all;
}

// Immutable once open; thread-safe.
struct CuptiLibrary {
  // Opens TF_INTEROP_LIBCUPTI if that is set, else a CUPTI with the driver's major version or an
  // older one from 12 on. CUPTI does not work with an older driver.
  Status Open(int driver_version) {
    TF_INTEROP_RETURN_IF_ERROR(library.Open(
        CuptiCandidates(driver_version),
        "Install CUPTI (pip install nvidia-cuda-cupti-cu12, or the CUDA toolkit), or set "
        "TF_INTEROP_LIBCUPTI to its path."));
    return library.Find({TF_INTEROP_CUPTI_ENTRY_POINTS(TF_INTEROP_ENTRY_POINT)});
  }

  // Turns a failure of `call` into kUnavailable with CUPTI's name for it.
  Status Check(CUptiResult result, const char* call) const {
    if (result == CUPTI_SUCCESS) return Status::Ok();
    const char* name = nullptr;
    if (cuptiGetResultString(result, &name) != CUPTI_SUCCESS || name == nullptr) {
      name = "unknown error";
    }
    return Unavailable(std::string(call) + " failed with " + name + " (" +
                       std::to_string(static_cast<int>(result)) + ").");
  }

  TF_INTEROP_CUPTI_ENTRY_POINTS(TF_INTEROP_DECLARE)

  DynamicLibrary library;
};

// CUPTI writes the record of its own version, whatever headers this file was built with. Since CUDA
// 9 each version has only added fields after `reserved0` (Kernel4 of CUDA 9 to Kernel9 of CUDA 12
// and Kernel10 of CUDA 13). So this reads the oldest of these, up to `name`.
using KernelRecord = CUpti_ActivityKernel4;

// Room for hundreds of records; a convolution launches a handful of kernels.
constexpr size_t kBufferBytes = size_t{64} << 10;
constexpr size_t kBufferAlignment = 8;  // CUPTI's ACTIVITY_RECORD_ALIGNMENT

// CUPTI's callbacks accept no user argument and may run on any thread. They collect here.
struct Collected {
  std::mutex mutex;
  const CuptiLibrary* library = nullptr;  // null before the first trace
  std::vector<TracedKernel> kernels;
  Status status;  // the first failure to read records
};

Collected& TheCollected() {
  static auto* collected = new Collected();  // CUPTI may call until the very end of the process
  return *collected;
}

std::string Demangle(const char* name) {
  if (name == nullptr) return "unknown";
  int status = 0;
  char* const demangled = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  const std::string text = status == 0 ? demangled : name;
  std::free(demangled);
  return text;
}

TracedKernel ReadRecord(const KernelRecord& record) {
  TracedKernel kernel;
  kernel.start_ns = record.start;
  kernel.name = Demangle(record.name);
  const int32_t grid[3] = {record.gridX, record.gridY, record.gridZ};
  const int32_t block[3] = {record.blockX, record.blockY, record.blockZ};
  std::copy(grid, grid + 3, kernel.grid);
  std::copy(block, block + 3, kernel.block);
  kernel.registers_per_thread = record.registersPerThread;
  kernel.shared_memory_bytes =
      static_cast<int64_t>(record.staticSharedMemory) + record.dynamicSharedMemory;
  kernel.elapsed_us = static_cast<double>(record.end - record.start) / 1e3;
  return kernel;
}

Status ReadBuffer(const CuptiLibrary& library, uint8_t* buffer, size_t bytes,
                  std::vector<TracedKernel>* kernels) {
  CUpti_Activity* record = nullptr;
  while (true) {
    const CUptiResult result = library.cuptiActivityGetNextRecord(buffer, bytes, &record);
    if (result == CUPTI_ERROR_MAX_LIMIT_REACHED) return Status::Ok();
    TF_INTEROP_RETURN_IF_ERROR(library.Check(result, "cuptiActivityGetNextRecord"));
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL &&
        record->kind != CUPTI_ACTIVITY_KIND_KERNEL) {
      continue;
    }
    const auto& kernel = *reinterpret_cast<const KernelRecord*>(record);
    if (kernel.start == 0 || kernel.end <= kernel.start) {
      return Unavailable("Expected the time of kernel '" + Demangle(kernel.name) +
                         "' from CUPTI, got none.");
    }
    kernels->push_back(ReadRecord(kernel));
  }
}

// If this finds no memory, CUPTI drops records and counts them.
void CUPTIAPI GiveBuffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;  // as many as fit
}

Status CheckNoneDropped(const CuptiLibrary& library, CUcontext context, uint32_t stream) {
  size_t dropped = 0;
  TF_INTEROP_RETURN_IF_ERROR(
      TF_INTEROP_CALL(library, cuptiActivityGetNumDroppedRecords, context, stream, &dropped));
  if (dropped == 0) return Status::Ok();
  return Unavailable("Expected all kernels from CUPTI, but it dropped " + std::to_string(dropped) +
                     " records.");
}

void CUPTIAPI TakeBuffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t,
                         size_t valid_bytes) {
  Collected& collected = TheCollected();
  std::lock_guard<std::mutex> lock(collected.mutex);
  // No exception may pass through CUPTI.
  try {
    if (const CuptiLibrary* const library = collected.library) {
      if (valid_bytes > 0) {
        collected.status.Update(ReadBuffer(*library, buffer, valid_bytes, &collected.kernels));
      }
      collected.status.Update(CheckNoneDropped(*library, context, stream));
    }
  } catch (const std::bad_alloc&) {
    // A message this short allocates no memory.
    collected.status.Update(ResourceExhausted("Out of memory."));
  }
  std::free(buffer);
}

}  // namespace

Status StartKernelTrace(int driver_version) {
  static auto* const library = new CuptiLibrary();
  static const auto* const opened = new Status(library->Open(driver_version));
  TF_INTEROP_RETURN_IF_ERROR(*opened);
  {
    Collected& collected = TheCollected();
    std::lock_guard<std::mutex> lock(collected.mutex);
    collected.library = library;
    collected.kernels.clear();
    collected.status = Status::Ok();
  }
  Status status = TF_INTEROP_CALL(*library, cuptiActivityRegisterCallbacks, GiveBuffer, TakeBuffer);
  if (status.ok()) {
    // Unlike plain KERNEL, this kind lets kernels of several streams run together.
    status = TF_INTEROP_CALL(*library, cuptiActivityEnable, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  }
  if (!status.ok()) (void)library->cuptiFinalize();
  return status;
}

Status StopKernelTrace(std::vector<TracedKernel>* kernels) {
  kernels->clear();
  Collected& collected = TheCollected();
  const CuptiLibrary& library = *collected.library;
  // Detach even if a call fails: CUPTI slows every launch down while it is attached.
  Status status = TF_INTEROP_CALL(library, cuptiActivityFlushAll, CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  status.Update(
      TF_INTEROP_CALL(library, cuptiActivityDisable, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  status.Update(TF_INTEROP_CALL(library, cuptiFinalize));
  std::lock_guard<std::mutex> lock(collected.mutex);
  status.Update(collected.status);
  TF_INTEROP_RETURN_IF_ERROR(status);
  if (collected.kernels.empty()) {
    return Unavailable("Expected GPU kernels in CUPTI's trace, got none.");
  }
  std::stable_sort(
      collected.kernels.begin(), collected.kernels.end(),
      [](const TracedKernel& a, const TracedKernel& b) { return a.start_ns < b.start_ns; });
  kernels->swap(collected.kernels);
  return Status::Ok();
}

}  // namespace tf_interop
