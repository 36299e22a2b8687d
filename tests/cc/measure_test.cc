// Measuring on the host backend: what the figures are of, errors against double precision,
// determinism, and failures.
#include "cc_kernels/core/measure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc_kernels/core/float64_reference.h"
#include "cc_kernels/core/host/host_backend.h"
#include "cc_kernels/core/host/host_measuring_device.h"
#include "cc_kernels/core/measure_stage.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/reference_convolution.h"

namespace tf_interop {
namespace {

MeasureOptions FewRuns() {
  MeasureOptions options;
  options.warmup_runs = 1;
  options.repetitions = 3;
  options.cache_bytes = 0;
  return options;
}

// Half a unit in the last place of the type, and what the sums of its operands add.
double RoundingOf(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat:
      return 1e-5;
    case DataType::kHalf:
      return 1e-3;
    case DataType::kBFloat16:
      return 8e-3;
    case DataType::kDouble:
      return 1e-14;
  }
  return 0;
}

// Counts device memory, and can refuse it.
class CountingDevice : public MeasuringDevice {
 public:
  explicit CountingDevice(Backend* backend) {
    EXPECT_TRUE(HostMeasuringDevice::Create(backend, &device_).ok());
  }
  ~CountingDevice() override { EXPECT_EQ(live, 0) << "device memory was not freed"; }

  Backend* backend() override { return device_->backend(); }
  Status Describe(DeviceDescription* description) override {
    return device_->Describe(description);
  }
  MeasuringDefaults defaults() const override { return device_->defaults(); }
  Stream stream() const override { return device_->stream(); }
  Status Allocate(size_t bytes, void** data) override {
    if (refuse_from-- <= 0) return ResourceExhausted("no memory");
    TF_INTEROP_RETURN_IF_ERROR(device_->Allocate(bytes, data));
    sizes.push_back(bytes);
    ++live;
    return Status::Ok();
  }
  void Free(void* data) override {
    --live;
    device_->Free(data);
  }
  Status CopyToDevice(const void* from, size_t bytes, void* to) override {
    return device_->CopyToDevice(from, bytes, to);
  }
  Status CopyFromDevice(const void* from, size_t bytes, void* to) override {
    return device_->CopyFromDevice(from, bytes, to);
  }
  Status StartTimer() override { return device_->StartTimer(); }
  Status StopTimer() override { return device_->StopTimer(); }
  Status ReadTimer(double* elapsed_us) override {
    ++sections;
    return device_->ReadTimer(elapsed_us);
  }
  Status Synchronize() override { return device_->Synchronize(); }
  Status StartTrace() override {
    sections_at_trace = sections;
    return start_trace;
  }
  Status StopTrace(std::vector<TracedKernel>* kernels) override {
    ++traces;
    *kernels = {TracedKernel()};
    return stop_trace;
  }

  Status start_trace, stop_trace;
  int traces = 0;
  int sections_at_trace = -1;
  std::vector<size_t> sizes;  // of all that was ever allocated
  int live = 0;
  int refuse_from = std::numeric_limits<int>::max();
  int sections = 0;

 private:
  std::unique_ptr<HostMeasuringDevice> device_;
};

// Notes the results that convolutions write to, and may spoil them.
class SpyingBackend : public HostBackend {
 public:
  SpyingBackend() : HostBackend(SerialFor) {}
  Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                void* workspace, StreamGroup* group, Stream stream) override {
    results.insert(buffers.result);
    ++launches;
    if (writes_nothing) return Status::Ok();
    TF_INTEROP_RETURN_IF_ERROR(HostBackend::Launch(prepared, buffers, workspace, group, stream));
    if (!adds_noise) return Status::Ok();
    static_cast<HostStream*>(stream)->Enqueue([result = buffers.result, by = ++noise_] {
      static_cast<float*>(result)[0] += static_cast<float>(by);
      return Status::Ok();
    });
    return Status::Ok();
  }
  void set_allow_tf32(bool allow) override { allows_tf32 = allow; }
  bool allows_tf32 = true;
  bool writes_nothing = false;
  bool adds_noise = false;
  int launches = 0;
  std::set<void*> results;

 private:
  int noise_ = 0;
};

// Without anything left from another measurement.
Status MeasureConvolution(MeasuringDevice* device, const Convolution& convolution,
                          const std::string& algorithm, const MeasureOptions& options,
                          Measurement* measurement) {
  ProblemCache cache;
  return tf_interop::MeasureConvolution(device, convolution, algorithm, options, &cache,
                                        measurement);
}

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

