// The part of CUPTI that tracing uses, opened at run time.
#ifndef TF_INTEROP_CORE_MEASURE_CUPTI_LIBRARY_H_
#define TF_INTEROP_CORE_MEASURE_CUPTI_LIBRARY_H_

#include <cupti.h>

#include "cc_kernels/core/cudnn/dynamic_library.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

#define TF_INTEROP_CUPTI_ENTRY_POINTS(X) \
  X(cuptiActivityDisable)                \
  X(cuptiActivityEnable)                 \
  X(cuptiActivityFlushAll)               \
  X(cuptiActivityGetNextRecord)          \
  X(cuptiActivityGetNumDroppedRecords)   \
  X(cuptiActivityRegisterCallbacks)      \
  X(cuptiGetResultString)

// Immutable once open; thread-safe.
struct CuptiLibrary {
  // Opens the CUPTI in TF_INTEROP_LIBCUPTI where that is set, else one whose major version is the
  // driver's or an older one from 12 on: an older CUPTI works with a newer driver, a newer one does
  // not with an older driver. `driver_version` is what cuDriverGetVersion gives.
  static Status Open(int driver_version, CuptiLibrary* library);

  // Ok, or kUnavailable with CUPTI's name for `result`. `call` names what was called.
  Status Check(CUptiResult result, const char* call) const;

#define TF_INTEROP_DECLARE(name) decltype(&::name) name = nullptr;
  TF_INTEROP_CUPTI_ENTRY_POINTS(TF_INTEROP_DECLARE)
#undef TF_INTEROP_DECLARE

  DynamicLibrary library;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_CUPTI_LIBRARY_H_
