// Convolutions that read one image, with their operands and what they should give.
#ifndef TF_INTEROP_TESTS_CC_MERGED_PROBLEM_H_
#define TF_INTEROP_TESTS_CC_MERGED_PROBLEM_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "tests/cc/convolution_problem.h"
#include "tests/cc/guarded_buffer.h"
#include "tests/cc/reference_convolution.h"
#include "tests/cc/stage_fixture.h"

namespace tf_interop {

// `c` once for each number of output channels.
inline std::vector<Convolution> WithOutputChannels(const Convolution& c,
                                                   const std::vector<int64_t>& channels) {
  std::vector<Convolution> parts(channels.size(), c);
  for (size_t i = 0; i < parts.size(); ++i) parts[i].output_channels = channels[i];
  return parts;
}

// One step for each, "a", "b", "c" and so on.
inline std::vector<Step> StepsOf(const std::vector<Convolution>& parts,
                                 const std::string& algorithm = "") {
  std::vector<Step> steps;
  for (const Convolution& part : parts) {
    steps.push_back(
        {std::string(1, static_cast<char>('a' + steps.size())), part, algorithm, nullptr});
  }
  return steps;
}

// All of them on one lane, which is to be merged.
inline Stage MergedStage(const std::vector<Convolution>& parts, const std::string& algorithm = "") {
  const std::vector<int> one_lane(parts.size(), 0);
  return WithOptions(StageOf(StepsOf(parts, algorithm), one_lane), {kMergedLane});
}

// Buffer is as for ConvolutionProblem.
template <typename Buffer = GuardedBuffer>
class MergedProblem {
 public:
  explicit MergedProblem(const std::vector<Convolution>& parts) : parts_(parts) {
    std::mt19937 random(17);
    const ReferenceTensors shared = Filled(parts[0], &random);
    operands_.push_back(Encode(shared.image));
    for (const Convolution& part : parts) {
      ReferenceTensors tensors = Filled(part, &random);
      tensors.image = shared.image;
      operands_.push_back(Encode(tensors.filter));
      operands_.push_back(Encode(tensors.bias));
      results_.emplace_back(part.result_elements() * SizeOf(part.dtype));
      RunReference(part, &tensors);
      expected_.push_back(tensors.output);
    }
  }

  StageBuffers Bind(const std::vector<void*>& lane_workspaces) {
    return {Buffers(), lane_workspaces, {}, nullptr};
  }

  std::vector<ConvolutionBuffers> Buffers() {
    std::vector<ConvolutionBuffers> buffers(parts_.size());
    for (size_t i = 0; i < parts_.size(); ++i) {
      buffers[i].inputs[0] = image();
      buffers[i].inputs[1] = operands_[1 + 2 * i].data();
      if (parts_[i].has_bias) buffers[i].inputs[2] = operands_[2 + 2 * i].data();
      buffers[i].result = results_[i].data();
    }
    return buffers;
  }

  unsigned char* image() { return operands_[0].data(); }
  size_t image_bytes() const { return parts_[0].image_elements() * SizeOf(parts_[0].dtype); }

  void ExpectCorrect(const Tolerance& tolerances) {
    for (size_t part = 0; part < parts_.size(); ++part) {
      SCOPED_TRACE("part " + std::to_string(part));
      ExpectElements(parts_[part].dtype, expected_[part], tolerances, &results_[part]);
    }
  }

 private:
  // Quarters, whose sums are exact in float and in half.
  static ReferenceTensors Filled(const Convolution& c, std::mt19937* random) {
    std::uniform_int_distribution<int> quarters(-4, 4);
    ReferenceTensors tensors = MakeReferenceTensors(c);
    for (auto* tensor : {&tensors.image, &tensors.filter, &tensors.bias}) {
      for (double& value : *tensor) value = quarters(*random) * 0.25;
    }
    return tensors;
  }

  Buffer Encode(const std::vector<double>& values) const {
    return EncodeElements<Buffer>(parts_[0].dtype, values);
  }

  const std::vector<Convolution> parts_;
  std::vector<Buffer> operands_;  // the image, then filter and bias of each part
  std::vector<Buffer> results_;
  std::vector<std::vector<double>> expected_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_MERGED_PROBLEM_H_
