// Convolutions of numbers whose sums are exact, in guarded memory, compared with the reference.
// Also assertions on Status.
#ifndef TF_INTEROP_TESTS_CC_PROBLEM_H_
#define TF_INTEROP_TESTS_CC_PROBLEM_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "cc_kernels/core/host/reference_convolution.h"
#include "cc_kernels/core/stage_runner.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Checks the code of an error and parts of its message.
inline testing::AssertionResult IsError(const Status& status, StatusCode code,
                                        const std::vector<std::string>& parts) {
  testing::AssertionResult wrong = testing::AssertionFailure();
  wrong << "status " << static_cast<int>(status.code()) << ": " << status.message();
  if (status.code() != code) return wrong;
  for (const std::string& part : parts) {
    if (status.message().find(part) == std::string::npos) return wrong << "\nlacks: " << part;
  }
  return testing::AssertionSuccess();
}

inline testing::AssertionResult IsOk(const Status& status) {
  if (status.ok()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << status.message();
}

// Memory with guards on both sides, filled with bytes that read as NaN.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t bytes)
      : bytes_(bytes), storage_(bytes + 2 * kGuardBytes + 256, kGuard) {
    const auto start = reinterpret_cast<uintptr_t>(storage_.data()) + kGuardBytes;
    data_ = storage_.data() + kGuardBytes + (256 - start % 256) % 256;
    std::memset(data_, 0xFF, bytes);
  }

  GuardedBuffer(GuardedBuffer&&) = default;  // does not move the storage

  unsigned char* data() { return data_; }

  bool IsIntact() const {
    const auto is_guard = [](unsigned char byte) { return byte == kGuard; };
    return std::all_of(data_ - kGuardBytes, data_, is_guard) &&
           std::all_of(data_ + bytes_, data_ + bytes_ + kGuardBytes, is_guard);
  }

 private:
  static constexpr size_t kGuardBytes = 64;
  static constexpr unsigned char kGuard = 0xC3;

  size_t bytes_;
  std::vector<unsigned char> storage_;
  unsigned char* data_;
};

// Relative to the expected value, or absolute if its magnitude is below 1.
struct Tolerance {
  double of_float, of_half;

  double Of(DataType dtype) const {
    // bfloat16 has three significant bits fewer than half.
    const double by_dtype[] = {of_float, of_half, 8 * of_half, 1e-15};
    return by_dtype[static_cast<int>(dtype)];
  }
};

// For results that are rounded once, as exponentials are. Sums of the numbers below are exact.
inline constexpr Tolerance kOnce = {1e-6, 1.0 / 2048};

// The convolutions of a stage with their operands and expected results. Device and test share the
// memory of a Buffer.
template <typename Buffer = GuardedBuffer>
class ProblemIn {
 public:
  // Operands are quarters, whose sums are exact in float and in half.
  explicit ProblemIn(const std::vector<Convolution>& cs, bool share_image = false) : cs_(cs) {
    std::mt19937 random(17);
    std::uniform_int_distribution<int> quarters(-4, 4);
    std::vector<double> shared;
    for (const Convolution& c : cs) {
      std::vector<std::vector<double>> inputs;
      std::vector<Buffer*> operands;
      for (const int64_t elements : InputElements(c)) {
        const bool is_shared = share_image && inputs.empty() && !operands_.empty();
        std::vector<double>& values = inputs.emplace_back(elements);
        for (double& value : values) value = quarters(random) * 0.25;
        if (is_shared) {
          values = shared;
          operands.push_back(operands_[0][0]);
          continue;
        }
        operands.push_back(&NewBuffer(elements * SizeOf(c.dtype)));
        Encode(c.dtype, values.data(), elements, operands.back()->data());
        if (shared.empty()) shared = values;
      }
      operands_.push_back(operands);
      results_.push_back(&NewBuffer(c.result_elements() * SizeOf(c.dtype)));
      expected_.push_back(Convolve(c, inputs));
    }
    const unsigned char* const first = operands_[0][0]->data();
    image_.assign(first, first + InputElements(cs[0])[0] * SizeOf(cs[0].dtype));
  }
  explicit ProblemIn(const Convolution& c) : ProblemIn(std::vector<Convolution>{c}) {}
  explicit ProblemIn(const Stage& stage, bool share_image = false)
      : ProblemIn(ConvolutionsOf(stage), share_image) {}

