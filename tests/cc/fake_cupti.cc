#pragma GCC visibility push(default)

#include "tests/cc/fake_cupti.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace tf_interop {
namespace {

CUpti_BuffersCallbackRequestFunc request = nullptr;
CUpti_BuffersCallbackCompleteFunc complete = nullptr;
bool is_attached = false, is_enabled = false;

// Delivers one buffer with records from `first` on. Returns their number.
size_t HandOver(size_t first) {
  const FakeCuptiSwitches& fake = FakeCupti();
  uint8_t* buffer = nullptr;
  size_t bytes = 0, most = 0;
  request(&buffer, &bytes, &most);
  if (buffer == nullptr || reinterpret_cast<uintptr_t>(buffer) % 8 != 0) return 0;
  size_t count = std::min(fake.records.size() - first, bytes / fake.record_bytes);
  if (most != 0) count = std::min(count, most);
  for (size_t i = 0; i < count; ++i) {
    uint8_t* const record = buffer + i * fake.record_bytes;
    std::memset(record, 0xAB, fake.record_bytes);
    std::memcpy(record, &fake.records[first + i], sizeof(CUpti_ActivityKernel9));
  }
  complete(nullptr, 0, buffer, bytes, count * fake.record_bytes);
  return count;
}

CUptiResult ResultOf(const char* call) {
  const auto found = FakeCupti().results.find(call);
  return found == FakeCupti().results.end() ? CUPTI_SUCCESS : found->second;
}

}  // namespace

FakeCuptiSwitches& FakeCupti() {
  static FakeCuptiSwitches switches;
  return switches;
}

bool FakeCuptiIsAttached() { return is_attached; }

bool FakeCuptiIsEnabled() { return is_enabled; }

}  // namespace tf_interop

using namespace tf_interop;  // NOLINT: the C interface of the functions above

extern "C" {

CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                                    CUpti_BuffersCallbackCompleteFunc completed) {
  if (requested == nullptr || completed == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  request = requested;
  complete = completed;
  is_attached = true;
  return ResultOf("cuptiActivityRegisterCallbacks");
}

CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind kind) {
  if (kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) return CUPTI_ERROR_INVALID_KIND;
  if (request == nullptr) return CUPTI_ERROR_NOT_INITIALIZED;
  if (ResultOf("cuptiActivityEnable") == CUPTI_SUCCESS) is_enabled = true;
  return ResultOf("cuptiActivityEnable");
}

CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind kind) {
  if (kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) return CUPTI_ERROR_INVALID_KIND;
  is_enabled = false;
  return ResultOf("cuptiActivityDisable");
}

CUptiResult CUPTIAPI cuptiFinalize() {
  request = nullptr;
  is_attached = is_enabled = false;
  return ResultOf("cuptiFinalize");
}

CUptiResult CUPTIAPI cuptiActivityFlushAll(uint32_t) {
  if (!is_enabled) return CUPTI_ERROR_INVALID_OPERATION;
  if (ResultOf("cuptiActivityFlushAll") != CUPTI_SUCCESS) return ResultOf("cuptiActivityFlushAll");
  size_t first = 0;
  while (first < FakeCupti().records.size()) {
    const size_t taken = HandOver(first);
    if (taken == 0) break;
    first += taken;
  }
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid_bytes,
                                                CUpti_Activity** record) {
  if (ResultOf("cuptiActivityGetNextRecord") != CUPTI_SUCCESS)
    return ResultOf("cuptiActivityGetNextRecord");
  uint8_t* const next =
      *record == nullptr ? buffer : reinterpret_cast<uint8_t*>(*record) + FakeCupti().record_bytes;
  if (next >= buffer + valid_bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  *dropped = FakeCupti().dropped;
  return ResultOf("cuptiActivityGetNumDroppedRecords");
}

CUptiResult CUPTIAPI cuptiGetResultString(CUptiResult result, const char** text) {
  if (FakeCupti().has_no_text) return CUPTI_ERROR_INVALID_PARAMETER;
  *text = result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
              ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
              : "CUPTI_ERROR_OF_THE_TEST";
  return CUPTI_SUCCESS;
}

}  // extern "C"

#pragma GCC visibility pop