TEST(MeasureConvolutionTest, EveryKindLayoutTypeAndAlgorithmHasItsFigures) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  std::vector<Convolution> cases = WithEveryKindLayoutAndType({MakeConvolution(), MakeVolume()});
  for (const Convolution& c : WithEveryEpilogue({MakeConvolution()})) cases.push_back(c);
  for (const Convolution& c :
       WithEveryKindAndLayout({MakeConvolution(), MakeVolume()}, DataType::kDouble)) {
    cases.push_back(c);
  }
  for (const Convolution& c : cases) {
    for (const char* algorithm : {"IM2COL_GEMM", "DIRECT"}) {
      SCOPED_TRACE(ToString(c) + " " + algorithm);
      Measurement measured;
      const Status status = MeasureConvolution(&device, c, algorithm, FewRuns(), &measured);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(measured.algorithm, algorithm);
      EXPECT_GT(measured.time.median_us, 0);
      EXPECT_GE(measured.time.spread_us, 0);
      EXPECT_TRUE(measured.is_deterministic);
      ASSERT_TRUE(measured.relative_error.has_value());
      EXPECT_LT(*measured.relative_error, RoundingOf(c.dtype));
      EXPECT_TRUE(c.dtype != DataType::kHalf || *measured.relative_error > 0);
      std::shared_ptr<const PreparedConvolution> prepared;
      ASSERT_TRUE(backend.Prepare(c, algorithm, size_t{1} << 30, &prepared).ok());
      EXPECT_EQ(measured.workspace_bytes, prepared->workspace_bytes());
    }
  }
}

TEST(MeasureConvolutionTest, NamesWhatTheBackendChose) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  Measurement measured;
  ASSERT_TRUE(MeasureConvolution(&device, MakeConvolution(), "", FewRuns(), &measured).ok());
  EXPECT_EQ(measured.algorithm, "IM2COL_GEMM");
}

TEST(ResolveAlgorithmTest, NamesWhatWouldBeMeasuredAndRunsNothing) {
  SpyingBackend backend;
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  for (const std::string& name : {std::string(), std::string("DIRECT")}) {
    const int launches = backend.launches;
    ResolvedAlgorithm resolved;
    ASSERT_TRUE(ResolveAlgorithm(&device, c, name, FewRuns(), &resolved).ok());
    EXPECT_EQ(backend.launches, launches);
    Measurement measured;
    ASSERT_TRUE(MeasureConvolution(&device, c, name, FewRuns(), &measured).ok());
    EXPECT_EQ(resolved.algorithm, measured.algorithm);
    EXPECT_EQ(resolved.reduces_precision, measured.reduces_precision);
  }
}

TEST(ResolveAlgorithmTest, RefusesAsMeasuringDoes) {
  SpyingBackend backend;
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  MeasureOptions options = FewRuns();
  options.allow_tf32 = false;
  ResolvedAlgorithm resolved;
  Measurement measured;
  const Status refusal = ResolveAlgorithm(&device, c, "eng1", options, &resolved);
  EXPECT_EQ(refusal.code(), StatusCode::kUnsupported);
  EXPECT_EQ(refusal.message(),
            MeasureConvolution(&device, c, "eng1", options, &measured).message());
  EXPECT_FALSE(backend.allows_tf32);
  Convolution empty = c;
  empty.batch = 0;
  EXPECT_EQ(ResolveAlgorithm(&device, empty, "", options, &resolved).code(),
            StatusCode::kInvalidArgument);
}

TEST(MeasureConvolutionTest, TimesTheRepetitionsAndNotTheOtherRuns) {
  // Slow for error, determinism and warm-up, then 4, 8, … 44 ms: the median is 24 and the spread
  // 16 ms, plus what sleeping takes longer.
  int runs = 0;
  HostBackend backend(SerialFor, [&runs](const Convolution&) -> Status {
    const int repetition = runs++ - 3;
    std::this_thread::sleep_for(
        std::chrono::milliseconds(repetition < 0 ? 100 : 4 + 4 * repetition));
    return Status::Ok();
  });
  CountingDevice device(&backend);
  MeasureOptions options = FewRuns();
  options.repetitions = 11;
  Measurement measured;
  ASSERT_TRUE(MeasureConvolution(&device, MakeConvolution(), "", options, &measured).ok());
  EXPECT_EQ(runs, 15);  // the last is for the trace
  EXPECT_EQ(device.sections, 12);
  EXPECT_GE(measured.time.median_us, 24e3);
  EXPECT_GT(measured.time.spread_us, 0);
}

