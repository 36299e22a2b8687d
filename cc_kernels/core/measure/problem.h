// A convolution with operands to measure it on, and what its result should be.
#ifndef TF_INTEROP_CORE_MEASURE_PROBLEM_H_
#define TF_INTEROP_CORE_MEASURE_PROBLEM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "cc_kernels/core/convolution.h"

namespace tf_interop {

using Bytes = std::vector<unsigned char>;

// A convolution with operands in host memory.
struct MeasuredProblem {
  Convolution convolution;
  std::vector<Bytes> inputs;
  size_t result_bytes = 0;
  // The place, among the problems of a stage, of the one whose image (the first input) this one
  // reads in place of its own, which is empty then.
  std::optional<size_t> image_of;

  size_t bytes() const {
    size_t sum = result_bytes;
    for (const Bytes& input : inputs) sum += input.size();
    return sum;
  }
};

// Draws the operands, which are normal with mean 0 and deviation 1.
MeasuredProblem MakeProblem(const Convolution& convolution, std::mt19937_64* random);

// Operands and reference of the convolution that was measured last, so that its next algorithm
// need not wait for them again. Holds those of one convolution. Not thread-safe.
class ProblemCache {
 public:
  struct Entry {
    // The error of `result`; see Measurement::relative_error.
    double Check(const Bytes& result, double limit_multiply_adds);

    uint64_t seed = 0;
    MeasuredProblem problem;
    std::optional<std::vector<double>> expected;  // computed when it is first asked for
  };

  // What belongs to `convolution` and `seed`, kept until the next call.
  Entry& Get(const Convolution& convolution, uint64_t seed);

 private:
  std::unique_ptr<Entry> last_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_PROBLEM_H_
