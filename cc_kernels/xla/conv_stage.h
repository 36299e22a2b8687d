// Stages inside functions that XLA compiles.
#ifndef TF_INTEROP_XLA_CONV_STAGE_H_
#define TF_INTEROP_XLA_CONV_STAGE_H_

#include <cstdint>

namespace tf_interop {

// Stages that were compiled so far in this process.
struct CompiledStages {
  int64_t as_calls = 0;    // of the op's kernel
  int64_t translated = 0;  // to XLA's own convolutions, which run one after another
};
CompiledStages ReadCompiledStages();

}  // namespace tf_interop

#endif  // TF_INTEROP_XLA_CONV_STAGE_H_