TEST(MeasureConvolutionTest, RotatesThroughCopiesThatExceedTheCache) {
  const Convolution c = MakeConvolution();
  const size_t bytes = 4 * (c.image_elements() + c.filter_elements() + c.output_elements());
  MeasureOptions options = FewRuns();  // 4 timed runs
  for (const auto& [cache_bytes, copies] : std::vector<std::pair<size_t, int64_t>>{
           {0, 1}, {bytes - 1, 1}, {bytes, 2}, {3 * bytes - 1, 3}, {1000 * bytes, 4}}) {
    SpyingBackend backend;
    CountingDevice device(&backend);
    options.cache_bytes = cache_bytes;
    Measurement measured;
    ASSERT_TRUE(MeasureConvolution(&device, c, "", options, &measured).ok());
    EXPECT_EQ(measured.copies, copies) << cache_bytes;
    EXPECT_EQ(backend.results.size(), static_cast<size_t>(copies));
  }
}

TEST(MeasureConvolutionTest, AHeadStartIsNotTimedAndChangesNothing) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  MeasureOptions options = FewRuns();
  options.head_start_bytes = 1 << 20;
  Measurement measured;
  ASSERT_TRUE(MeasureConvolution(&device, MakeConvolution(), "", options, &measured).ok());
  EXPECT_LT(*measured.relative_error, 1e-5);
}

TEST(MeasureConvolutionTest, SeesAnAlgorithmThatIsNotDeterministic) {
  SpyingBackend backend;
  backend.adds_noise = true;
  CountingDevice device(&backend);
  Measurement measured;
  ASSERT_TRUE(MeasureConvolution(&device, MakeConvolution(), "", FewRuns(), &measured).ok());
  EXPECT_FALSE(measured.is_deterministic);
  EXPECT_GT(*measured.relative_error, 1e-3);
}

TEST(MeasureConvolutionTest, SeesElementsThatAreNotWritten) {
  SpyingBackend backend;
  backend.writes_nothing = true;
  CountingDevice device(&backend);
  Measurement measured;
  ASSERT_TRUE(MeasureConvolution(&device, MakeConvolution(), "", FewRuns(), &measured).ok());
  EXPECT_EQ(*measured.relative_error, std::numeric_limits<double>::infinity());
}

TEST(MeasureConvolutionTest, SeesThemOverTheLimitToo) {
  SpyingBackend backend;
  backend.writes_nothing = true;
  CountingDevice device(&backend);
  MeasureOptions options = FewRuns();
  options.reference_limit_multiply_adds = 0;
  Measurement measured;
  ASSERT_TRUE(MeasureConvolution(&device, MakeConvolution(), "", options, &measured).ok());
  EXPECT_EQ(*measured.relative_error, std::numeric_limits<double>::infinity());
}

TEST(MeasureConvolutionTest, OverTheLimitThereIsNoError) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  MeasureOptions options = FewRuns();
  options.reference_limit_multiply_adds = MultiplyAdds(c);
  Measurement measured;
  ASSERT_TRUE(MeasureConvolution(&device, c, "", options, &measured).ok());
  EXPECT_TRUE(measured.relative_error.has_value());
  options.reference_limit_multiply_adds -= 1;
  ASSERT_TRUE(MeasureConvolution(&device, c, "", options, &measured).ok());
  EXPECT_FALSE(measured.relative_error.has_value());
  EXPECT_TRUE(measured.is_deterministic);
}

TEST(MeasureConvolutionTest, RefusesWithAReason) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  const auto refusal = [&device](const Convolution& c, const std::string& algorithm,
                                 const MeasureOptions& options) {
    Measurement measured;
    const Status status = MeasureConvolution(&device, c, algorithm, options, &measured);
    EXPECT_FALSE(status.ok());
    return status.message();
  };
  EXPECT_NE(refusal(MakeConvolution(), "FFT", FewRuns()).find("got FFT"), std::string::npos);
  Convolution wrong = MakeConvolution();
  ++wrong.output_height;
  EXPECT_NE(refusal(wrong, "", FewRuns()).find("Expected output height"), std::string::npos);
  Convolution empty = MakeConvolution();
  empty.batch = 0;
  EXPECT_NE(refusal(empty, "", FewRuns()).find("something to compute"), std::string::npos);
  MeasureOptions options = FewRuns();
  options.repetitions = 0;
  EXPECT_NE(refusal(MakeConvolution(), "", options).find("repetition"), std::string::npos);
  options = FewRuns();
  options.warmup_runs = std::numeric_limits<int64_t>::max();
  EXPECT_NE(refusal(MakeConvolution(), "", options).find("warm-up runs"), std::string::npos);
  options = FewRuns();
  options.workspace_limit_bytes = 16;
  EXPECT_NE(refusal(MakeConvolution(), "IM2COL_GEMM", options).find("the limit is 16"),
            std::string::npos);
}

