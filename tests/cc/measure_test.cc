// Measuring on the host backend: what is timed, errors against double precision, determinism, and
// failures.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc_kernels/core/host/host_backend.h"
#include "cc_kernels/core/measure/alone.h"
#include "cc_kernels/core/measure/float64_reference.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/measure_fixture.h"
#include "tests/cc/reference_convolution.h"

namespace tf_interop {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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
  Status Prepare(const Convolution& convolution, const std::string& algorithm,
                 const PrepareOptions& options,
                 std::shared_ptr<const PreparedConvolution>* prepared) override {
    allows_tf32 = options.allow_tf32;
    return HostBackend::Prepare(convolution, algorithm, options, prepared);
  }
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
  bool allows_tf32 = true;
  bool writes_nothing = false;
  bool adds_noise = false;
  int launches = 0;
  std::set<void*> results;

 private:
  int noise_ = 0;
};

// Without anything left from another measurement.
Status Measure(MeasuringDevice* device, const Convolution& convolution,
               const std::string& algorithm, const MeasureOptions& options,
               Measurement* measurement) {
  ProblemCache cache;
  return MeasureConvolution(device, convolution, algorithm, options, &cache, measurement);
}

class MeasureConvolutionTest : public testing::Test {
 protected:
  Measurement Measured(const Convolution& c, const std::string& algorithm = "") {
    Measurement measured;
    const Status status = Measure(&device_, c, algorithm, options_, &measured);
    EXPECT_TRUE(status.ok()) << status.message();
    return measured;
  }
  Status Refusal(const Convolution& c, const std::string& algorithm = "") {
    Measurement measured;
    return Measure(&device_, c, algorithm, options_, &measured);
  }

  const Convolution c_ = MakeConvolution();
  MeasureOptions options_ = FewRuns();
  SpyingBackend backend_;
  CountingDevice device_{&backend_};
};

TEST_F(MeasureConvolutionTest, EveryKindLayoutTypeAndAlgorithmIsMeasured) {
  std::vector<Convolution> cases = WithEveryKindLayoutAndType({MakeConvolution(), MakeVolume()});
  for (const Convolution& c : WithEveryEpilogue({MakeConvolution()})) cases.push_back(c);
  for (const Convolution& c :
       WithEveryKindAndLayout({MakeConvolution(), MakeVolume()}, DataType::kDouble)) {
    cases.push_back(c);
  }
  for (const Convolution& c : cases) {
    for (const char* algorithm : {"IM2COL_GEMM", "DIRECT"}) {
      SCOPED_TRACE(ToString(c) + " " + algorithm);
      const Measurement measured = Measured(c, algorithm);
      EXPECT_EQ(measured.algorithm, algorithm);
      EXPECT_GT(measured.time.median_us, 0);
      EXPECT_GE(measured.time.spread_us, 0);
      EXPECT_TRUE(measured.is_deterministic);
      EXPECT_GE(measured.relative_error, 0);
      EXPECT_LT(measured.relative_error, RoundingOf(c.dtype));
      EXPECT_TRUE(c.dtype != DataType::kHalf || measured.relative_error > 0);
      std::shared_ptr<const PreparedConvolution> prepared;
      ASSERT_TRUE(backend_.Prepare(c, algorithm, {size_t{1} << 30}, &prepared).ok());
      EXPECT_EQ(measured.workspace_bytes, static_cast<int64_t>(prepared->workspace_bytes()));
    }
  }
}

TEST_F(MeasureConvolutionTest, ResolvingNamesWhatWouldBeMeasuredAndRunsNothing) {
  for (const auto& [name, runs] : std::vector<std::pair<std::string, std::string>>{
           {"", "IM2COL_GEMM"}, {"DIRECT", "DIRECT"}}) {
    const int launches = backend_.launches;
    ResolvedAlgorithm resolved;
    ASSERT_TRUE(ResolveAlgorithm(&device_, c_, name, options_, &resolved).ok());
    EXPECT_EQ(backend_.launches, launches);
    const Measurement measured = Measured(c_, name);
    EXPECT_EQ(resolved.algorithm, runs);
    EXPECT_EQ(measured.algorithm, runs);
    EXPECT_EQ(resolved.reduces_precision, measured.reduces_precision != 0);
  }
}

TEST_F(MeasureConvolutionTest, TellsTheBackendWhetherTf32IsAllowed) {
  for (const bool allow : {false, true}) {
    options_.allow_tf32 = allow;
    backend_.allows_tf32 = !allow;
    Measured(c_);
    EXPECT_EQ(backend_.allows_tf32, allow);
    backend_.allows_tf32 = !allow;
    ResolvedAlgorithm resolved;
    ASSERT_TRUE(ResolveAlgorithm(&device_, c_, "", options_, &resolved).ok());
    EXPECT_EQ(backend_.allows_tf32, allow);
  }
}

