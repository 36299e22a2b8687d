// Values that are computed from others and held until those change.
//
// Holding a variable's value makes its next update copy the variable. A program that updates its
// variables at every step would pay for that and gain nothing, so holding pauses after several
// changes in a row, and is tried again later.
#ifndef TF_INTEROP_TF_HOLDING_H_
#define TF_INTEROP_TF_HOLDING_H_

#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {

// Not thread-safe.
class Holding {
 public:
  static constexpr int kMostChanges = 3;
  static constexpr int kPausedCalls = 16;

  void SawTheSame() { changes_ = 0; }

  // Whether to hold new values. `replaces`: in place of others. Calls that overlap find one change,
  // and only the first of them still finds others.
  bool ShouldHoldNew(bool replaces) {
    if (paused_calls_ > 0) {
      --paused_calls_;
      return false;
    }
    if (!replaces) return true;
    if (++changes_ <= kMostChanges) return true;
    changes_ = kMostChanges;  // then one more change pauses again
    paused_calls_ = kPausedCalls - 1;
    return false;
  }

 private:
  int changes_ = 1;
  int paused_calls_ = 0;
};

// Whether two tensors have the same shape and memory. If one of them is held, nobody can have
// written into the memory meanwhile: a variable's update first copies what others hold.
inline bool IsSame(const tensorflow::Tensor& a, const tensorflow::Tensor& b) {
  return a.SharesBufferWith(b) && a.data() == b.data() && a.shape() == b.shape();
}

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_HOLDING_H_