TEST(MeasureConvolutionTest, AFailureOnTheDeviceIsReportedAndMemoryIsFreed) {
  int runs = 0;
  HostBackend backend(SerialFor, [&runs](const Convolution&) -> Status {
    return ++runs == 4 ? Internal("injected") : Status::Ok();
  });
  CountingDevice device(&backend);
  Measurement measured;
  EXPECT_EQ(MeasureConvolution(&device, MakeConvolution(), "", FewRuns(), &measured).message(),
            "injected");
  EXPECT_EQ(device.live, 0);
  // What failed once is not left behind for the next measurement.
  EXPECT_TRUE(MeasureConvolution(&device, MakeConvolution(), "", FewRuns(), &measured).ok());
}

TEST(MeasureConvolutionTest, FreesWhatItHasWhereMemoryIsShort) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  Measurement measured;
  for (int allowed = 0; allowed < 4; ++allowed) {
    device.refuse_from = allowed;
    const Status status =
        MeasureConvolution(&device, MakeConvolution(), "IM2COL_GEMM", FewRuns(), &measured);
    EXPECT_EQ(status.message(), "no memory") << allowed;
    EXPECT_EQ(device.live, 0);
  }
}

TEST(MeasureConvolutionTest, TracesOneRunBehindTheTimedOnes) {
  SpyingBackend backend;
  CountingDevice device(&backend);
  Measurement measured;
  ASSERT_TRUE(MeasureConvolution(&device, MakeConvolution(), "", FewRuns(), &measured).ok());
  EXPECT_EQ(measured.kernels.size(), 1u);
  EXPECT_EQ(measured.trace_error, "");
  EXPECT_EQ(device.sections_at_trace, 4);
  EXPECT_EQ(backend.launches, 2 + 4 + 1);

  MeasureOptions options = FewRuns();
  options.trace_kernels = false;
  ASSERT_TRUE(MeasureConvolution(&device, MakeConvolution(), "", options, &measured).ok());
  EXPECT_EQ(device.traces, 1);
  EXPECT_TRUE(measured.kernels.empty());
}

TEST(MeasureConvolutionTest, ATraceThatFailsLeavesTheRest) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  device.start_trace = Unavailable("another tool");
  Measurement measured;
  ASSERT_TRUE(MeasureConvolution(&device, MakeConvolution(), "", FewRuns(), &measured).ok());
  EXPECT_EQ(measured.trace_error, "another tool");
  EXPECT_EQ(device.traces, 0);
  EXPECT_GT(measured.time.median_us, 0);

  device.start_trace = Status::Ok();
  device.stop_trace = Unavailable("records were dropped");
  ASSERT_TRUE(MeasureConvolution(&device, MakeConvolution(), "", FewRuns(), &measured).ok());
  EXPECT_EQ(measured.trace_error, "records were dropped");
  EXPECT_TRUE(measured.kernels.empty());
}

TEST(MeasureConvolutionTest, ATraceIsEndedWhereItsRunFails) {
  int runs = 0;
  HostBackend backend(SerialFor, [&runs](const Convolution&) -> Status {
    return ++runs == 7 ? Internal("injected") : Status::Ok();
  });
  CountingDevice device(&backend);
  Measurement measured;
  EXPECT_EQ(MeasureConvolution(&device, MakeConvolution(), "", FewRuns(), &measured).message(),
            "injected");
  EXPECT_EQ(device.traces, 1);
}

TEST(MeasureConvolutionTest, CodesTellWhoseFaultAFailureIs) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  Measurement measured;
  MeasureOptions options = FewRuns();
  const auto code = [&](const Convolution& c, const std::string& algorithm) {
    return MeasureConvolution(&device, c, algorithm, options, &measured).code();
  };
  EXPECT_EQ(code(MakeConvolution(), "FFT"), StatusCode::kUnsupported);
  Convolution wrong = MakeConvolution();
  ++wrong.output_height;
  EXPECT_EQ(code(wrong, "DIRECT"), StatusCode::kInvalidArgument);
  options.workspace_limit_bytes = 16;
  EXPECT_EQ(code(MakeConvolution(), "IM2COL_GEMM"), StatusCode::kUnsupported);
  options.repetitions = 0;
  EXPECT_EQ(code(MakeConvolution(), ""), StatusCode::kInvalidArgument);
}

TEST(MeasureConvolutionTest, TellsTheBackendWhetherTf32IsAllowed) {
  SpyingBackend backend;
  CountingDevice device(&backend);
  Measurement measured;
  MeasureOptions options = FewRuns();
  for (const bool allow : {false, true}) {
    options.allow_tf32 = allow;
    backend.allows_tf32 = !allow;
    ASSERT_TRUE(MeasureConvolution(&device, MakeConvolution(), "", options, &measured).ok());
    EXPECT_EQ(backend.allows_tf32, allow);
    backend.allows_tf32 = !allow;
    StageMeasurement stage;
    ASSERT_TRUE(
        MeasureStage(&device, {{{"a", MakeConvolution(), "", 0}}, {}, {}}, options, &stage).ok());
    EXPECT_EQ(backend.allows_tf32, allow);
  }
}