TEST_F(MeasureConvolutionTest, RotatesThroughCopiesThatExceedTheCache) {
  const auto bytes =
      static_cast<int64_t>(4 * (c_.image_elements() + c_.filter_elements() + c_.output_elements()));
  for (const auto& [cache_bytes, copies] : std::vector<std::pair<int64_t, size_t>>{
           {0, 1}, {bytes - 1, 1}, {bytes, 2}, {3 * bytes - 1, 3}, {1000 * bytes, 4}}) {
    options_.cache_bytes = cache_bytes;
    backend_.results.clear();
    Measured(c_);  // 4 timed runs
    EXPECT_EQ(backend_.results.size(), copies) << cache_bytes;
  }
}

TEST_F(MeasureConvolutionTest, AHeadStartIsNotTimedAndChangesNothing) {
  options_.head_start_bytes = 1 << 20;
  EXPECT_LT(Measured(c_).relative_error, 1e-5);
  EXPECT_EQ(device_.sections, 4);
}

TEST_F(MeasureConvolutionTest, SeesAnAlgorithmThatIsNotDeterministic) {
  backend_.adds_noise = true;
  const Measurement measured = Measured(c_);
  EXPECT_FALSE(measured.is_deterministic);
  EXPECT_GT(measured.relative_error, 1e-3);
}

TEST_F(MeasureConvolutionTest, SeesElementsThatAreNotWrittenAlsoOverTheLimit) {
  backend_.writes_nothing = true;
  EXPECT_EQ(Measured(c_).relative_error, kInfinity);
  options_.reference_limit_multiply_adds = 0;
  EXPECT_EQ(Measured(c_).relative_error, kInfinity);
}

TEST_F(MeasureConvolutionTest, OverTheLimitThereIsNoError) {
  options_.reference_limit_multiply_adds = MultiplyAdds(c_);
  EXPECT_GE(Measured(c_).relative_error, 0);
  options_.reference_limit_multiply_adds -= 1;
  const Measurement measured = Measured(c_);
  EXPECT_LT(measured.relative_error, 0);
  EXPECT_TRUE(measured.is_deterministic);
}

TEST_F(MeasureConvolutionTest, RefusesWithACodeThatTellsWhoseFaultItIs) {
  const auto expect = [&](StatusCode code, const std::string& words, const Status& refusal,
                          const Status& resolving) {
    EXPECT_EQ(refusal.code(), code);
    EXPECT_NE(refusal.message().find(words), std::string::npos) << refusal.message();
    EXPECT_EQ(resolving.code(), code);
    EXPECT_EQ(resolving.message(), refusal.message());
    options_ = FewRuns();
  };
  const auto resolve = [&](const Convolution& c, const std::string& algorithm = "") {
    ResolvedAlgorithm resolved;
    return ResolveAlgorithm(&device_, c, algorithm, options_, &resolved);
  };
  expect(StatusCode::kUnsupported, "FFT", Refusal(c_, "FFT"), resolve(c_, "FFT"));
  options_.workspace_limit_bytes = 16;
  expect(StatusCode::kUnsupported, "16", Refusal(c_, "IM2COL_GEMM"), resolve(c_, "IM2COL_GEMM"));
  Convolution wrong = c_;
  ++wrong.output_height;
  expect(StatusCode::kInvalidArgument, "output height", Refusal(wrong, "DIRECT"), resolve(wrong));
  Convolution empty = c_;
  empty.batch = 0;
  expect(StatusCode::kInvalidArgument, "compute", Refusal(empty), resolve(empty));
  options_.repetitions = 0;
  expect(StatusCode::kInvalidArgument, "repetition", Refusal(c_), resolve(c_));
  options_.warmup_runs = std::numeric_limits<int64_t>::max();
  expect(StatusCode::kInvalidArgument, "warm-up", Refusal(c_), resolve(c_));
  EXPECT_EQ(backend_.launches, 0);
}

TEST_F(MeasureConvolutionTest, FreesWhatItHasWhereMemoryIsShort) {
  for (int allowed = 0; allowed < 4; ++allowed) {
    device_.refuse_from = allowed;
    EXPECT_EQ(Refusal(c_, "IM2COL_GEMM").code(), StatusCode::kResourceExhausted) << allowed;
    EXPECT_EQ(device_.live, 0);
  }
}