  ConvolutionBuffers buffers(size_t step = 0) {
    ConvolutionBuffers buffers;
    for (size_t i = 0; i < operands_[step].size(); ++i) {
      buffers.inputs[i] = operands_[step][i]->data();
    }
    buffers.result = results_[step]->data();
    return buffers;
  }

  // Adds new workspaces of exactly these sizes.
  StageBuffers Bind(const std::vector<size_t>& lane_bytes) {
    StageBuffers all;
    for (size_t step = 0; step < cs_.size(); ++step) all.steps.push_back(buffers(step));
    all.lane_workspaces = NewWorkspaces(lane_bytes);
    return all;
  }

  std::vector<void*> NewWorkspaces(const std::vector<size_t>& lane_bytes) {
    std::vector<void*> workspaces;
    for (const size_t bytes : lane_bytes) workspaces.push_back(NewBuffer(bytes).data());
    return workspaces;
  }

  Buffer& NewBuffer(size_t bytes) { return memory_.emplace_back(bytes); }

  // Sets the first operand of the first convolution to NaN, and back.
  void HideImage() { std::memset(operands_[0][0]->data(), 0xFF, image_.size()); }
  void ShowImage() { std::memcpy(operands_[0][0]->data(), image_.data(), image_.size()); }
  size_t image_bytes() const { return image_.size(); }
  ConvolutionKind kind() const { return cs_[0].kind; }

  void SpoilResults() {
    for (size_t i = 0; i < cs_.size(); ++i) {
      std::memset(results_[i]->data(), 0xFF, expected_[i].size() * SizeOf(cs_[i].dtype));
    }
  }

  // Counts wrong elements, including NaN.
  int CountWrong(const Tolerance& tolerances = kOnce) {
    int wrong = 0;
    for (size_t step = 0; step < cs_.size(); ++step) {
      const std::vector<double>& expected = expected_[step];
      const double tolerance = tolerances.Of(cs_[step].dtype);
      const std::vector<double> got = ResultOf(step);
      for (size_t i = 0; i < expected.size(); ++i) {
        const double most = tolerance * std::max(1.0, std::fabs(expected[i]));
        wrong += !(std::fabs(got[i] - expected[i]) <= most);
      }
    }
    return wrong;
  }

  std::vector<double> ResultOf(size_t step) {
    return Decode(cs_[step].dtype, results_[step]->data(), cs_[step].result_elements());
  }

  // Checks every element and the guards of all memory.
  void ExpectCorrect(const Tolerance& tolerances = kOnce) {
    EXPECT_EQ(CountWrong(tolerances), 0) << ToString(cs_[0]);
    for (const Buffer& buffer : memory_) {
      EXPECT_TRUE(buffer.IsIntact()) << "written beyond a buffer: " << ToString(cs_[0]);
    }
  }

 private:
  static std::vector<Convolution> ConvolutionsOf(const Stage& stage) {
    std::vector<Convolution> all;
    for (const Step& step : stage.steps) all.push_back(step.convolution);
    return all;
  }

  const std::vector<Convolution> cs_;
  std::deque<Buffer> memory_;                   // never moves
  std::vector<std::vector<Buffer*>> operands_;  // of each convolution
  std::vector<Buffer*> results_;
  std::vector<std::vector<double>> expected_;
  std::vector<unsigned char> image_;
};

using Problem = ProblemIn<>;

// Launches the only convolution of a problem, in a new workspace. With `transforms` the launch
// reads only the transformed filter.
template <typename Buffer>
Status LaunchOn(Stream stream, Backend* backend, const PreparedConvolution& prepared,
                ProblemIn<Buffer>* problem, bool transforms = false) {
  ConvolutionBuffers buffers = problem->buffers();
  void* const workspace = problem->NewBuffer(prepared.workspace_bytes()).data();
  if (transforms) {
    const void*& filter = buffers.inputs[problem->kind() == ConvolutionKind::kForward ? 1 : 0];
    void* const transformed = problem->NewBuffer(prepared.transformed_filter_bytes()).data();
    TF_INTEROP_RETURN_IF_ERROR(backend->TransformFilter(prepared, filter, transformed, stream));
    filter = nullptr;
    buffers.transformed_filter = transformed;
  }
  return backend->Launch(prepared, buffers, workspace, stream);
}

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_PROBLEM_H_