TEST(MeasureConvolutionTest, AKeptProblemChangesNoFigure) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  Convolution other = c;
  other.kind = ConvolutionKind::kBackwardInput;
  MeasureOptions other_seed = FewRuns();
  other_seed.seed = 7;
  MeasureOptions no_reference = FewRuns();
  no_reference.reference_limit_multiply_adds = 0;
  ProblemCache cache;
  // What is kept is used again, is another's, is of another seed, and has no reference yet.
  for (const auto& [convolution, options] :
       std::vector<std::pair<Convolution, MeasureOptions>>{{c, FewRuns()},
                                                           {c, FewRuns()},
                                                           {other, no_reference},
                                                           {other, FewRuns()},
                                                           {c, FewRuns()},
                                                           {c, other_seed},
                                                           {c, no_reference}}) {
    for (const char* algorithm : {"IM2COL_GEMM", "DIRECT"}) {
      SCOPED_TRACE(ToString(convolution) + " " + algorithm);
      Measurement kept, anew;
      ASSERT_TRUE(
          tf_interop::MeasureConvolution(&device, convolution, algorithm, options, &cache, &kept)
              .ok());
      ASSERT_TRUE(MeasureConvolution(&device, convolution, algorithm, options, &anew).ok());
      EXPECT_EQ(kept.relative_error, anew.relative_error);
      EXPECT_EQ(kept.relative_error.has_value(), options.reference_limit_multiply_adds > 0);
    }
  }
}

// Backend whose streams have the SMs that were asked for, rounded up to eights.
class PartitioningBackend : public HostBackend {
 public:
  class Group : public StreamGroup {
   public:
    Group(std::unique_ptr<StreamGroup> group, int sm_count)
        : group_(std::move(group)), sm_count_(sm_count) {}
    Stream stream() const override { return group_->stream(); }
    Event* fork_event() override { return group_->fork_event(); }
    Event* join_event() override { return group_->join_event(); }
    int sm_count() const override { return sm_count_; }
    std::unique_ptr<StreamGroup> Take() { return std::move(group_); }

   private:
    std::unique_ptr<StreamGroup> group_;
    int sm_count_;
  };

  PartitioningBackend() : HostBackend(SerialFor) {}
  using Backend::Acquire;
  Status Acquire(const StreamGroupOptions& options, std::unique_ptr<StreamGroup>* group) override {
    priorities.insert(options.priority);
    if (refuses_partitions && !options.partition.empty()) return Unsupported("no partitions here");
    if (leased == most_groups) return ResourceExhausted("no more groups");
    std::unique_ptr<StreamGroup> made;
    TF_INTEROP_RETURN_IF_ERROR(HostBackend::Acquire(StreamGroupOptions(), &made));
    const int asked = options.partition.empty() ? 0 : options.partition[options.partition_index];
    *group = std::make_unique<Group>(std::move(made), (asked + 7) / 8 * 8);
    ++leased;
    return Status::Ok();
  }
  void Release(std::unique_ptr<StreamGroup> group) override {
    --leased;
    HostBackend::Release(static_cast<Group*>(group.get())->Take());
  }
  bool refuses_partitions = false;
  int most_groups = std::numeric_limits<int>::max();
  int leased = 0;
  std::set<int> priorities;
};

TEST(MeasureStageTest, LanesOverlapAndTheSequenceDoesNot) {
  // Convolutions that find another one running. In sequence there is never one.
  std::atomic<int> running{0}, most{0};
  HostBackend backend(SerialFor, [&](const Convolution&) -> Status {
    const int now = ++running;
    if (now > most) most = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    --running;
    return Status::Ok();
  });
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  StageMeasurement measured;
  Status status = MeasureStage(
      &device, {{{"a", c, "DIRECT", 0}, {"b", c, "IM2COL_GEMM", 1}}, {"DIRECT", "DIRECT"}, {}},
      FewRuns(), &measured);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(most, 2);
  EXPECT_GE(measured.same_sequential.median_us, 40e3);
  EXPECT_GE(measured.sequential.median_us, 40e3);
  EXPECT_GE(measured.concurrent.median_us, 20e3);
  EXPECT_GE(measured.concurrent.spread_us, 0);
  EXPECT_EQ(measured.algorithms, (std::vector<std::string>{"DIRECT", "IM2COL_GEMM"}));
  EXPECT_EQ(measured.sequential_algorithms, (std::vector<std::string>{"DIRECT", "DIRECT"}));
  EXPECT_EQ(device.sections, 12);  // three ways, one warm-up and three repetitions

  most = 0;
  status = MeasureStage(&device, {{{"a", c, "DIRECT", 0}, {"b", c, "DIRECT", 0}}, {}, {}},
                        FewRuns(), &measured);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(most, 1);
}

