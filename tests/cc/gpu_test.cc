// The cudnn backend and measuring on a GPU: every kind, layout, type, geometry, epilogue and
// algorithm against the definition of a convolution, stages with priorities and CUDA
// graphs, and the kernels that CUPTI traces. Skips without a GPU.
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/measure/timing.h"
#include "tests/cc/stage_fixture.h"

namespace tf_interop {
namespace {

// Sums are exact even in TF32 and half, but Winograd and FFT engines round.
constexpr Tolerance kTolerance = {2e-3, 5e-3};

decltype(&::cuMemAllocManaged) alloc_managed = nullptr;
decltype(&::cuMemFree) free_managed = nullptr;

// Memory that host and device share, filled with bytes that read as NaN.
class Buffer {
 public:
  explicit Buffer(size_t bytes) {
    // CUDA refuses to allocate zero bytes.
    EXPECT_EQ(alloc_managed(&data_, bytes + 1, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    std::memset(data(), 0xFF, bytes + 1);
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() { free_managed(data_); }
  unsigned char* data() const { return reinterpret_cast<unsigned char*>(data_); }
  bool IsIntact() const { return true; }  // compute-sanitizer finds writes beyond it

 private:
  CUdeviceptr data_ = 0;
};

using GpuProblem = ProblemIn<Buffer>;

// The device is opened once: its stream lives until the process ends.
Status FindDevice(MeasuringDevice** device) {
  struct Found {
    std::unique_ptr<MeasuringDevice> device;
    Status status = OpenCudaDevice(&device);
  };
  static const Found* const found = new Found();
  *device = found->device.get();
  return found->status;
}

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    const Status status = FindDevice(&device_);
    if (status.code() == StatusCode::kUnavailable) GTEST_SKIP() << "no GPU: " << status.message();
    ASSERT_TRUE(IsOk(status));
    const CudaDriver* driver = nullptr;
    ASSERT_TRUE(IsOk(CudaDriver::Get(&driver)));
    caller_ = device_->stream();
    backend_ = device_->backend();
    CUcontext context = nullptr;
    ASSERT_EQ(driver->cuStreamGetCtx(static_cast<CUstream>(caller_), &context), CUDA_SUCCESS);
    scope_ = std::make_unique<ScopedContext>(*driver, context);
    ASSERT_TRUE(IsOk(scope_->status()));
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    ASSERT_NE(library, nullptr);
    alloc_managed = reinterpret_cast<decltype(alloc_managed)>(dlsym(library, "cuMemAllocManaged"));
    ASSERT_NE(alloc_managed, nullptr);
    free_managed = driver->cuMemFree;
  }

  void TearDown() override { scope_.reset(); }

  // Launches on the caller's stream and waits for it.
  Status Launch(const PreparedConvolution& prepared, GpuProblem* problem, bool transforms = false) {
    Status status = LaunchOn(caller_, backend_, prepared, problem, transforms);
    status.Update(device_->Synchronize());
    return status;
  }

  // Launches the backend's own choice, then pins it by name as a plan would.
  void ExpectMatches(const Convolution& c) {
    std::string algorithm;
    // Not offered: cuDNN would add the bias to the first image only.
    const bool is_leaky = c.layout == Layout::kNCHW && c.activation == Activation::kLeakyRelu;
    if (!CheckPadding(c).ok() || is_leaky) {
      std::shared_ptr<const PreparedConvolution> none;
      EXPECT_EQ(backend_->Prepare(c, "", options_, &none).code(), StatusCode::kUnsupported);
      return;
    }
    for (int pinned = 0; pinned < 2; ++pinned) {
      SCOPED_TRACE(ToString(c) + " pinned '" + algorithm + "'");
      std::shared_ptr<const PreparedConvolution> prepared;
      ASSERT_TRUE(IsOk(backend_->Prepare(c, algorithm, options_, &prepared)));
      algorithm = prepared->algorithm();
      GpuProblem problem(c);
      ASSERT_TRUE(IsOk(Launch(*prepared, &problem)));
      problem.ExpectCorrect(kTolerance);
    }
  }

  // Runs a stage whose lanes share an image: once with zeros that the caller's stream writes just
  // before, once with an image that it overwrites just after.
  void ExpectForkAndJoin(const Stage& planned) {
    const PreparedStage stage = Prepared(backend_, planned, options_);
    GpuProblem problem(planned, /*share_image=*/true);
    const StageBuffers buffers = problem.Bind(stage.lane_workspace_bytes);
    void* const image = const_cast<void*>(buffers.steps[0].inputs[0]);
    const auto fill_zero = [&] {
      return backend_->FillZero(image, problem.image_bytes(), caller_);
    };
    for (int round = 0; round < 25; ++round) {
      problem.SpoilResults();
      problem.HideImage();
      ASSERT_TRUE(IsOk(fill_zero()));
      ASSERT_TRUE(IsOk(RunStage(backend_, stage, buffers, caller_)));
      ASSERT_TRUE(IsOk(device_->Synchronize()));
      for (size_t i = 0; i < planned.steps.size(); ++i) {
        const std::vector<double> result = problem.ResultOf(i);
        ASSERT_EQ(result, std::vector<double>(result.size(), 0.0));
      }
      problem.SpoilResults();
      problem.ShowImage();
      ASSERT_TRUE(IsOk(RunStage(backend_, stage, buffers, caller_)));
      ASSERT_TRUE(IsOk(fill_zero()));
      ASSERT_TRUE(IsOk(device_->Synchronize()));
      ASSERT_EQ(problem.CountWrong(kTolerance), 0);
    }
  }

  MeasuringDevice* device_ = nullptr;
  Backend* backend_ = nullptr;
  Stream caller_ = nullptr;
  PrepareOptions options_ = {size_t{256} << 20};
  std::unique_ptr<ScopedContext> scope_;
};

Convolution OfSize(int64_t pixels, int64_t image_channels, int64_t output_channels,
                   int64_t filter = 3) {
  Convolution c = MakeConvolution();
  c.image_height = c.image_width = pixels;
  c.image_channels = image_channels;
  c.output_channels = output_channels;
  c.filter_height = c.filter_width = filter;
  CompleteSame(&c);
  return c;
}

TEST_F(GpuTest, MatchesReferenceForEveryGeometryAndWhenPinned) {
  const std::vector<DataType> dtypes = {DataType::kFloat, DataType::kHalf, DataType::kDouble};
  for (const auto& geometries :
       {Geometries(), VolumeGeometries(), {OfSize(28, 32, 64), OfSize(28, 32, 64, 5)}}) {
    for (const Convolution& c : WithEveryKindAndLayout(geometries, dtypes)) ExpectMatches(c);
  }
}

TEST_F(GpuTest, MatchesReferenceForEveryEpilogueAndWhenPinned) {
  for (const Convolution& c : EveryEpilogue()) {
    if (c.dtype != DataType::kDouble) ExpectMatches(c);
  }
}

std::vector<Convolution> EveryKindLayoutAndType(const std::vector<DataType>& dtypes) {
  return WithEveryKindAndLayout({OfSize(14, 16, 32)}, dtypes);
}

// cuDNN 9.19 computes wrong numbers in half with these settings of an engine, as seen on an H200. A
// profile marks an algorithm that does.
bool IsKnownToBeWrong(const std::string& algorithm) {
  return algorithm == "nchw+eng71_k24=27" || algorithm == "nchw+eng71_k24=30";
}

class GpuAlgorithmTest : public GpuTest {
 protected:
  // Runs every listed algorithm from number `first` on that is not refused. A failure ends the
  // test, because it may have spoiled the context.
  void TryAll(const Convolution& c, AlgorithmScope scope, size_t first = 0) {
    std::vector<std::string> names;
    EXPECT_TRUE(IsOk(backend_->ListAlgorithms(c, scope, options_.allow_tf32, &names)));
    size_t right = first;
    for (size_t i = first; i < names.size(); ++i) {
      const std::string& name = names[i];
      if (IsKnownToBeWrong(name)) continue;
      SCOPED_TRACE(ToString(c) + " with '" + name + "'");
      std::printf("algorithm %zu\n", i);
      std::fflush(stdout);  // the algorithm may end the process
      std::shared_ptr<const PreparedConvolution> prepared;
      GpuProblem problem(c);
      Status status = backend_->Prepare(c, name, options_, &prepared);
      if (status.ok()) status = Launch(*prepared, &problem);
      if (!status.ok()) {
        ASSERT_EQ(status.code(), StatusCode::kUnsupported) << status.message();
        continue;
      }
      // Operands are quarters, whose sums are exact in TF32 and half. Only Winograd and Fourier
      // transforms are rounded, to the precision of the operands (24, 11 or 8 bits), at some ten
      // times the magnitude of the sums, which are below 20. A wrong stride, padding or layout
      // causes errors as large as the sums themselves.
      problem.ExpectCorrect({prepared->reduces_precision() ? 5e-2 : 1e-3, 5e-2});
      ++right;
    }
    EXPECT_GT(right, 0u);
  }
};

// Each convolution is a test, so that each can have its own process, and a new one after an
// algorithm that fails: TF_INTEROP_FIRST_ALGORITHM is the number of the first algorithm to try.
class GpuListedAlgorithmsTest : public GpuAlgorithmTest,
                                public testing::WithParamInterface<std::pair<Convolution, bool>> {};

TEST_P(GpuListedAlgorithmsTest, MatchReferenceOrAreRefused) {
  const auto& [convolution, allow_tf32] = GetParam();
  options_.allow_tf32 = allow_tf32;
  const char* const first = std::getenv("TF_INTEROP_FIRST_ALGORITHM");
  TryAll(convolution, AlgorithmScope::kAll, first == nullptr ? 0 : std::stoul(first));
}

INSTANTIATE_TEST_SUITE_P(All, GpuListedAlgorithmsTest, testing::ValuesIn([] {
                           std::vector<std::pair<Convolution, bool>> all;
                           for (const bool allow_tf32 : {true, false}) {
                             std::vector<DataType> dtypes = {DataType::kFloat};
                             if (allow_tf32) {
                               dtypes.insert(dtypes.end(), {DataType::kHalf, DataType::kBFloat16});
                             }
                             for (const Convolution& c : EveryKindLayoutAndType(dtypes)) {
                               all.emplace_back(c, allow_tf32);
                             }
                           }
                           return all;
                         }()));

TEST_F(GpuAlgorithmTest, EveryAlgorithmOfAFusedAsymmetricOneAndEveryKnobMatchesOrIsRefused) {
  Convolution fused = OfSize(14, 16, 32);
  fused.has_bias = true;
  fused.activation = Activation::kRelu;
  fused.stride_height = fused.stride_width = 2;
  CompleteSame(&fused);
  ASSERT_NE(fused.pad_top, fused.pad_bottom);
  TryAll(fused, AlgorithmScope::kAll);
  Convolution half = OfSize(14, 16, 32);
  half.dtype = DataType::kHalf;
  TryAll(half, AlgorithmScope::kKnobs);
}

TEST_F(GpuTest, ReadsFilterThatWasTransformedOnce) {
  for (const Convolution& c : EveryKindLayoutAndType(
           {DataType::kFloat, DataType::kHalf, DataType::kBFloat16, DataType::kDouble})) {
    std::shared_ptr<const PreparedConvolution> prepared;
    ASSERT_TRUE(IsOk(backend_->Prepare(c, "", options_, &prepared)));
    if (prepared->transformed_filter_bytes() == 0) {
      EXPECT_EQ(c.kind, ConvolutionKind::kBackwardFilter);
      continue;
    }
    GpuProblem problem(c);
    ASSERT_TRUE(IsOk(Launch(*prepared, &problem, /*transforms=*/true)));
    problem.ExpectCorrect({5e-2, 5e-2});
  }
}

// No pitched allocator would choose these distances.
TEST_F(GpuTest, CopiesRowsAtAnyDistance) {
  for (const size_t row_bytes : {2, 6, 30, 256, 1030}) {
    const size_t rows = 1000, pitch = row_bytes + 14;
    Buffer source(rows * row_bytes), there(rows * pitch), back(rows * row_bytes);
    for (size_t i = 0; i < rows * row_bytes; ++i) source.data()[i] = i % 251;
    ASSERT_TRUE(IsOk(backend_->CopyRows(source.data(), row_bytes, there.data() + 4, pitch,
                                        row_bytes, rows - 1, caller_)));
    ASSERT_TRUE(IsOk(backend_->CopyRows(there.data() + 4, pitch, back.data(), row_bytes, row_bytes,
                                        rows - 1, caller_)));
    ASSERT_TRUE(IsOk(device_->Synchronize()));
    EXPECT_EQ(std::memcmp(back.data(), source.data(), (rows - 1) * row_bytes), 0) << row_bytes;
    EXPECT_EQ(there.data()[0], 0xFF);
    EXPECT_EQ(there.data()[4 + row_bytes], 0xFF) << "written between the rows";
  }
}

TEST_F(GpuTest, StagesAreForkedAndJoined) {
  const Convolution c = OfSize(56, 64, 64);
  ExpectForkAndJoin(StageOf(StepsOf(std::vector<Convolution>(8, c)), {0, 0, 1, 1, 2, 2, 3, 3}));
}

TEST_F(GpuTest, AMergedLaneBesideAnotherIsForkedAndJoined) {
  for (const Layout layout : {Layout::kNHWC, Layout::kNCHW}) {
    for (const DataType dtype : {DataType::kFloat, DataType::kHalf, DataType::kBFloat16}) {
      const auto parts = WithOutputChannels(
          MakeConvolution(ConvolutionKind::kForward, layout, dtype), {6, 2, 8, 4});
      const Stage planned = WithOptions(StageOf(StepsOf(parts), {0, 0, 0, 1}), {kMergedLane});
      EXPECT_TRUE(Prepared(backend_, planned, options_).fallbacks.empty());
      ExpectForkAndJoin(planned);
    }
  }
}

TEST_F(GpuTest, StagesAreReplayedAsCudaGraphs) {
  const Convolution c = OfSize(56, 64, 64);
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 2, 8, 4});
  const Counters before = ReadCounters();
  ExpectForkAndJoin(StageOf(StepsOf(std::vector<Convolution>(8, c)), {0, 0, 1, 1, 2, 2, 3, 3}));
  ExpectForkAndJoin(WithOptions(StageOfLanes(3, c), {{-5}, {-1}, {0}}));
  ExpectForkAndJoin(WithOptions(StageOf(StepsOf(parts), {0, 0, 0, 1}), {kMergedLane}));
  const Counters after = ReadCounters();
  EXPECT_EQ(after.fallbacks, before.fallbacks) << "a capture failed";
  EXPECT_EQ(after.stages_captured - before.stages_captured, 3);
  EXPECT_GT(after.stages_replayed, before.stages_replayed);
}

TEST_F(GpuTest, DescribesTheGpuAndTracesTheKernelsOfOneRun) {
  DeviceDescription described;
  ASSERT_TRUE(IsOk(device_->Describe(&described)));
  EXPECT_NE(described.name, "");
  EXPECT_GT(described.sm_count, 0);
  EXPECT_GT(described.memory_bytes, int64_t{1} << 30);
  // The same on every GPU since Maxwell.
  EXPECT_EQ(described.registers, 65536);
  EXPECT_GE(described.threads, 1024);
  EXPECT_GE(described.blocks, 16);
  EXPECT_GE(described.shared_memory_bytes, 64 << 10);
  // CUPTI's leftovers must not end up in the next trace.
  KeptProblem kept;
  std::string first;
  for (int round = 0; round < 3; ++round) {
    Measurement measured;
    ASSERT_TRUE(IsOk(MeasureConvolution(device_, MakeConvolution(), "", {}, &kept, &measured)));
    if (!measured.trace_error.empty()) GTEST_SKIP() << measured.trace_error;
    std::string names;
    double elapsed_us = 0;
    for (const TracedKernel& kernel : measured.kernels) {
      names += kernel.name + "\n";
      elapsed_us += kernel.elapsed_us;
      EXPECT_GT(kernel.registers_per_thread, 0) << kernel.name;
      EXPECT_GE(kernel.grid[0], 1) << kernel.name;
      EXPECT_LE(kernel.block[0] * kernel.block[1] * kernel.block[2], described.threads);
      EXPECT_LE(kernel.shared_memory_bytes, described.shared_memory_bytes) << kernel.name;
    }
    EXPECT_GT(elapsed_us, 0);
    if (round == 0) first = names;
    EXPECT_EQ(names, first);
  }
}

}  // namespace
}  // namespace tf_interop
