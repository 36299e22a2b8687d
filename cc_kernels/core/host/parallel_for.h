// How the host backend spreads the work of one convolution over threads.
#ifndef TF_INTEROP_CORE_HOST_PARALLEL_FOR_H_
#define TF_INTEROP_CORE_HOST_PARALLEL_FOR_H_

#include <functional>

namespace tf_interop {

// Calls work(0) … work(count - 1), in any order and on any threads, and returns when all are done.
using ParallelFor = std::function<void(int count, const std::function<void(int)>& work)>;

// Calls them one after another on the calling thread.
inline void SerialFor(int count, const std::function<void(int)>& work) {
  for (int i = 0; i < count; ++i) work(i);
}

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_HOST_PARALLEL_FOR_H_