TEST(MeasureStageTest, TheSecondSequenceRunsItsOwnAlgorithms) {
  // The only convolution that takes long is the one that the second sequence alone computes so.
  const Convolution c = MakeConvolution();
  Convolution slow = c;
  ++slow.batch;
  class SlowDirect : public HostBackend {
   public:
    SlowDirect() : HostBackend(SerialFor) {}
    Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                  void* workspace, StreamGroup* group, Stream stream) override {
      const bool is_slow = prepared.algorithm() == "DIRECT";
      if (is_slow) {
        static_cast<HostStream*>(stream)->Enqueue([] {
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
          return Status::Ok();
        });
      }
      return HostBackend::Launch(prepared, buffers, workspace, group, stream);
    }
  } backend;
  CountingDevice device(&backend);
  StageMeasurement measured;
  const Status status =
      MeasureStage(&device, {{{"a", c, "IM2COL_GEMM", 0}, {"b", slow, "", 1}}, {"", "DIRECT"}, {}},
                   FewRuns(), &measured);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(measured.algorithms, (std::vector<std::string>{"IM2COL_GEMM", "IM2COL_GEMM"}));
  EXPECT_EQ(measured.sequential_algorithms, (std::vector<std::string>{"IM2COL_GEMM", "DIRECT"}));
  EXPECT_GE(measured.sequential.median_us, 30e3);
  EXPECT_LT(measured.same_sequential.median_us, 30e3);
  EXPECT_LT(measured.concurrent.median_us, 30e3);
}

TEST(MeasureStageTest, OneFigureServesWhereBothSequencesAreTheSame) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  const std::vector<StageStep> steps = {{"a", c, "DIRECT", 0}, {"b", c, "", 1}};
  for (const std::vector<std::string>& others :
       {std::vector<std::string>(), std::vector<std::string>{"DIRECT", "IM2COL_GEMM"}}) {
    device.sections = 0;
    StageMeasurement measured;
    ASSERT_TRUE(MeasureStage(&device, {steps, others, {}}, FewRuns(), &measured).ok());
    EXPECT_EQ(device.sections, 8);
    EXPECT_EQ(measured.sequential.median_us, measured.same_sequential.median_us);
    EXPECT_EQ(measured.sequential_algorithms, measured.algorithms);
  }
}

TEST(MeasureStageTest, LanesGetTheirOptionsAndSayHowManySmsTheyGot) {
  PartitioningBackend backend;
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  StageMeasurement measured;
  const std::vector<StageStep> steps = {{"a", c, "", 0}, {"b", c, "", 1}};
  Status status = MeasureStage(&device, {steps, {}, {{-1, 12}, {-3, 20}}}, FewRuns(), &measured);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(measured.sm_counts, (std::vector<int>{16, 24}));
  EXPECT_EQ(backend.priorities, (std::set<int>{-3, -1, 0}));  // 0: of the sequences
  EXPECT_EQ(backend.leased, 0);

  status = MeasureStage(&device, {steps, {}, {{-1, 0}, {-3, 0}}}, FewRuns(), &measured);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(measured.sm_counts.empty());

  backend.refuses_partitions = true;
  status = MeasureStage(&device, {steps, {}, {{0, 12}, {0, 20}}}, FewRuns(), &measured);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), "no partitions here");
  EXPECT_EQ(backend.leased, 0);
}

// It would run in sequence, and be taken for a stage that does not overlap.
TEST(MeasureStageTest, AStageWhoseLanesHaveNoGroupsIsNotMeasured) {
  PartitioningBackend backend;
  backend.most_groups = 1;
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  for (const std::vector<LaneOptions>& lanes :
       {std::vector<LaneOptions>(), std::vector<LaneOptions>{{-1, 0}, {0, 0}}}) {
    StageMeasurement measured;
    const Status status = MeasureStage(&device, {{{"a", c, "", 0}, {"b", c, "", 1}}, {}, lanes},
                                       FewRuns(), &measured);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(status.message(), "no more groups");
    EXPECT_EQ(backend.leased, 0);
  }
}

TEST(MeasureStageTest, WorkspacesOfLanesAddUpAndStepsOfALaneShareIt) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  std::shared_ptr<const PreparedConvolution> prepared;
  ASSERT_TRUE(backend.Prepare(c, "IM2COL_GEMM", size_t{1} << 30, &prepared).ok());
  StageMeasurement measured;
  ASSERT_TRUE(
      MeasureStage(
          &device,
          {{{"a", c, "IM2COL_GEMM", 0}, {"b", c, "IM2COL_GEMM", 0}, {"c", c, "IM2COL_GEMM", 1}},
           {},
           {}},
          FewRuns(), &measured)
          .ok());
  EXPECT_EQ(measured.workspace_bytes, 2 * prepared->workspace_bytes());
}

