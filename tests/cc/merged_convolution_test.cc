// Which lanes of the host backend are merged, why others are not, and their results.
#include "cc_kernels/core/merged_convolution.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/cc/stage_fixture.h"

namespace tf_interop {
namespace {

TEST(MergedConvolutionTest, ComputesTheResultsOfTheSingleConvolutions) {
  std::vector<Convolution> cases = WithEveryEpilogue({MakeConvolution()});
  for (const Convolution& c : Geometries()) {
    if (c.group_count == 1) cases.push_back(c);
  }
  for (const Layout layout : {Layout::kNHWC, Layout::kNCHW}) {
    cases.push_back(MakeFused(layout, DataType::kBFloat16));
  }
  for (const Convolution& c : cases) {
    const auto parts = WithOutputChannels(c, {6, 1, 9});
    Problem problem(parts, /*share_image=*/true);
    SpyBackend backend;
    const PreparedStage stage = Prepared(&backend, MergedStage(parts, "DIRECT"));
    EXPECT_TRUE(stage.fallbacks.empty());
    EXPECT_TRUE(IsOk(RunBetween(&backend, stage, &problem)));
    problem.ExpectCorrect();
    EXPECT_EQ(backend.launched, std::vector<std::string>{"DIRECT"});
    EXPECT_EQ(backend.CountCalls('c'), c.has_bias ? 9u : 6u) << "filters, biases and results";
  }
}

TEST(MergedConvolutionTest, ConvolutionsThatDoNotFitTogetherAreNotMergedAndNameTheirLane) {
  using C = Convolution;
  const auto with = [](void (*change)(C*)) {
    std::vector<Convolution> parts = WithOutputChannels(MakeConvolution(), {6, 2});
    change(&parts[1]);
    CompleteSame(&parts[1]);
    return MergedStage(parts);
  };
  const auto both = [](void (*change)(C*)) {
    Convolution c = MakeConvolution();
    change(&c);
    CompleteSame(&c);
    return MergedStage({c, c});
  };
  Stage algorithms = MergedStage(WithOutputChannels(MakeConvolution(), {6, 2}));
  algorithms.steps[1].algorithm = "DIRECT";
  const Stage pinned = MergedStage(WithOutputChannels(MakeConvolution(), {6, 2}), "BUFFERED");
  HostBackend host;
  const PreparedStage ample = Prepared(&host, pinned);
  const size_t bytes = ample.merged[0].merge.workspace_bytes();
  EXPECT_EQ(bytes, ample.lane_workspace_bytes[0]);
  EXPECT_GT(bytes, ample.merged[0].merge.joined_bytes);
  const std::string differ = "differ only in output channels";
  const std::string ungrouped = "forward convolutions without groups";
  const struct {
    Stage stage;
    std::string reason;  // why it is not merged; "" if it is
    size_t limit = kAnyWorkspace.workspace_limit_bytes;
  } cases[] = {
      {with([](C*) {}), ""},
      {with([](C* c) { c->filter_width = 1; }), differ},
      {with([](C* c) { c->stride_height = 2; }), differ},
      {with([](C* c) { c->dilation_width = 2; }), differ},
      {with([](C* c) { c->image_width = 7; }), differ},
      {with([](C* c) { c->dtype = DataType::kHalf; }), differ},
      {with([](C* c) { c->layout = Layout::kNCHW; }), differ},
      {with([](C* c) { c->has_bias = true; }), differ},
      {with([](C* c) { c->activation = Activation::kRelu; }), differ},
      {both([](C* c) { c->group_count = 2; }), ungrouped},
      {both([](C* c) { c->kind = ConvolutionKind::kBackwardInput; }), ungrouped},
      // A pitch above CUDA's limit, and too many channels.
      {both([](C* c) { c->image_height = c->image_width = 30000, c->layout = Layout::kNCHW; }),
       "bytes to merge, got"},
      {both([](C* c) { c->image_channels = 1, c->output_channels = 1 << 30; }), "output_channels"},
      {algorithms, "got '' and 'DIRECT'"},
      {MergedStage(WithOutputChannels(MakeConvolution(), {6, 2}), "FFT"), "got FFT"},
      {pinned, "", bytes},
      {pinned, "the limit is", bytes - 1},
      {pinned, "too little of the limit of 100", 100},
  };
  for (const auto& each : cases) {
    const PreparedStage prepared = Prepared(&host, each.stage, {each.limit});
    const std::string reason = prepared.unmerged.empty() ? "" : prepared.unmerged.front().message();
    EXPECT_EQ(prepared.merged.empty(), !each.reason.empty());
    EXPECT_NE(reason.find(each.reason), std::string::npos) << reason;
    EXPECT_EQ(reason.empty(), each.reason.empty()) << reason;
    EXPECT_TRUE(reason.empty() || reason.find("the lane of convolution 'a': ") == 0) << reason;
  }
}

TEST(MergedConvolutionTest, EmptyConvolutionsAreLeftOutAndAreNoFallback) {
  Convolution no_images = MakeConvolution(), no_pixels = MakeConvolution();
  no_images.batch = 0;
  no_pixels.image_height = 0;
  no_pixels.pad_top = no_pixels.pad_bottom = 2;
  CompleteFromPads(&no_pixels);
  ASSERT_GT(no_pixels.output_elements(), 0);
  const struct {
    std::vector<Convolution> parts;
    std::vector<size_t> merged;
  } cases[] = {{WithOutputChannels(MakeConvolution(), {6, 0, 3}), {0, 2}},
               {WithOutputChannels(no_images, {6, 2}), {}},
               {WithOutputChannels(no_pixels, {6, 2}), {}}};
  for (const auto& [parts, merged] : cases) {
    Problem problem(parts, /*share_image=*/true);
    SpyBackend backend;
    const PreparedStage stage = Prepared(&backend, MergedStage(parts));
    EXPECT_TRUE(stage.fallbacks.empty());
    EXPECT_EQ(stage.merged.empty(), merged.empty());
    EXPECT_TRUE(merged.empty() || stage.merged[0].steps == merged);
    EXPECT_TRUE(IsOk(RunBetween(&backend, stage, &problem)));
    problem.ExpectCorrect();
    EXPECT_EQ(backend.launched.size(), merged.empty() ? 0u : 1u);
  }
}

TEST(MergedConvolutionTest, ACopyThatFailsNamesItsLane) {
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 2});
  for (size_t failing = 0; failing < 4; ++failing) {
    Problem problem(parts, /*share_image=*/true);
    SpyBackend backend;
    backend.on_copy = [&] {
      return backend.CountCalls('c') == failing ? Internal("no copy") : Status::Ok();
    };
    const PreparedStage stage = Prepared(&backend, MergedStage(parts, "DIRECT"));
    EXPECT_EQ(RunBetween(&backend, stage, &problem).message(),
              "Convolution 'a + b' with algorithm DIRECT: no copy");
  }
}

}  // namespace
}  // namespace tf_interop
