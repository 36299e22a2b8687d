#include "cc_kernels/core/measure/float64_reference.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/cc/convolution_cases.h"
#include "tests/cc/reference_convolution.h"

namespace tf_interop {
namespace {

TEST(Float64ReferenceTest, AgreesWithTheReferenceOfTheTests) {
  std::vector<Convolution> cases = WithEveryKindLayoutAndType(Geometries());
  for (const Convolution& c : WithEveryEpilogue({MakeConvolution(), MakeVolume()})) {
    cases.push_back(c);
  }
  for (const Convolution& c : WithEveryKindAndLayout(VolumeGeometries(), DataType::kDouble)) {
    cases.push_back(c);
  }
  for (const Convolution& c : cases) {
    SCOPED_TRACE(ToString(c));
    ReferenceTensors tensors = MakeReferenceTensors(c);
    int next = 0;
    for (auto* tensor : {&tensors.image, &tensors.filter, &tensors.output, &tensors.bias}) {
      for (double& value : *tensor) value = (next = (next * 7 + 3) % 17) - 8;
    }
    std::vector<std::vector<double>> inputs;
    const std::vector<double>* expected = nullptr;
    switch (c.kind) {
      case ConvolutionKind::kForward:
        inputs = {tensors.image, tensors.filter, tensors.bias};
        expected = &tensors.output;
        break;
      case ConvolutionKind::kBackwardInput:
        inputs = {tensors.filter, tensors.output};
        expected = &tensors.image;
        break;
      case ConvolutionKind::kBackwardFilter:
        inputs = {tensors.image, tensors.output};
        expected = &tensors.filter;
        break;
    }
    const std::vector<double> got = ComputeInFloat64(c, inputs);
    RunReference(c, &tensors);
    ASSERT_EQ(got.size(), expected->size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], (*expected)[i], 1e-9) << i;
  }
}

}  // namespace
}  // namespace tf_interop
