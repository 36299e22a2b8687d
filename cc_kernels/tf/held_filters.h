// The part of ConvStage's kernels that lets steps read filters that they hold as they were
// transformed once. What may be used when is for core/transformed_filters.h to say; here are
// tensors.
//
// Memory comes from the device's allocator and goes back with the kernel, or when a stage of
// the device finds none left for its results or workspaces.
#ifndef TF_INTEROP_TF_HELD_FILTERS_H_
#define TF_INTEROP_TF_HELD_FILTERS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/stage_runner.h"
#include "cc_kernels/core/transformed_filters.h"
#include "cc_kernels/tf/resolved_stage.h"
#include "cc_kernels/tf/stage_program.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {

// Allocates from the device's allocator, which waits for memory (until another op has freed some)
// and logs where it has none only where it `may_wait`.
absl::Status AllocateBytes(tensorflow::OpKernelContext* context, size_t bytes, bool may_wait,
                           tensorflow::Tensor* tensor);

// Finds the launches of a prepared stage that read filters which may be held, where transforming
// these once helps.
std::vector<HeldFilter> FindHeldFilters(const StageProgram& program, const ResolvedStage& resolved,
                                        Backend* backend);

// Gives these launches their filters transformed, and appends who keeps them. Enqueues on `caller`
// what has not been transformed yet: to be called before the stage is enqueued.
void BindHeldFilters(tensorflow::OpKernelContext* context, const ResolvedStage& resolved,
                     Stream caller, TransformedFilters* filters, StageBuffers* buffers,
                     std::vector<std::shared_ptr<TransformedFilter>>* bound);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_HELD_FILTERS_H_
