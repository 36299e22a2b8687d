// Every kind, layout, type, rank, epilogue and group count of TensorFlow's ops, on the real cuDNN
// with the properties of three GPUs (fake_cudnn.h): each convolution has a plan, unless it is known
// to have none. Nothing is executed.
//
// Tests use two geometries, and two more with the epilogues that they have once a batch
// normalization was folded into the filter. With TF_INTEROP_SWEEP_OUT, the path of a file, they use
// all geometries and append a line to the file for each convolution and algorithm.
// scripts/sweep_cudnn.sh makes docs/results/cudnn_sweep.json from them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "tests/cc/cudnn_fixture.h"

namespace tf_interop {
namespace {

bool IsWhole() { return std::getenv("TF_INTEROP_SWEEP_OUT") != nullptr; }

// Appends a line to the sweep's file, with a tab between values.
void Write(const std::vector<std::string>& values) {
  std::ofstream out(std::getenv("TF_INTEROP_SWEEP_OUT"), std::ios::app);
  for (const std::string& value : values) out << value << (&value == &values.back() ? "\n" : "\t");
}

std::string EpilogueOf(const Convolution& c) {
  if (!c.has_bias) return "none";
  return c.activation == Activation::kNone ? "bias"
                                           : std::string("bias, ") + ToString(c.activation);
}

Formulation FormulationOf(const std::string& algorithm) {
  return Parsed(algorithm).formulation.value_or(Formulation());
}

struct Geometry {
  int64_t size, channels, filters, taps, stride, groups, dilation;
  bool is_row = false;
};

constexpr Geometry kGeometries[] = {{56, 64, 128, 3, 2, 1, 1},  // unequal paddings
                                    {28, 96, 96, 3, 1, 96, 1},  // depthwise
                                    {28, 96, 128, 3, 1, 1, 1},        {14, 480, 192, 1, 1, 1, 1},
                                    {17, 128, 128, 7, 1, 1, 1, true}, {17, 13, 17, 3, 1, 1, 1},
                                    {14, 16, 48, 5, 1, 1, 1},         {224, 3, 64, 7, 2, 1, 1},
                                    {28, 32, 32, 3, 1, 1, 2},         {28, 64, 128, 3, 1, 4, 1},
                                    {28, 32, 64, 3, 2, 32, 1},        {32, 1, 1, 3, 1, 1, 1}};
// Tests use every convolution of the first ones, and the fused ones of the next, but for doubles.
constexpr size_t kTested = 2, kTestedFused = 4;

Convolution MakeOf(const Geometry& geometry, int spatial_rank) {
  Convolution c;
  c.spatial_rank = spatial_rank;
  c.batch = 4;
  c.image_height = c.image_width = geometry.size;
  c.image_channels = geometry.channels;
  c.output_channels = geometry.filters;
  c.filter_width = geometry.taps;
  c.filter_height = geometry.is_row ? 1 : geometry.taps;
  c.stride_height = c.stride_width = geometry.stride;
  c.dilation_height = c.dilation_width = geometry.dilation;
  c.group_count = geometry.groups;
  if (spatial_rank == 3) {
    c.image_depth = 8;
    c.filter_depth = std::min<int64_t>(geometry.taps, 3);
    c.stride_depth = geometry.stride;
  }
  CompleteSame(&c);
  return c;
}

// TensorFlow fuses an activation only after a bias.
std::vector<Convolution> SweepCases() {
  std::vector<Convolution> cases;
  const auto add_fused = [&cases](Convolution c, const std::vector<Activation>& activations) {
    if (c.kind != ConvolutionKind::kForward) return;
    c.has_bias = true;
    for (const Activation activation : activations) {
      c.activation = activation;
      cases.push_back(c);
    }
  };
  const std::vector<Activation> activations = {Activation::kNone, Activation::kRelu,
                                               Activation::kRelu6, Activation::kLeakyRelu,
                                               Activation::kElu};
  const std::vector<DataType> dtypes = {DataType::kFloat, DataType::kHalf, DataType::kBFloat16,
                                        DataType::kDouble};
  for (size_t i = 0; i < (IsWhole() ? std::size(kGeometries) : kTested); ++i) {
    const Geometry& geometry = kGeometries[i];
    for (const Convolution& c : WithEveryKindAndLayout({MakeOf(geometry, 2)}, dtypes)) {
      cases.push_back(c);
      add_fused(c, activations);
    }
    if (geometry.size > 60) continue;  // its volumes are too large
    for (const Convolution& c : WithEveryKindAndLayout({MakeOf(geometry, 3)}, dtypes)) {
      cases.push_back(c);
      add_fused(c, {Activation::kNone, Activation::kRelu});
    }
  }
  if (IsWhole()) return cases;
  for (size_t i = kTested; i < kTestedFused; ++i) {
    for (const Convolution& c :
         WithEveryKindAndLayout({MakeOf(kGeometries[i], 2)},
                                {DataType::kFloat, DataType::kHalf, DataType::kBFloat16})) {
      add_fused(c, activations);
    }
  }
  return cases;
}

// The reason why cuDNN has no engine, or "". Stock TensorFlow does not need these either: on a GPU
// it fuses no LeakyRelu with doubles, and converts bfloat16 to float on GPUs without bfloat16
// arithmetic. Neither gets into a stage without a measurement (tf_interop/planning/always.py), nor
// does a LeakyRelu in NCHW, which only a split epilogue has and which TensorFlow's own kernel then
// computes.
std::string KnownToHaveNone(const Convolution& c, const std::string& device) {
  if (c.dtype == DataType::kBFloat16 && device == "t4") return "bfloat16";
  if (c.activation != Activation::kLeakyRelu) return "";
  if (c.dtype == DataType::kDouble) return "double with LeakyRelu";
  return c.layout == Layout::kNCHW ? "NCHW with LeakyRelu" : "";
}

class CudnnSweepTest : public CudnnTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    CudnnTest::SetUp();
    FakeCudnn().device = GetParam();
    options_.workspace_limit_bytes = size_t{8} << 30;
  }