TEST_F(MeasureConvolutionTest, TracesOneRunAfterTheTimedOnes) {
  const Measurement measured = Measured(c_);
  EXPECT_EQ(measured.kernels.size(), 1u);
  EXPECT_EQ(measured.trace_error, "");
  EXPECT_EQ(device_.sections_at_trace, 4);
  EXPECT_EQ(backend_.launches, 2 + 4 + 1);

  options_.trace_kernels = false;
  EXPECT_TRUE(Measured(c_).kernels.empty());
  EXPECT_EQ(device_.traces, 1);
}

TEST_F(MeasureConvolutionTest, ATraceThatFailsLeavesTheRest) {
  device_.start_trace = Unavailable("another tool");
  Measurement measured = Measured(c_);
  EXPECT_EQ(measured.trace_error, "another tool");
  EXPECT_EQ(device_.traces, 0);
  EXPECT_GT(measured.time.median_us, 0);

  device_.start_trace = Status::Ok();
  device_.stop_trace = Unavailable("records were dropped");
  measured = Measured(c_);
  EXPECT_EQ(measured.trace_error, "records were dropped");
  EXPECT_TRUE(measured.kernels.empty());
}

TEST_F(MeasureConvolutionTest, AKeptProblemChangesNothing) {
  Convolution other = c_;
  other.kind = ConvolutionKind::kBackwardInput;
  MeasureOptions other_seed = FewRuns();
  other_seed.seed = 7;
  MeasureOptions no_reference = FewRuns();
  no_reference.reference_limit_multiply_adds = 0;
  ProblemCache cache;
  // What is kept is used again, is another's, is of another seed, and has no reference yet.
  for (const auto& [convolution, options] :
       std::vector<std::pair<Convolution, MeasureOptions>>{{c_, FewRuns()},
                                                           {c_, FewRuns()},
                                                           {other, no_reference},
                                                           {other, FewRuns()},
                                                           {c_, FewRuns()},
                                                           {c_, other_seed},
                                                           {c_, no_reference}}) {
    for (const char* algorithm : {"IM2COL_GEMM", "DIRECT"}) {
      SCOPED_TRACE(ToString(convolution) + " " + algorithm);
      Measurement kept;
      ASSERT_TRUE(
          MeasureConvolution(&device_, convolution, algorithm, options, &cache, &kept).ok());
      options_ = options;
      EXPECT_EQ(kept.relative_error, Measured(convolution, algorithm).relative_error);
      EXPECT_EQ(kept.relative_error >= 0, options.reference_limit_multiply_adds > 0);
    }
  }
}

// A backend whose runs are told apart by their number.
struct NumberedRuns {
  explicit NumberedRuns(const std::function<Status(int)>& run)
      : backend(SerialFor, [this, run](const Convolution&) { return run(count++); }) {}
  int count = 0;
  HostBackend backend;
  CountingDevice device{&backend};
};

TEST(MeasureRunsTest, TimesTheRepetitionsAndNotTheOtherRuns) {
  // Slow for error, determinism and warm-up, then 4, 8, … 44 ms: the median is 24 and the spread
  // 16 ms, plus what sleeping takes longer.
  NumberedRuns runs([](int number) {
    const int repetition = number - 3;
    const int milliseconds = repetition < 0 ? 100 : 4 + 4 * repetition;
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    return Status::Ok();
  });
  MeasureOptions options = FewRuns();
  options.repetitions = 11;
  Measurement measured;
  ASSERT_TRUE(Measure(&runs.device, MakeConvolution(), "", options, &measured).ok());
  EXPECT_EQ(runs.count, 15);  // the last is for the trace
  EXPECT_EQ(runs.device.sections, 12);
  EXPECT_GE(measured.time.median_us, 24e3);
  EXPECT_GT(measured.time.spread_us, 0);
}

TEST(MeasureRunsTest, AFailureOnTheDeviceIsReportedAndMemoryIsFreed) {
  for (const int failing : {3, 6}) {  // of the timed runs, and the one that is traced
    NumberedRuns runs(
        [failing](int number) { return number == failing ? Internal("injected") : Status::Ok(); });
    Measurement measured;
    const Status status = Measure(&runs.device, MakeConvolution(), "", FewRuns(), &measured);
    EXPECT_EQ(status.message(), "injected");
    EXPECT_EQ(runs.device.live, 0);
    EXPECT_EQ(runs.device.traces, failing == 6);  // it is ended
    // What failed once is not left for the next measurement.
    EXPECT_TRUE(Measure(&runs.device, MakeConvolution(), "", FewRuns(), &measured).ok());
  }
}

}  // namespace
}  // namespace tf_interop
