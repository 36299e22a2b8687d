// The cudnn backend on a GPU: every kind, layout, type, geometry and epilogue against the
// definition of a convolution, and stages of several lanes. Skips, and says so, where there is no
// GPU.
//
// Each algorithm that was chosen is recorded as a property of its test, for the log.
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/cudnn/cuda_driver.h"
#include "cc_kernels/core/cudnn/cudnn_backend.h"
#include "cc_kernels/core/stage_runner.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/convolution_problem.h"
#include "tests/cc/merged_problem.h"
#include "tests/cc/reference_convolution.h"

namespace tf_interop {
namespace {

constexpr size_t kAmpleWorkspace = size_t{256} << 20;

// Sums of the test's numbers are exact in TF32 and half too, but Winograd and FFT engines round.
constexpr Tolerance kTolerance = {2e-3, 5e-3};

// The entry points that the backend itself does not need.
struct TestDriver {
  decltype(&::cuDeviceGetCount) device_get_count;
  decltype(&::cuDeviceGetName) device_get_name;
  decltype(&::cuDevicePrimaryCtxRetain) primary_context_retain;
  decltype(&::cuCtxSetCurrent) context_set_current;
  decltype(&::cuStreamCreate) stream_create;
  decltype(&::cuStreamSynchronize) stream_synchronize;
  decltype(&::cuMemAllocManaged) mem_alloc_managed;
  decltype(&::cuMemFree) mem_free;
};

template <typename Function>
void Load(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  ASSERT_NE(*function, nullptr) << name;
}

TestDriver driver;

// Memory that host and device both reach, filled with bytes that read as NaN.
class Buffer {
 public:
  explicit Buffer(size_t bytes) {
    // At least one byte: CUDA refuses to allocate none.
    EXPECT_EQ(driver.mem_alloc_managed(&data_, bytes + 1, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    std::memset(data(), 0xFF, bytes + 1);
  }
  Buffer(Buffer&& other) : data_(std::exchange(other.data_, 0)) {}
  ~Buffer() {
    if (data_ != 0) driver.mem_free(data_);
  }
  unsigned char* data() const { return reinterpret_cast<unsigned char*>(data_); }
  bool IsIntact() const { return true; }  // compute-sanitizer looks for writes beyond

 private:
  CUdeviceptr data_ = 0;
};

using Problem = ConvolutionProblem<Buffer>;

class CudnnGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    const CudaDriver* cuda = nullptr;
    const Status opened = CudaDriver::Get(&cuda);
    if (!opened.ok()) GTEST_SKIP() << "no GPU: " << opened.message();
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    ASSERT_NE(library, nullptr);
    Load(library, "cuDeviceGetCount", &driver.device_get_count);
    Load(library, "cuDeviceGetName", &driver.device_get_name);
    Load(library, "cuDevicePrimaryCtxRetain", &driver.primary_context_retain);
    Load(library, "cuCtxSetCurrent", &driver.context_set_current);
    Load(library, "cuStreamCreate", &driver.stream_create);
    Load(library, "cuStreamSynchronize", &driver.stream_synchronize);
    Load(library, "cuMemAllocManaged", &driver.mem_alloc_managed);
    Load(library, "cuMemFree_v2", &driver.mem_free);
    int devices = 0;
    if (driver.device_get_count(&devices) != CUDA_SUCCESS || devices == 0) {
      GTEST_SKIP() << "no GPU: the driver lists none";
    }
    char name[256];
    ASSERT_EQ(driver.device_get_name(name, sizeof(name), 0), CUDA_SUCCESS);
    RecordProperty("device", name);
    CUcontext context = nullptr;
    ASSERT_EQ(driver.primary_context_retain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver.context_set_current(context), CUDA_SUCCESS);
    ASSERT_EQ(driver.stream_create(&caller_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    const Status status = CudnnBackend::ForStream(caller_, &backend_);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // Prepares, launches on the caller's stream, and compares every element.
  void ExpectMatchesReference(const Convolution& c, const std::string& algorithm = "") {
    SCOPED_TRACE(ToString(c) + " pinned '" + algorithm + "'");
    std::shared_ptr<const PreparedConvolution> prepared;
    const Status prepare = backend_->Prepare(c, algorithm, options_, &prepared);
    ASSERT_TRUE(prepare.ok()) << prepare.message();
    ++chosen_[prepared->algorithm().substr(0, prepared->algorithm().find("_k"))];
    Problem problem(c);
    Buffer result = problem.MakeResult();
    Buffer workspace(prepared->workspace_bytes());
    std::unique_ptr<StreamGroup> group;
    ASSERT_TRUE(backend_->Acquire(&group).ok());
    const Status launch = backend_->Launch(*prepared, problem.Buffers(&result), workspace.data(),
                                           group.get(), caller_);
    backend_->Release(std::move(group));
    ASSERT_TRUE(launch.ok()) << launch.message();
    ASSERT_EQ(driver.stream_synchronize(caller_), CUDA_SUCCESS);
    problem.ExpectCorrect(&result, kTolerance);
    // The same by name: what a plan would pin.
    if (algorithm.empty()) ExpectMatchesReference(c, prepared->algorithm());
  }

  void TearDown() override {
    for (const auto& [engine, count] : chosen_) RecordProperty(engine, count);
  }

  CUstream caller_ = nullptr;
  CudnnBackend* backend_ = nullptr;
  PrepareOptions options_ = {kAmpleWorkspace};
  std::map<std::string, int> chosen_;
};

TEST_F(CudnnGpuTest, MatchesReferenceForEveryGeometryAndWhenPinned) {
  for (const Convolution& c : WithEveryKindLayoutAndType(Geometries())) ExpectMatchesReference(c);
}

TEST_F(CudnnGpuTest, MatchesReferenceForVolumesAndWhenPinned) {
  for (const Convolution& c : WithEveryKindLayoutAndType(VolumeGeometries())) {
    ExpectMatchesReference(c);
  }
}

TEST_F(CudnnGpuTest, MatchesReferenceForDoubleAndWhenPinned) {
  for (const auto& geometries : {Geometries(), VolumeGeometries()}) {
    for (const Convolution& c : WithEveryKindAndLayout(geometries, DataType::kDouble)) {
      ExpectMatchesReference(c);
    }
  }
}

TEST_F(CudnnGpuTest, MatchesReferenceForEveryEpilogueAndWhenPinned) {
  for (const Convolution& c : WithEveryEpilogue({MakeConvolution()})) ExpectMatchesReference(c);
}

TEST_F(CudnnGpuTest, MatchesReferenceAtTheSizesOfARealModule) {
  for (const int64_t filter : {1, 3, 5}) {
    Convolution c = MakeConvolution();
    c.image_height = c.image_width = 28;
    c.image_channels = 32;
    c.output_channels = 64;
    c.filter_height = c.filter_width = filter;
    CompleteSame(&c);
    for (const Convolution& each : WithEveryKindLayoutAndType({c})) ExpectMatchesReference(each);
  }
}

// What became of the algorithms of one list.
struct Tally {
  int right = 0, wrong = 0, refused = 0;

  void Print(const std::string& title) const {
    std::cout << title << ": " << right << " right, " << wrong << " wrong, " << refused
              << " refused\n";
  }
};

// Every algorithm by its name.
class GpuAlgorithmTest : public CudnnGpuTest {
 protected:
  // Operands are quarters whose sums are exact in TF32 and half. What is left are Winograd's and
  // Fourier's transforms, which are rounded to the precision of the operands (24, 11 or 8 bits) at
  // magnitudes some ten times those of the sums, and those are below 20 here. A wrong stride,
  // padding or layout is off by the sums themselves.
  static Tolerance ToleranceOf(const PreparedConvolution& prepared) {
    return {prepared.reduces_precision() ? 5e-2 : 1e-3, 5e-2};
  }

  static std::vector<Convolution> EveryKindLayoutAndType() {
    std::vector<Convolution> all;
    for (const auto kind : {ConvolutionKind::kForward, ConvolutionKind::kBackwardInput,
                            ConvolutionKind::kBackwardFilter}) {
      for (const Layout layout : {Layout::kNHWC, Layout::kNCHW}) {
        for (const DataType dtype : {DataType::kFloat, DataType::kHalf, DataType::kBFloat16}) {
          Convolution c = MakeConvolution(kind, layout, dtype);
          c.image_height = c.image_width = 14;
          c.image_channels = 16;
          c.output_channels = 32;
          CompleteSame(&c);
          all.push_back(c);
        }
      }
    }
    return all;
  }

  std::vector<std::string> List(const Convolution& c, AlgorithmScope scope) {
    std::vector<std::string> names;
    const Status listed = backend_->ListAlgorithms(c, scope, options_.allow_tf32, &names);
    EXPECT_TRUE(listed.ok()) << ToString(c) << ": " << listed.message();
    return names;
  }

  // Prepares and runs the algorithm. A refusal is printed, a wrong number fails.
  void Try(const Convolution& c, const std::string& algorithm, Tally* tally) {
    std::shared_ptr<const PreparedConvolution> prepared;
    const Status status = backend_->Prepare(c, algorithm, options_, &prepared);
    if (!status.ok()) {
      Refuse(algorithm, status, tally);
    } else {
      Run(c, *prepared, algorithm, tally);
    }
  }

  // `transformed_filter` may be null.
  void Run(const Convolution& c, const PreparedConvolution& prepared, const std::string& algorithm,
           Tally* tally, const void* transformed_filter = nullptr) {
    SCOPED_TRACE(ToString(c) + " with '" + algorithm + "'");
    Problem problem(c);
    Buffer result = problem.MakeResult();
    Buffer workspace(prepared.workspace_bytes());
    ConvolutionBuffers buffers = problem.Buffers(&result);
    buffers.transformed_filter = transformed_filter;
    std::unique_ptr<StreamGroup> group;
    ASSERT_TRUE(backend_->Acquire(&group).ok());
    const Status launch =
        backend_->Launch(prepared, buffers, workspace.data(), group.get(), caller_);
    backend_->Release(std::move(group));
    ASSERT_EQ(driver.stream_synchronize(caller_), CUDA_SUCCESS);
    if (launch.code() == StatusCode::kUnsupported) return Refuse(algorithm, launch, tally);
    ASSERT_TRUE(launch.ok()) << launch.message();
    const int failures = Failures();
    problem.ExpectCorrect(&result, ToleranceOf(prepared));
    ++(Failures() == failures ? tally->right : tally->wrong);
  }

  static void Refuse(const std::string& algorithm, const Status& status, Tally* tally) {
    ++tally->refused;
    // Behind the text of the convolution, which the tally prints.
    const size_t reason = status.message().find("got:");
    std::cout << "  refused '" << algorithm
              << "': " << status.message().substr(reason == std::string::npos ? 0 : reason, 300)
              << "\n";
  }

  static int Failures() {
    return testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count();
  }
};

TEST_F(GpuAlgorithmTest, EveryListedAlgorithmMatchesReferenceOrIsRefused) {
  for (const bool allow_tf32 : {true, false}) {
    options_.allow_tf32 = allow_tf32;
    for (const Convolution& c : EveryKindLayoutAndType()) {
      if (!allow_tf32 && c.dtype != DataType::kFloat) continue;
      Tally tally;
      for (const std::string& name : List(c, AlgorithmScope::kAll)) Try(c, name, &tally);
      tally.Print(ToString(c) + (allow_tf32 ? "" : ", TF32 off"));
      EXPECT_GT(tally.right, 0) << ToString(c);
    }
  }
}

TEST_F(GpuAlgorithmTest, EveryListedAlgorithmOfFusedAsymmetricConvolutionMatchesReference) {
  Convolution c = EveryKindLayoutAndType().front();
  c.stride_height = c.stride_width = 2;
  c.has_bias = true;
  c.activation = Activation::kRelu;
  CompleteSame(&c);
  ASSERT_NE(c.pad_top, c.pad_bottom);
  Tally tally;
  for (const std::string& name : List(c, AlgorithmScope::kAll)) Try(c, name, &tally);
  tally.Print(ToString(c));
  EXPECT_GT(tally.right, 0);
}

TEST_F(GpuAlgorithmTest, EveryKnobOfOneConvolutionMatchesReferenceOrIsRefused) {
  Convolution c = EveryKindLayoutAndType()[1];
  ASSERT_EQ(c.dtype, DataType::kHalf);
  Tally tally;
  for (const std::string& name : List(c, AlgorithmScope::kKnobs)) Try(c, name, &tally);
  tally.Print(ToString(c) + ", every knob");
  EXPECT_GT(tally.right, 0);
}

TEST_F(GpuAlgorithmTest, ReadsFilterThatWasTransformedOnce) {
  for (const Convolution& c : EveryKindLayoutAndType()) {
    std::shared_ptr<const PreparedConvolution> prepared;
    const Status status = backend_->Prepare(c, "", options_, &prepared);
    ASSERT_TRUE(status.ok()) << status.message();
    if (prepared->transformed_filter_bytes() == 0) {
      EXPECT_EQ(c.kind, ConvolutionKind::kBackwardFilter);
      continue;
    }
    Problem problem(c);  // with the filter that Run has too
    Buffer result = problem.MakeResult();
    Buffer transformed(prepared->transformed_filter_bytes());
    const void* filter =
        problem.Buffers(&result).inputs[c.kind == ConvolutionKind::kForward ? 1 : 0];
    std::unique_ptr<StreamGroup> group;
    ASSERT_TRUE(backend_->Acquire(&group).ok());
    const Status transform =
        backend_->TransformFilter(*prepared, filter, transformed.data(), group.get(), caller_);
    backend_->Release(std::move(group));
    ASSERT_TRUE(transform.ok()) << transform.message();
    Tally tally;
    Run(c, *prepared, prepared->algorithm(), &tally, transformed.data());
    EXPECT_EQ(tally.right, 1);
  }
}

// A stage of four lanes of two steps, all on one image.
class GpuStageTest : public CudnnGpuTest {
 protected:
  static constexpr int kLanes = 4, kStepsPerLane = 2, kRounds = 25;

  void SetUp() override {
    CudnnGpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    c_ = MakeConvolution();
    c_.image_height = c_.image_width = 56;
    c_.image_channels = c_.output_channels = 64;
    CompleteSame(&c_);
    const std::vector<Step> steps = StepsOf(std::vector<Convolution>(kLanes * kStepsPerLane, c_));
    std::vector<int> lanes;
    for (size_t i = 0; i < steps.size(); ++i) lanes.push_back(static_cast<int>(i) / kStepsPerLane);
    stage_ = Prepared(backend_, StageOf(steps, lanes), options_);
    for (const size_t bytes : stage_.lane_workspace_bytes) {
      workspaces_.emplace_back(bytes);
      buffers_.lane_workspaces.push_back(workspaces_.back().data());
    }
    image_ = std::make_unique<Buffer>(image_bytes());
    filter_ = std::make_unique<Buffer>(c_.filter_elements() * sizeof(float));
    std::fill_n(reinterpret_cast<float*>(filter_->data()), c_.filter_elements(), 1.0f);
    for (size_t i = 0; i < steps.size(); ++i) {
      results_.emplace_back(c_.output_elements() * sizeof(float));
      buffers_.steps.push_back(
          {{image_->data(), filter_->data(), nullptr}, results_.back().data()});
    }
  }

  size_t image_bytes() const { return c_.image_elements() * sizeof(float); }

  void Run() {
    const Status run = RunStage(backend_, stage_, buffers_, caller_);
    ASSERT_TRUE(run.ok()) << run.message();
  }

  // Waits, compares every element of every result, and fills the results with NaN again.
  void ExpectAll(const std::vector<double>& expected) {
    ASSERT_EQ(driver.stream_synchronize(caller_), CUDA_SUCCESS);
    for (const Buffer& result : results_) {
      const auto* values = reinterpret_cast<const float*>(result.data());
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(values[i], expected[i], kTolerance.of_float * std::max(1.0, expected[i]));
      }
      std::memset(result.data(), 0xFF, expected.size() * sizeof(float));
    }
  }

  Convolution c_;
  PreparedStage stage_;
  std::vector<Buffer> workspaces_, results_;
  StageBuffers buffers_;
  std::unique_ptr<Buffer> image_, filter_;
};

TEST_F(GpuStageTest, LanesReadWhatTheCallerWroteBefore) {
  const std::vector<double> zeros(c_.output_elements(), 0.0);
  for (int round = 0; round < kRounds; ++round) {
    std::memset(image_->data(), 0xFF, image_bytes());  // NaN, until the caller's stream has run
    ASSERT_TRUE(backend_->FillZero(image_->data(), image_bytes(), caller_).ok());
    Run();
    ExpectAll(zeros);
    if (HasFatalFailure()) return;
  }
}

TEST_F(GpuStageTest, LanesAreJoinedBeforeTheCallerReusesTheirInputs) {
  ReferenceTensors reference = MakeReferenceTensors(c_);
  std::fill(reference.image.begin(), reference.image.end(), 1.0);
  std::fill(reference.filter.begin(), reference.filter.end(), 1.0);
  RunReference(c_, &reference);
  for (int round = 0; round < kRounds; ++round) {
    std::fill_n(reinterpret_cast<float*>(image_->data()), c_.image_elements(), 1.0f);
    Run();
    ASSERT_TRUE(backend_->FillZero(image_->data(), image_bytes(), caller_).ok());
    ExpectAll(reference.output);
    if (HasFatalFailure()) return;
  }
}

// Rows of all widths at distances that no allocator of pitched memory would give.
TEST_F(CudnnGpuTest, CopiesRowsAtAnyDistance) {
  for (const size_t row_bytes : {2, 6, 30, 256, 1030}) {
    const size_t rows = 1000, gap = 14, pitch = row_bytes + gap;
    Buffer source(rows * row_bytes), destination(rows * pitch), back(rows * row_bytes);
    for (size_t i = 0; i < rows * row_bytes; ++i) source.data()[i] = i % 251;
    ASSERT_TRUE(backend_
                    ->CopyRows(source.data(), row_bytes, destination.data() + 4, pitch, row_bytes,
                               rows - 1, caller_)
                    .ok());
    ASSERT_TRUE(backend_
                    ->CopyRows(destination.data() + 4, pitch, back.data(), row_bytes, row_bytes,
                               rows - 1, caller_)
                    .ok());
    ASSERT_EQ(driver.stream_synchronize(caller_), CUDA_SUCCESS);
    EXPECT_EQ(std::memcmp(back.data(), source.data(), (rows - 1) * row_bytes), 0) << row_bytes;
    EXPECT_EQ(destination.data()[0], 0xFF);
    EXPECT_EQ(destination.data()[4 + row_bytes], 0xFF) << "written between the rows";
  }
}

TEST_F(CudnnGpuTest, AMergedLaneBesideAnotherMatchesReference) {
  for (const Layout layout : {Layout::kNHWC, Layout::kNCHW}) {
    for (const DataType dtype : {DataType::kFloat, DataType::kHalf, DataType::kBFloat16}) {
      const Convolution c = MakeFused(layout, dtype);
      SCOPED_TRACE(ToString(c));
      const auto parts = WithOutputChannels(c, {6, 2, 8, 4});
      const PreparedStage stage = Prepared(
          backend_, WithOptions(StageOf(StepsOf(parts), {0, 0, 0, 1}), {kMergedLane}), options_);
      EXPECT_TRUE(stage.fallbacks.empty()) << stage.fallbacks.front();
      MergedProblem<Buffer> problem(parts);
      const Buffer first(stage.lane_workspace_bytes[0]), second(stage.lane_workspace_bytes[1]);
      const Status run =
          RunStage(backend_, stage, problem.Bind({first.data(), second.data()}), caller_);
      ASSERT_TRUE(run.ok()) << run.message();
      ASSERT_EQ(driver.stream_synchronize(caller_), CUDA_SUCCESS);
      problem.ExpectCorrect(kTolerance);
    }
  }
}

}  // namespace
}  // namespace tf_interop
