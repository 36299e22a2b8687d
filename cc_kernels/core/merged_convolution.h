// Forward convolutions of one image as one wider convolution, whose filters lie side by side:
//
//            ┌─ filter a ─ output a
//   image ───┤                          image ─── filter a|b ─── output a|b
//            └─ filter b ─ output b
//
// Filters (and biases) are joined before it and its output is split after it, by copies of rows:
// a filter [R, S, C, K] is R * S * C rows of K elements; an output is a row of K elements for each
// pixel in NHWC, and a row of K planes for each image in NCHW. The joined tensors lie in front of
// the wider convolution's own workspace, in the order filter, bias, output.
//
// Every element of the result is computed from the same operands as without merging; the algorithm
// may add them up in another order.
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

// A tensor that is made of one tensor of each convolution: its rows are theirs, end to end.
struct JoinedTensor {
  size_t workspace_offset = 0;
  size_t rows = 0;
  std::vector<size_t> part_row_bytes;  // for each convolution, in order
  size_t row_bytes = 0;                // of all parts together

  size_t bytes() const { return rows * row_bytes; }
};

struct MergedConvolution {
  Convolution wide;
  JoinedTensor filter, bias, output;  // the bias has no rows where there is none
  // Where the wider convolution's own workspace begins.
  size_t joined_bytes = 0;
};

// Describes `parts`, which are valid and read the same image, as one convolution. Returns
// kUnsupported with the reason where they are not forward convolutions that have something to
// compute and differ in their output channels only.
Status MergeConvolutions(const std::vector<Convolution>& parts, MergedConvolution* merged);

// A merged convolution that is ready to launch. Immutable.
struct PreparedMerge {
  MergedConvolution merged;
  std::shared_ptr<const PreparedConvolution> convolution;  // the wider one

  // Joined tensors and the wider convolution's own.
  size_t workspace_bytes() const { return merged.joined_bytes + convolution->workspace_bytes(); }
  // Bytes of the filter as EnqueueJoinedFilter leaves it.
  size_t joined_filter_bytes() const;
};

// Merges `parts` and prepares the wider convolution with the algorithm that all `algorithms` name
// (all empty: the backend's own choice), within the limit. Returns kUnsupported where the parts or
// their algorithms do not fit together, and what Backend::Prepare returns.
Status PrepareMerge(Backend* backend, const std::vector<Convolution>& parts,
                    const std::vector<std::string>& algorithms, const PrepareOptions& options,
                    PreparedMerge* prepared);

// The buffers of the parts of a merged convolution, among those of all steps of a stage. Refers to
// both, which have to outlive it.
class MergedBuffers {
 public:
  MergedBuffers(const std::vector<ConvolutionBuffers>& all, const std::vector<size_t>& parts)
      : all_(all), parts_(parts) {}
  size_t size() const { return parts_.size(); }
  const ConvolutionBuffers& operator[](size_t part) const { return all_[parts_[part]]; }

 private:
  const std::vector<ConvolutionBuffers>& all_;
  const std::vector<size_t>& parts_;
};

// Whether the parts of a merged convolution read the same image, as they have to.
bool HaveOneImage(const MergedBuffers& parts);

// Enqueues the joining of filters that many launches will read, in the form that the algorithm
// reads. `joined` holds prepared.joined_filter_bytes(), `workspace` prepared.workspace_bytes().
Status EnqueueJoinedFilter(Backend* backend, const PreparedMerge& prepared,
                           const std::vector<const void*>& filters, void* workspace, void* joined,
                           Stream stream);

// Enqueues the joining, the wider convolution and the splitting on `stream`. `parts` are the
// buffers of the convolutions, `joined_filter` is what EnqueueJoinedFilter made, or null if this
// launch is to join the filters. See Backend::Launch for the rest.
Status LaunchMerge(Backend* backend, const PreparedMerge& prepared, const MergedBuffers& parts,
                   const void* joined_filter, void* workspace, Stream stream);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MERGED_CONVOLUTION_H_
