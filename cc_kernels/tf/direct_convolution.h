// A step that calls oneDNN itself, in place of TensorFlow's kernel.
//
// In each call that kernel reads shapes, looks up a primitive by a text that it makes from them,
// and makes descriptors, a stream and a thread pool. Here all of these are made once for each shape
// and number of cores. The primitive is the same, and so are the bits of the result, unless
// Winograd's way is tried and found faster. In a chain of 100 convolutions of 16 pixels and 64
// channels, each takes 5 µs in place of 10 (AMD EPYC, one core).
#ifndef TF_INTEROP_TF_DIRECT_CONVOLUTION_H_
#define TF_INTEROP_TF_DIRECT_CONVOLUTION_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cc_kernels/core/lru_cache.h"
#include "cc_kernels/core/self_timing.h"
#include "cc_kernels/tf/kernel_convolution.h"
#include "cc_kernels/tf/onednn.h"
#include "cc_kernels/tf/winograd_convolution.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_interop {

// Its name in profiles, in place of an op's.
inline constexpr char kDirectConvolution[] = "TfInterop>DirectConvolution";

// A convolution that has the same filter in each call. Thread-safe.
class DirectConvolution {
 public:
  // Null if `kernel` is not one of oneDNN's for float32 images, or if oneDNN cannot be called.
  // With `tries_winograd` the fastest of two ways is found by trying.
  static std::unique_ptr<DirectConvolution> Make(const tensorflow::OpKernel& kernel,
                                                 bool tries_winograd);

  struct Prepared;
  // What to run for the inputs of a call; null if only the kernel takes them.
  std::shared_ptr<Prepared> Find(tensorflow::OpKernelContext* context);
  // Does what the kernel does.
  absl::Status Run(tensorflow::OpKernelContext* context, Prepared* prepared) const;

  // Its name in profiles.
  static absl::string_view Name(const Prepared& prepared);

 private:
  struct Filter;
  struct Call;
  using Key = std::array<int64_t, 5>;  // the image's sizes, and the number of cores

  DirectConvolution(const KernelConvolution& kernel, bool tries_winograd)
      : kernel_(kernel), tries_winograd_(tries_winograd) {}
  // Not ready if only the kernel takes the inputs.
  std::shared_ptr<Prepared> Prepare(tensorflow::OpKernelContext* context, int cores);
  // The caller has written the summand into `output`.
  absl::Status RunOn(tensorflow::OpKernelContext* context, Prepared* prepared,
                     const tensorflow::Tensor& image, tensorflow::Tensor* output) const;

  // Tries it once for each size of images, on the first ones of the call.
  bool IsWinogradFaster(tensorflow::OpKernelContext* context, const Convolution& convolution,
                        int cores);
  bool TryWinograd(tensorflow::OpKernelContext* context, const Convolution& convolution, int cores);
  std::unique_ptr<WinogradConvolution> MakeWinograd(tensorflow::OpKernelContext* context,
                                                    const Convolution& convolution, int cores);
  void MakePrimitive(tensorflow::OpKernelContext* context, const Convolution& convolution,
                     int cores, Prepared* prepared);

  // `find_data` returns the filter in the form `given`, or null.
  std::shared_ptr<Filter> FindFilter(tensorflow::OpKernelContext* context,
                                     const_dnnl_memory_desc_t given,
                                     const_dnnl_memory_desc_t needed,
                                     const std::function<void*()>& find_data);
  void ForgetUnusedFilters();

  const KernelConvolution kernel_;
  const bool tries_winograd_;
  LruCache<Key, std::shared_ptr<Prepared>> prepared_{SelfTiming::kMostSizesAndCores};
  std::mutex mutex_;                              // guards the rest
  std::vector<std::shared_ptr<Filter>> filters_;  // in the few forms that primitives need
  // By number of images, height and width.
  std::map<std::array<int64_t, 3>, bool> is_winograd_faster_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_DIRECT_CONVOLUTION_H_
