// A step that another way than TensorFlow's kernel may compute faster.
//
// In its first calls both take turns, and the faster one stays.
#ifndef TF_INTEROP_TF_TRIED_STEP_H_
#define TF_INTEROP_TF_TRIED_STEP_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "cc_kernels/core/lru_cache.h"
#include "cc_kernels/core/self_timing.h"
#include "cc_kernels/tf/other_way.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_interop {

// Thread-safe.
class TriedStep {
 public:
  // Null if there is no other way for any inputs of `kernel`.
  static std::unique_ptr<TriedStep> Make(const tensorflow::OpKernel& kernel);

  struct Ways;
  // How a call runs.
  struct Turn {
    std::shared_ptr<Ways> ways;  // null: only the kernel takes the inputs, or is faster
    bool is_other = false;       // else the kernel runs
    bool is_first = false;       // compares both
    int trial = -1;              // from 0, or no trial

    // Of the other way in profiles; empty if the kernel runs.
    absl::string_view name() const;
  };
  Turn Find(const tensorflow::OpKernelContext& context);
  // Does what `kernel` does. Not for a turn without ways.
  static void Run(tensorflow::OpKernelContext* context, tensorflow::OpKernel* kernel,
                  const Turn& turn);

 private:
  // The number of cores, the shapes of the inputs, and the values of those that are sizes.
  using Key = absl::InlinedVector<int64_t, 24>;

  explicit TriedStep(OtherWayMaker make) : make_(std::move(make)) {}
  static Key KeyOf(const tensorflow::OpKernelContext& context, int cores);

  const OtherWayMaker make_;
  LruCache<Key, std::shared_ptr<Ways>> ways_{SelfTiming::kMostSizesAndCores};
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_TRIED_STEP_H_
