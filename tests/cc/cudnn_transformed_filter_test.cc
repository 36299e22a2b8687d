// Filters that are transformed once for the cudnn backend, on stand-ins for libcuda and libcudnn.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/cudnn_graph.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/cudnn_backend_fixture.h"
#include "tests/cc/fake_cudnn.h"
#include "tests/cc/is_error.h"

namespace tf_interop {
namespace {

using CudnnTransformedFilterTest = CudnnBackendTest;

TEST_F(CudnnTransformedFilterTest, ReadsTransformedFilterInPlaceOfTransforming) {
  for (const Convolution& c : WithEveryKindLayoutAndType(Geometries())) {
    if (c.kind == ConvolutionKind::kBackwardFilter) continue;
    for (const char* name : {"eng1", "ALGO_1", "IMPLICIT_PRECOMP_GEMM"}) {
      std::shared_ptr<const PreparedConvolution> prepared;
      if (!backend_->Prepare(c, name, options_, &prepared).ok()) continue;
      if (prepared->transformed_filter_bytes() == 0) continue;
      EXPECT_EQ(prepared->transformed_filter_bytes(), c.filter_elements() * SizeOf(c.dtype));
      const int before = FakeCudnnCounts().copies;
      ExpectMatchesReference(c, *prepared);
      const int copies_of_launch = FakeCudnnCounts().copies - before;
      ExpectMatchesWithTransformedFilter(c, *prepared);
      EXPECT_EQ(FakeCudnnCounts().copies - before - copies_of_launch,
                1 + 2 * (copies_of_launch - 1))
          << "one transformation, and two launches without one";
    }
  }
}

TEST_F(CudnnTransformedFilterTest, ReadsTransformedFilterInEveryFormulation) {
  Convolution c = MakeAsymmetric();
  c.has_bias = true;
  for (const char* name : {"eng1", "split+eng1", "nchw+eng1", "split+nchw+eng1"}) {
    ExpectMatchesWithTransformedFilter(c, *PrepareOk(c, name));
  }
}

TEST_F(CudnnTransformedFilterTest, TransformsNoFilterThatIsReadAsItIsOrIsTheResult) {
  Convolution ordered = MakeConvolution();
  ordered.group_count = ordered.output_channels = ordered.image_channels;
  ordered.filter_height = ordered.filter_width = 1;
  CompleteSame(&ordered);
  for (const Convolution& c : {ordered, MakeConvolution(ConvolutionKind::kBackwardFilter)}) {
    const auto prepared = PrepareOk(c);
    EXPECT_EQ(prepared->transformed_filter_bytes(), 0u);
    Buffer filter(1024), transformed(1024);
    const Status status = TransformFilter(*prepared, filter.data(), transformed.data());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(prepared->algorithm()), std::string::npos) << status.message();
  }
}

TEST_F(CudnnTransformedFilterTest, RefusesFiltersThatAreNotAligned) {
  const Convolution c = MakeConvolution();
  const auto prepared = PrepareOk(c);
  Problem problem(c);
  Buffer result = problem.MakeResult();
  Buffer workspace(prepared->workspace_bytes());
  Buffer transformed(prepared->transformed_filter_bytes() + 16);
  ConvolutionBuffers buffers = problem.Buffers(&result);
  const auto transform = [&](const void* filter, void* to) {
    return TransformFilter(*prepared, filter, to).code();
  };
  EXPECT_EQ(transform(nullptr, transformed.data()), StatusCode::kInvalidArgument);
  EXPECT_EQ(transform(buffers.inputs[1], transformed.data() + 4), StatusCode::kInvalidArgument);
  buffers.transformed_filter = transformed.data() + 4;
  EXPECT_TRUE(IsError(Launch(*prepared, buffers, workspace.data()), StatusCode::kInvalidArgument,
                      {"transformed filter"}));
}

}  // namespace
}  // namespace tf_interop
