#pragma GCC visibility push(default)

#include "tests/cc/fake_cupti.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace tf_interop {
namespace {

CUpti_BuffersCallbackRequestFunc request = nullptr;
CUpti_BuffersCallbackCompleteFunc complete = nullptr;
bool is_attached = false, is_enabled = false;
int buffers = 0;

// Hands over one buffer with records from `first` on, and returns how many it took.
size_t HandOver(size_t first) {
  const FakeCuptiSwitches& fake = FakeCupti();
  uint8_t* buffer = nullptr;
  size_t bytes = 0, most = 0;
  request(&buffer, &bytes, &most);
  if (buffer == nullptr || reinterpret_cast<uintptr_t>(buffer) % 8 != 0) return 0;
  size_t count = std::min(
      {fake.records.size() - first, fake.most_records_in_buffer, bytes / fake.record_bytes});
  if (most != 0) count = std::min(count, most);
  for (size_t i = 0; i < count; ++i) {
    uint8_t* const record = buffer + i * fake.record_bytes;
    std::memset(record, 0xAB, fake.record_bytes);
    std::memcpy(record, &fake.records[first + i], sizeof(CUpti_ActivityKernel9));
  }
  ++buffers;
  complete(nullptr, 0, buffer, bytes, count * fake.record_bytes);
  return count;
}

// For processes that cannot reach the switches.
FakeCuptiSwitches SwitchesOfEnvironment() {
  FakeCuptiSwitches switches;
  const char* const name = std::getenv("TF_INTEROP_FAKE_CUPTI_KERNEL");
  if (name == nullptr) return switches;
  CUpti_ActivityKernel9 record = {};
  record.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  record.name = name;
  record.start = 1000;
  record.end = 3000;
  record.gridX = 66, record.gridY = 2, record.gridZ = 1;
  record.blockX = 128, record.blockY = 1, record.blockZ = 1;
  record.registersPerThread = 96;
  record.staticSharedMemory = 1024;
  record.dynamicSharedMemory = 49152;
  switches.records = {record};
  return switches;
}

}  // namespace

FakeCuptiSwitches& FakeCupti() {
  static FakeCuptiSwitches switches = SwitchesOfEnvironment();
  return switches;
}

bool FakeCuptiIsAttached() { return is_attached; }

bool FakeCuptiIsEnabled() { return is_enabled; }

int FakeCuptiBuffers() { return buffers; }

}  // namespace tf_interop

using tf_interop::FakeCupti;

extern "C" {

CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                                    CUpti_BuffersCallbackCompleteFunc completed) {
  if (requested == nullptr || completed == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  tf_interop::request = requested;
  tf_interop::complete = completed;
  tf_interop::is_attached = true;
  return FakeCupti().register_result;
}

CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind kind) {
  if (kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) return CUPTI_ERROR_INVALID_KIND;
  if (tf_interop::request == nullptr) return CUPTI_ERROR_NOT_INITIALIZED;
  if (FakeCupti().enable_result == CUPTI_SUCCESS) tf_interop::is_enabled = true;
  return FakeCupti().enable_result;
}

CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind kind) {
  if (kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) return CUPTI_ERROR_INVALID_KIND;
  tf_interop::is_enabled = false;
  return FakeCupti().disable_result;
}

CUptiResult CUPTIAPI cuptiFinalize() {
  tf_interop::request = nullptr;
  tf_interop::is_attached = tf_interop::is_enabled = false;
  return FakeCupti().finalize_result;
}

CUptiResult CUPTIAPI cuptiActivityFlushAll(uint32_t) {
  if (!tf_interop::is_enabled) return CUPTI_ERROR_INVALID_OPERATION;
  if (FakeCupti().flush_result != CUPTI_SUCCESS) return FakeCupti().flush_result;
  size_t first = 0;
  while (first < FakeCupti().records.size()) {
    const size_t taken = tf_interop::HandOver(first);
    if (taken == 0) break;
    first += taken;
  }
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid_bytes,
                                                CUpti_Activity** record) {
  if (FakeCupti().next_result != CUPTI_SUCCESS) return FakeCupti().next_result;
  uint8_t* const next =
      *record == nullptr ? buffer : reinterpret_cast<uint8_t*>(*record) + FakeCupti().record_bytes;
  if (next >= buffer + valid_bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  *dropped = FakeCupti().dropped;
  return FakeCupti().dropped_result;
}

CUptiResult CUPTIAPI cuptiGetResultString(CUptiResult result, const char** text) {
  if (FakeCupti().has_no_text) return CUPTI_ERROR_INVALID_PARAMETER;
  switch (result) {
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
      *text = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED";
      break;
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
      *text = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES";
      break;
    default:
      *text = "CUPTI_ERROR_OF_THE_TEST";
  }
  return CUPTI_SUCCESS;
}

}  // extern "C"

#pragma GCC visibility pop
