// The part of ConvStage's kernels that lets steps read constant filters as they were transformed
// once. What may be used when is for core/transformed_filters.h to say; here are tensors.
//
// Memory comes from the device's allocator and goes back with the kernel, or when a stage finds
// none left for its workspaces.
#ifndef TF_INTEROP_TF_CONSTANT_FILTERS_H_
#define TF_INTEROP_TF_CONSTANT_FILTERS_H_

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/transformed_filters.h"
#include "cc_kernels/tf/conv_stage_base.h"
#include "cc_kernels/tf/stage_program.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_interop {

// Gives the steps of `call` whose filter is constant that filter transformed, where that helps, and
// merged steps whose filters are all constant those filters joined.
// Enqueues on `caller` what has not been transformed yet: to be called before RunStage.
void BindConstantFilters(tensorflow::OpKernelContext* context, const StageProgram& program,
                         Backend* backend, Stream caller, TransformedFilters* filters,
                         StageCall* call);

// Says that the caller's stream has run all that was enqueued for `call`, so that calls on other
// streams may use what was transformed for it.
void MarkTransformed(const StageCall& call);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_CONSTANT_FILTERS_H_