TEST(MeasureStageTest, ASequenceMayNeedMoreWorkspaceThanTheLanes) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  Convolution large = c;
  large.batch *= 4;
  StageMeasurement measured;
  const Status status = MeasureStage(
      &device,
      {{{"a", c, "DIRECT", 0}, {"b", large, "IM2COL_GEMM", 1}}, {"IM2COL_GEMM", "IM2COL_GEMM"}, {}},
      FewRuns(), &measured);
  ASSERT_TRUE(status.ok()) << status.message();
  std::shared_ptr<const PreparedConvolution> direct, gemm;
  ASSERT_TRUE(backend.Prepare(c, "DIRECT", size_t{1} << 30, &direct).ok());
  ASSERT_TRUE(backend.Prepare(large, "IM2COL_GEMM", size_t{1} << 30, &gemm).ok());
  EXPECT_EQ(measured.workspace_bytes, direct->workspace_bytes() + gemm->workspace_bytes());
  // Lane 0 on its own needs less; the sequence runs there.
  EXPECT_EQ(std::count(device.sizes.begin(), device.sizes.end(), gemm->workspace_bytes()), 2);
}

// Notes how many output channels are computed, and from which images.
class MergeNotingBackend : public HostBackend {
 public:
  MergeNotingBackend() : HostBackend(SerialFor) {}
  Status Prepare(const Convolution& convolution, const std::string& algorithm, size_t limit,
                 std::shared_ptr<const PreparedConvolution>* prepared) override {
    TF_INTEROP_RETURN_IF_ERROR(HostBackend::Prepare(convolution, algorithm, limit, prepared));
    channels_of_[prepared->get()] = convolution.output_channels;
    kept_.push_back(*prepared);
    return Status::Ok();
  }
  Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                void* workspace, StreamGroup* group, Stream stream) override {
    launched.push_back(channels_of_.at(&prepared));
    images.insert(buffers.inputs[0]);
    return HostBackend::Launch(prepared, buffers, workspace, group, stream);
  }

  std::vector<int64_t> launched;
  std::set<const void*> images;

 private:
  std::map<const PreparedConvolution*, int64_t> channels_of_;
  std::vector<std::shared_ptr<const PreparedConvolution>> kept_;
};

// `c` once with 6 and once with 2 output channels.
std::vector<StageStep> StepsToMerge(const Convolution& c, const std::string& algorithm) {
  std::vector<StageStep> steps = {{"a", c, algorithm, 0}, {"b", c, algorithm, 0}};
  steps[1].convolution.output_channels = 2;
  return steps;
}

TEST(MeasureStageTest, AMergedLaneIsMeasuredBesideItsConvolutionsInSequence) {
  MergeNotingBackend backend;
  CountingDevice device(&backend);
  StageMeasurement measured;
  MeasureOptions options = FewRuns();
  options.warmup_runs = 0;
  options.repetitions = 1;
  const Status status = MeasureStage(
      &device,
      {StepsToMerge(MakeConvolution(), "IM2COL_GEMM"), {"DIRECT", "DIRECT"}, {{0, 0, true}}},
      options, &measured);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(backend.launched, (std::vector<int64_t>{8, 6, 2, 6, 2}));
  EXPECT_EQ(measured.copies, 1);
  EXPECT_EQ(backend.images.size(), 1u);
  EXPECT_EQ(measured.algorithms, (std::vector<std::string>{"IM2COL_GEMM", "IM2COL_GEMM"}));
  EXPECT_EQ(measured.sequential_algorithms, (std::vector<std::string>{"DIRECT", "DIRECT"}));
  PreparedStage stage;
  ASSERT_TRUE(PrepareStage(&backend, StepsToMerge(MakeConvolution(), "IM2COL_GEMM"), {{0, 0, true}},
                           size_t{1} << 30, &stage)
                  .ok());
  EXPECT_EQ(measured.workspace_bytes, stage.merged[0].merge.workspace_bytes());
}

TEST(MeasureStageTest, ConvolutionsOfOtherLanesHaveImagesOfTheirOwn) {
  MergeNotingBackend backend;
  CountingDevice device(&backend);
  std::vector<StageStep> steps = StepsToMerge(MakeConvolution(), "");
  steps.push_back({"c", MakeConvolution(), "", 1});
  steps.push_back({"d", MakeConvolution(), "", 1});
  StageMeasurement measured;
  MeasureOptions options = FewRuns();
  options.warmup_runs = 0;
  options.repetitions = 1;
  const Status status =
      MeasureStage(&device, {steps, {}, {{0, 0, true}, {0, 0, false}}}, options, &measured);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(measured.copies, 1);
  EXPECT_EQ(backend.images.size(), 3u);
}

