// Measuring on the host backend: what the figures are of, errors against double precision,
// determinism, and failures.
#include "cc_kernels/core/measure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc_kernels/core/float64_reference.h"
#include "cc_kernels/core/host/host_backend.h"
#include "cc_kernels/core/measure_stage.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/measure_fixture.h"
#include "tests/cc/reference_convolution.h"

namespace tf_interop {
namespace {

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

}  // namespace
}  // namespace tf_interop
