// Threads of a test.
#ifndef TF_INTEROP_TESTS_CC_THREADS_H_
#define TF_INTEROP_TESTS_CC_THREADS_H_

#include <thread>
#include <vector>

namespace tf_interop {

// Calls work(0) … work(count - 1) at the same time, each on a thread of its own.
template <typename Work>
void InThreads(int count, const Work& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&work, i] { work(i); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_THREADS_H_
