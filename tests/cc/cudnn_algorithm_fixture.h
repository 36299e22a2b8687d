// What the tests of the cudnn backend's algorithms share.
#ifndef TF_INTEROP_TESTS_CC_CUDNN_ALGORITHM_FIXTURE_H_
#define TF_INTEROP_TESTS_CC_CUDNN_ALGORITHM_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/cc/convolution_cases.h"
#include "tests/cc/cudnn_backend_fixture.h"
#include "tests/cc/fake_cuda.h"

namespace tf_interop {

using Names = std::vector<std::string>;

inline constexpr ConvolutionKind kKinds[] = {
    ConvolutionKind::kForward, ConvolutionKind::kBackwardInput, ConvolutionKind::kBackwardFilter};

inline bool Holds(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

inline Names WithPrefix(const Names& names, const std::string& prefix) {
  Names found;
  for (const std::string& name : names) {
    if (name.rfind(prefix, 0) == 0) found.push_back(name);
  }
  return found;
}

inline Convolution MakeNchw(ConvolutionKind kind = ConvolutionKind::kForward) {
  return MakeConvolution(kind, Layout::kNCHW);
}

inline std::vector<Convolution> WithEveryKindLayoutAndBFloat16(
    std::vector<Convolution> geometries) {
  std::vector<Convolution> all;
  for (Convolution c : WithEveryKindLayoutAndType(geometries)) {
    if (c.dtype != DataType::kHalf) continue;
    c.dtype = DataType::kBFloat16;
    all.push_back(c);
  }
  return all;
}

class CudnnAlgorithmTest : public CudnnBackendTest {
 protected:
  Names List(const Convolution& c, AlgorithmScope scope) {
    Names names;
    const Status status = backend_->ListAlgorithms(c, scope, options_.allow_tf32, &names);
    EXPECT_TRUE(status.ok()) << status.message();
    return names;
  }

  Status ListError(const Convolution& c, AlgorithmScope scope) {
    Names names;
    const Status status = backend_->ListAlgorithms(c, scope, options_.allow_tf32, &names);
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(names.empty());
    return status;
  }

  // Transforms the filter, spoils the original, and launches with the transformed one.
  void ExpectMatchesWithTransformedFilter(const Convolution& c,
                                          const PreparedConvolution& prepared) {
    SCOPED_TRACE(ToString(c) + " " + prepared.algorithm());
    Problem problem(c);
    Buffer result = problem.MakeResult();
    Buffer workspace(prepared.workspace_bytes());
    Buffer transformed(prepared.transformed_filter_bytes());
    ConvolutionBuffers buffers = problem.Buffers(&result);
    const void*& filter = buffers.inputs[c.kind == ConvolutionKind::kForward ? 1 : 0];
    const Status transform = TransformFilter(prepared, filter, transformed.data());
    ASSERT_TRUE(transform.ok()) << transform.message();
    FakeCudaSynchronize(caller_);
    EXPECT_TRUE(transformed.IsIntact()) << "written beyond the transformed filter";
    filter = nullptr;
    buffers.transformed_filter = transformed.data();
    for (int launch = 0; launch < 2; ++launch) {
      std::memset(result.data(), 0xFF, c.result_elements() * SizeOf(c.dtype));
      const Status launched = Launch(prepared, buffers, workspace.data());
      ASSERT_TRUE(launched.ok()) << launched.message();
      FakeCudaSynchronize(caller_);
      problem.ExpectCorrect(&result, kTolerance);
    }
    EXPECT_TRUE(workspace.IsIntact()) << "written beyond the workspace";
  }
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_CUDNN_ALGORITHM_FIXTURE_H_