  // Writes cuDNN's choice. Counts proposals only without an epilogue, whose list would compile it.
  void WriteConvolution(const Convolution& c, const Status& status,
                        const PreparedConvolution* chosen) {
    Names proposals;
    if (!c.has_bias && status.ok()) proposals = List(c, AlgorithmScope::kHeuristic);
    const bool is_tf32 = c.dtype == DataType::kFloat && options_.allow_tf32;
    const std::string known = KnownToHaveNone(c, GetParam());
    Write({"convolution", GetParam(), ToString(c.dtype) + std::string(is_tf32 ? ", TF32" : ""),
           std::to_string(c.spatial_rank), EpilogueOf(c),
           status.ok() ? ToString(FormulationOf(chosen->algorithm())) : "",
           std::to_string(proposals.size()),
           std::to_string(status.ok() ? chosen->workspace_bytes() : 0),
           known.empty() ? status.message() : known});
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, CudnnSweepTest, testing::Values("h200", "a100", "t4"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CudnnSweepTest, EveryConvolutionHasAPlanUnlessKnownToHaveNone) {
  for (const Convolution& c : SweepCases()) {
    for (const bool allow_tf32 : {true, false}) {
      if (!allow_tf32 && c.dtype != DataType::kFloat) continue;
      options_.allow_tf32 = allow_tf32;
      std::shared_ptr<const PreparedConvolution> chosen, again;
      const Status status = backend_->Prepare(c, "", options_, &chosen);
      if (IsWhole()) WriteConvolution(c, status, chosen.get());
      if (!KnownToHaveNone(c, GetParam()).empty()) {
        EXPECT_EQ(status.code(), StatusCode::kUnsupported) << ToString(c);
        continue;
      }
      EXPECT_TRUE(IsOk(status)) << ToString(c);
      if (!status.ok()) continue;
      const std::string algorithm = chosen->algorithm();
      ASSERT_TRUE(IsOk(backend_->Prepare(c, algorithm, options_, &again))) << ToString(c);
      EXPECT_EQ(again->algorithm(), algorithm) << ToString(c);
    }
  }
}

struct Telling {
  const char* name;
  Convolution convolution;
};

// In batches of 32, NHWC and float unless the name says otherwise.
std::vector<Telling> TellingConvolutions() {
  const auto make = [](const Geometry& geometry, bool is_valid = false) {
    Convolution c = MakeOf(geometry, 2);
    c.batch = 32;
    if (!is_valid) return c;
    c.pad_top = c.pad_bottom = c.pad_left = c.pad_right = 0;
    CompleteFromPads(&c);
    return c;
  };
  const Convolution five = make({35, 48, 64, 5, 1, 1, 1});
  Convolution five_nchw = five, five_half = five;
  five_nchw.layout = Layout::kNCHW;
  five_half.dtype = DataType::kHalf;
  const Convolution three = make({14, 256, 256, 3, 1, 1, 1});
  Convolution fused = three;
  fused.has_bias = true;
  fused.activation = Activation::kRelu;
  return {{"InceptionV3 5x5", five},
          {"InceptionV3 5x5, NCHW", five_nchw},
          {"InceptionV3 5x5, half", five_half},
          {"InceptionV3 3x3, stride 2", make({35, 288, 384, 3, 2, 1, 1}, /*is_valid=*/true)},
          {"ResNet50 1x1", make({14, 1024, 256, 1, 1, 1, 1})},
          {"ResNet50 3x3", three},
          {"ResNet50 3x3, bias, Relu", fused},
          {"MobileNet 3x3, depthwise", make({14, 512, 512, 3, 1, 512, 1})}};
}

// Without the formulations that change the graph, and without the names of the legacy API, whose
// workspaces the stand-in invents.
TEST_P(CudnnSweepTest, TellingConvolutionsHaveEngines) {
  if (!IsWhole()) GTEST_SKIP() << "scripts/sweep_cudnn.sh runs it";
  options_.workspace_limit_bytes = std::numeric_limits<size_t>::max();
  for (const auto& [name, c] : TellingConvolutions()) {
    const size_t proposals = List(c, AlgorithmScope::kHeuristic).size();
    const Names names = List(c, AlgorithmScope::kAll);
    int with_plan = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      const Algorithm algorithm = Parsed(names[i]);
      if (algorithm.formulation || std::holds_alternative<LegacyTag>(algorithm.tag)) continue;
      std::shared_ptr<const PreparedConvolution> prepared;
      const Status status = backend_->Prepare(c, names[i], options_, &prepared);
      with_plan += status.ok();
      Write({"algorithm", GetParam(), name, ToString(c), i < proposals ? "proposed" : "listed",
             names[i], status.ok() ? std::to_string(prepared->workspace_bytes()) : "",
             status.message()});
    }
    EXPECT_GT(with_plan, 0) << name;
  }
}

}  // namespace
}  // namespace tf_interop