// An algorithm for the wider convolution alone: in sequence the backend chooses.
TEST(MeasureStageTest, AnAlgorithmForTheWiderConvolutionAloneCanBeMeasured) {
  class WideOnly : public MergeNotingBackend {
   public:
    Status Prepare(const Convolution& convolution, const std::string& algorithm, size_t limit,
                   std::shared_ptr<const PreparedConvolution>* prepared) override {
      if (algorithm == "DIRECT" && convolution.output_channels < 8) return Unsupported("narrow");
      return MergeNotingBackend::Prepare(convolution, algorithm, limit, prepared);
    }
  } backend;
  CountingDevice device(&backend);
  StageMeasurement measured;
  const Status status =
      MeasureStage(&device, {StepsToMerge(MakeConvolution(), "DIRECT"), {}, {{0, 0, true}}},
                   FewRuns(), &measured);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(measured.algorithms, (std::vector<std::string>{"DIRECT", "DIRECT"}));
  EXPECT_EQ(measured.sequential_algorithms,
            (std::vector<std::string>{"IM2COL_GEMM", "IM2COL_GEMM"}));
}

TEST(MeasureStageTest, ALaneThatCannotBeMergedIsAFailureWithItsReason) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  std::vector<StageStep> misfits = StepsToMerge(MakeConvolution(), "");
  misfits[1].convolution.filter_width = 1;
  CompleteSame(&misfits[1].convolution);
  std::vector<StageStep> algorithms = StepsToMerge(MakeConvolution(), "");
  algorithms[1].algorithm = "DIRECT";
  const std::vector<StageStep> alone = {{"a", MakeConvolution(), "", 0}};
  const std::string names = "Convolutions 'a', 'b' merged: ";
  for (const auto& [steps, reason] : std::vector<std::pair<std::vector<StageStep>, std::string>>{
           {misfits, names + "Expected convolutions that differ in output channels only"},
           {algorithms, names + "Expected one algorithm"},
           {StepsToMerge(MakeConvolution(), "FFT"), names + "Expected an algorithm"},
           {alone, "Convolutions 'a' merged: Expected two or more"}}) {
    StageMeasurement measured;
    const Status status = MeasureStage(&device, {steps, {}, {{0, 0, true}}}, FewRuns(), &measured);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
    EXPECT_EQ(device.sections, 0);
  }
}

TEST(MeasureStageTest, APinThatCannotBeHadIsAFailureWithItsReason) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  StageMeasurement measured;
  for (const StageRequest& request :
       {StageRequest{{{"a", c, "", 0}, {"b", c, "FFT", 1}}, {}, {}},
        StageRequest{{{"a", c, "", 0}, {"b", c, "DIRECT", 1}}, {"", "FFT"}, {}}}) {
    const Status status = MeasureStage(&device, request, FewRuns(), &measured);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find("'b' with algorithm FFT: Expected an algorithm"),
              std::string::npos)
        << status.message();
    EXPECT_EQ(device.sections, 0);
  }
}

TEST(MeasureStageTest, AShortageOfMemoryIsToldFromAnAlgorithmThatCannotRun) {
  class ShortBackend : public HostBackend {
   public:
    ShortBackend() : HostBackend(SerialFor) {}
    Status Prepare(const Convolution& convolution, const std::string& algorithm, size_t limit,
                   std::shared_ptr<const PreparedConvolution>* prepared) override {
      if (algorithm == "DIRECT") return ResourceExhausted("no memory for a plan");
      return HostBackend::Prepare(convolution, algorithm, limit, prepared);
    }
  } backend;
  CountingDevice device(&backend);
  StageMeasurement measured;
  const Status status = MeasureStage(&device, {{{"a", MakeConvolution(), "DIRECT", 0}}, {}, {}},
                                     FewRuns(), &measured);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "Convolution 'a' with algorithm DIRECT: no memory for a plan");
}

TEST(MeasureStageTest, RefusesWithAReason) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  for (const auto& [request, reason] : std::vector<std::pair<StageRequest, std::string>>{
           {{}, "got none"},
           {{{{"a", c, "", 3}}, {}, {}}, "Expected lanes numbered"},
           {{{{"a", c, "", 0}}, {"DIRECT", "DIRECT"}, {}}, "none or all of 1 convolutions, got 2"},
           {{{{"a", c, "", 0}}, {}, {{0, 0}, {0, 0}}}, "none or all of 1 lanes, got 2"}}) {
    StageMeasurement measured;
    const Status status = MeasureStage(&device, request, FewRuns(), &measured);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace tf_interop
