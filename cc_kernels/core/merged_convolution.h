// Forward convolutions of one image as one wider convolution, whose filters lie side by side:
//
//            ┌─ filter a ─ output a
//   image ───┤                          image ─── filter a|b ─── output a|b
//            └─ filter b ─ output b
//
// Row copies join the filters (and biases) before it and split the output after it. A filter [R, S,
// C, K] is R * S * C rows of K elements; an output has a row of K elements for each pixel in NHWC,
// and a row of K planes for each image in NCHW. The workspace begins with the joined tensors:
// filter, bias, output. The wider convolution's own workspace follows.
//
// Every element of the result has the same operands as without merging, but the algorithm may add
// them up in a different order.
#ifndef TF_INTEROP_CORE_MERGED_CONVOLUTION_H_
#define TF_INTEROP_CORE_MERGED_CONVOLUTION_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Each row consists of one row of each convolution's tensor.
struct JoinedTensor {
  size_t workspace_offset = 0;
  size_t rows = 0;
  std::vector<size_t> part_row_bytes;  // for each convolution, in order
  size_t row_bytes = 0;                // of all parts

  size_t bytes() const { return rows * row_bytes; }
};

// Immutable.
struct PreparedMerge {
  Convolution wide;
  JoinedTensor filter, bias, output;                       // a missing bias has no rows
  size_t joined_bytes = 0;                                 // of the three
  std::shared_ptr<const PreparedConvolution> convolution;  // the wider one

  size_t workspace_bytes() const { return joined_bytes + convolution->workspace_bytes(); }
  // Bytes of the filter as EnqueueJoinedFilter leaves it.
  size_t joined_filter_bytes() const;
};

// Merges `parts`, which are valid, have something to compute and read the same image. Prepares the
// wider convolution with their common algorithm (empty: the backend's own choice), within the
// limit. Returns kUnsupported unless they are forward convolutions that differ only in their output
// channels and share one algorithm, and any error of Backend::Prepare.
Status PrepareMerge(Backend* backend, const std::vector<Convolution>& parts,
                    const std::vector<std::string>& algorithms, const PrepareOptions& options,
                    PreparedMerge* prepared);

// Joins filters for many launches, and transforms them if the algorithm does. `joined` has
// prepared.joined_filter_bytes(), `workspace` prepared.workspace_bytes().
Status EnqueueJoinedFilter(Backend* backend, const PreparedMerge& prepared,
                           const std::vector<const void*>& filters, void* workspace, void* joined,
                           Stream stream);

// Enqueues the joining, the wider convolution and the splitting. The parts, which must read the
// same image, are `steps` of `buffers`. `joined_filter` is the result of EnqueueJoinedFilter, or
// null if this launch joins the filters. See Backend::Launch for the rest.
Status LaunchMerge(Backend* backend, const PreparedMerge& prepared,
                   const std::vector<ConvolutionBuffers>& buffers, const std::vector<size_t>& steps,
                   const void* joined_filter, void* workspace, Stream stream);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MERGED_CONVOLUTION_H_
