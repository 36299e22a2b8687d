// What a stage does where it cannot run as planned: every rung, by its cause.
#include "cc_kernels/core/ladder.h"

#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/convolution_cases.h"
#include "tests/cc/stage_fixture.h"

namespace tf_interop {
namespace {

constexpr char kPinned[] = "IM2COL_GEMM";

Stage Lanes(int count) { return StageOfLanes(count, MakeConvolution(), kPinned); }

size_t Sum(const std::vector<size_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), size_t{0});
}

// What one convolution needs in its workspace.
size_t OfOne() {
  HostBackend backend(SerialFor);
  return Prepared(&backend, Lanes(1)).lane_workspace_bytes[0];
}

const char* NameOf(Rung rung) { return kLadder[static_cast<int>(rung)].name; }

TEST(LadderTest, TheTableIsInTheOrderOfTheRungsAndEndsWithStock) {
  for (size_t i = 0; i < std::size(kLadder); ++i)
    EXPECT_EQ(static_cast<size_t>(kLadder[i].rung), i);
  EXPECT_EQ(std::rbegin(kLadder)->rung, Rung::kStock);
}

// How a stage went down for memory.
struct Descent {
  Status status;
  LesserStage lesser;
  std::vector<size_t> asked;  // the sum of each attempt, in order
  std::vector<bool> last;     // whether each was the last
  int64_t counted = 0;        // of the rung that was taken
};

Descent Descend(Backend* backend, const Stage& stage, size_t available, bool has_stock) {
  Descent descent;
  LadderCalls calls;
  calls.get_workspaces = [&](const std::vector<size_t>& bytes, bool is_last, std::vector<void*>*) {
    descent.asked.push_back(Sum(bytes));
    descent.last.push_back(is_last);
    return Sum(bytes) <= available;
  };
  if (has_stock) calls.run_stock = [] { return Status::Ok(); };
  std::vector<int64_t> before;
  for (const RungDescription& rung : kLadder) before.push_back(CountFallbacks(rung.name));
  descent.status = DescendForMemory(backend, stage, kAnyWorkspace, Prepared(backend, stage), calls,
                                    &descent.lesser);
  const auto taken = static_cast<size_t>(descent.lesser.rung);
  descent.counted = CountFallbacks(kLadder[taken].name) - before[taken];
  return descent;
}

Descent Descend(const Stage& stage, size_t available, bool has_stock = false) {
  HostBackend backend(SerialFor);
  return Descend(&backend, stage, available, has_stock);
}

void ExpectTaken(const Descent& descent, Rung rung, size_t lane_count, const char* algorithm) {
  ASSERT_TRUE(descent.status.ok()) << descent.status.message();
  EXPECT_EQ(descent.lesser.rung, rung) << NameOf(descent.lesser.rung);
  EXPECT_EQ(descent.counted, 1);
  const PreparedStage& stage = descent.lesser.stage;
  EXPECT_EQ(stage.lane_workspace_bytes.size(), lane_count);
  EXPECT_EQ(AlgorithmsOf(stage), std::vector<std::string>(stage.steps.size(), algorithm));
}

// A lane's joined filters and outputs are the first to go: its algorithms stay.
TEST(LadderTest, MergedLanesRunUnmergedFirst) {
  for (const int lane_count : {1, 2}) {
    Stage stage = Lanes(lane_count + 1);
    stage.lanes.resize(lane_count);
    stage.lanes[lane_count - 1].steps.push_back(lane_count);
    stage.lanes[lane_count - 1].merged = true;
    ExpectTaken(Descend(stage, lane_count * OfOne()), Rung::kUnmerged, lane_count, kPinned);
  }
}

TEST(LadderTest, HalfTheLanesRunAfterTheOthers) {
  const Descent descent = Descend(Lanes(6), 3 * OfOne());
  ExpectTaken(descent, Rung::kFewerLanes, 3, kPinned);
  std::vector<int> lanes;
  for (const PreparedStep& step : descent.lesser.stage.steps) lanes.push_back(step.lane);
  EXPECT_EQ(lanes, (std::vector<int>{0, 1, 2, 0, 1, 2}));
}

TEST(LadderTest, LanesAreHalvedDownToTwo) {
  const Descent descent = Descend(Lanes(16), 2 * OfOne());
  ExpectTaken(descent, Rung::kFewerLanes, 2, kPinned);
  EXPECT_EQ(descent.asked, (std::vector<size_t>{8 * OfOne(), 4 * OfOne(), 2 * OfOne()}));
}

TEST(LadderTest, TwoLanesTakeAlgorithmsThatNeedLess) {
  ExpectTaken(Descend(Lanes(3), 2 * OfOne() - 1), Rung::kFewerLanesLeastWorkspace, 2, "DIRECT");
}

TEST(LadderTest, AStageOfOneLaneTakesWhatNeedsLeast) {
  ExpectTaken(Descend(Lanes(1), 0), Rung::kSequenceLeastWorkspace, 1, "DIRECT");
}

// Needs workspace even where it is asked for the least, as cuDNN does for transposed filters: a
// limit leaves it `kPinned - kLeast` more.
class Needing : public HostBackend {
 public:
  static constexpr size_t kLeast = 1000;
  static constexpr size_t kPlanned = 1500;
  Needing() : HostBackend(SerialFor) {}
  Status Prepare(const Convolution& convolution, const std::string&, const PrepareOptions& options,
                 std::shared_ptr<const PreparedConvolution>* prepared) override {
    std::shared_ptr<const PreparedConvolution> host;
    TF_INTEROP_RETURN_IF_ERROR(HostBackend::Prepare(convolution, "DIRECT", kAnyWorkspace, &host));
    *prepared =
        std::make_shared<Padded>(host, options.workspace_limit_bytes == 0 ? kLeast : kPlanned);
    return Status::Ok();
  }

 private:
  struct Padded : PreparedConvolution {
    Padded(std::shared_ptr<const PreparedConvolution> host, size_t bytes)
        : host(std::move(host)), bytes(bytes) {}
    size_t workspace_bytes() const override { return bytes; }
    const std::string& algorithm() const override { return host->algorithm(); }
    const std::shared_ptr<const PreparedConvolution> host;
    const size_t bytes;
  };
};

TEST(LadderTest, TheSequenceAsPlannedComesBeforeTheOneThatNeedsLeast) {
  Needing backend;
  ExpectTaken(Descend(&backend, Lanes(3), 1500, false), Rung::kSequence, 1, "DIRECT");
}

TEST(LadderTest, EveryRungNeedsLessThanTheOneBeforeAndStockIsTheLast) {
  Needing backend;
  const std::vector<size_t> asked = {4500, 3000, 2000, 1500, 1000};
  const Descent without = Descend(&backend, Lanes(5), 0, /*has_stock=*/false);
  EXPECT_EQ(without.asked, asked);
  EXPECT_EQ(without.last, (std::vector<bool>{false, false, false, false, true}));
  EXPECT_EQ(without.status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(without.status.message().find("1000 bytes"), std::string::npos);

  const Descent with = Descend(&backend, Lanes(5), 0, /*has_stock=*/true);
  EXPECT_TRUE(with.status.ok());
  EXPECT_EQ(with.lesser.rung, Rung::kStock);
  EXPECT_EQ(with.asked, asked);
  EXPECT_EQ(with.last, std::vector<bool>(5, false)) << "something comes after it";
  EXPECT_EQ(with.counted, 1);
}

TEST(LadderTest, EveryRungForMemoryGivesTheRightNumbersAndKeepsTheOrderOfLanes) {
  for (const size_t available : {3 * OfOne(), 2 * OfOne(), OfOne(), size_t{0}}) {
    HostBackend backend(SerialFor);
    const Convolution c = MakeConvolution();
    const Stage stage = StageOf(Lanes(6).steps, {0, 1, 2, 3, 4, 0});
    StageMemory memory(6, c, 1.0f, 0.5f);
    LadderCalls calls;
    StageBuffers buffers = memory.Bind({});
    calls.get_workspaces = [&](const std::vector<size_t>& bytes, bool, std::vector<void*>* places) {
      if (Sum(bytes) > available) return false;
      memory.AddWorkspaces(bytes, places);
      return true;
    };
    LesserStage lesser;
    ASSERT_TRUE(
        DescendForMemory(&backend, stage, kAnyWorkspace, Prepared(&backend, stage), calls, &lesser)
            .ok());
    std::vector<size_t> of_first_lane;
    for (const StageLaunch& launch : lesser.stage.launches) {
      if (launch.step == 0 || launch.step == 5) of_first_lane.push_back(launch.step);
    }
    EXPECT_EQ(of_first_lane, (std::vector<size_t>{0, 5}));
    EXPECT_EQ(lesser.stage.steps[0].lane, lesser.stage.steps[5].lane);
    buffers.lane_workspaces = lesser.lane_workspaces;
    const std::unique_ptr<HostStream> caller = NewCaller();
    ASSERT_TRUE(RunStage(&backend, lesser.stage, buffers, caller.get()).ok());
    caller->Synchronize();
    ReferenceTensors reference = MakeReferenceTensors(c);
    std::fill(reference.image.begin(), reference.image.end(), 1.0);
    std::fill(reference.filter.begin(), reference.filter.end(), 0.5);
    RunReference(c, &reference);
    for (const auto& result : memory.results) {
      EXPECT_TRUE(std::equal(result.begin(), result.end(), reference.output.begin(),
                             [](float a, double b) { return a == static_cast<float>(b); }));
    }
  }
}

// Fails in the launches that it is told to.
class Failing : public HostBackend {
 public:
  using Decide = std::function<bool(int call)>;
  explicit Failing(Decide launch, bool joins = true)
      : HostBackend(SerialFor), launch_(std::move(launch)), joins_(joins) {}

  void set_caller(Stream caller) { caller_ = caller; }
  int waits_of_caller() const { return waits_of_caller_; }

  Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                void* workspace, StreamGroup* group, Stream stream) override {
    Status launched = HostBackend::Launch(prepared, buffers, workspace, group, stream);
    if (!launch_(calls_++)) return launched;
    // As a launch that got halfway: something is in the result.
    static_cast<HostStream*>(stream)->Enqueue([buffers] {
      static_cast<float*>(buffers.result)[3] = -7.0f;
      return Status::Ok();
    });
    return Internal("EXECUTION_FAILED");
  }
  Status Wait(Stream stream, Event* event) override {
    Status waits = HostBackend::Wait(stream, event);
    if (stream != caller_) return waits;
    ++waits_of_caller_;
    // It joins all the same, so that the test's memory outlives the lanes.
    return joins_ ? waits : Internal("no join");
  }

 private:
  const Decide launch_;
  const bool joins_;
  Stream caller_ = nullptr;
  int calls_ = 0;
  int waits_of_caller_ = 0;
};

// How a stage of three lanes ran of which some launches fail.
struct Outcome {
  Status status;
  int wrong_elements = 0;
  int sequences = 0;  // whose workspaces were asked for
  int stocks = 0;
  int64_t counted[std::size(kLadder)] = {};  // by rung
};

enum class Stock { kNone, kRuns, kFails };

Outcome RunThreeLanes(Failing* backend, Stock stock = Stock::kNone, bool has_memory = true) {
  constexpr int64_t kPixels = 64;
  const Convolution c = CopyConvolution(kPixels);
  const Stage stage = StageOfLanes(3, c, kPinned);
  const PreparedStage prepared = Prepared(backend, stage);
  StageMemory memory(3, c, 5.0f);
  const std::unique_ptr<HostStream> caller = NewCaller();
  backend->set_caller(caller.get());
  Outcome outcome;
  LadderCalls calls;
  calls.get_workspaces = [&](const std::vector<size_t>& bytes, bool, std::vector<void*>* places) {
    ++outcome.sequences;
    if (has_memory) memory.AddWorkspaces(bytes, places);
    return has_memory;
  };
  if (stock != Stock::kNone) {
    calls.run_stock = [&]() -> Status {
      ++outcome.stocks;
      if (stock == Stock::kFails) return Internal("stock failed");
      caller->Enqueue([&memory] {
        for (auto& result : memory.results) result = memory.image;
        return Status::Ok();
      });
      return Status::Ok();
    };
  }
  const auto count = [](const RungDescription& rung) {
    return CountFallbacks(std::string("ran anew: ") + rung.name + ": ");
  };
  for (size_t i = 0; i < std::size(kLadder); ++i) outcome.counted[i] = -count(kLadder[i]);
  outcome.status = RunOrDescend(backend, stage, kAnyWorkspace, prepared,
                                memory.Bind(prepared.lane_workspace_bytes), caller.get(), calls);
  for (size_t i = 0; i < std::size(kLadder); ++i) outcome.counted[i] += count(kLadder[i]);
  caller->Synchronize();
  EXPECT_TRUE(caller->TakeError().ok());
  outcome.wrong_elements = memory.CountWrong(5.0f);
  return outcome;
}

void ExpectRanAnew(const Outcome& outcome, Rung rung) {
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_EQ(outcome.wrong_elements, 0);
  for (size_t i = 0; i < std::size(kLadder); ++i) {
    EXPECT_EQ(outcome.counted[i], kLadder[i].rung == rung ? 1 : 0) << kLadder[i].name;
  }
}

TEST(LadderTest, AStageThatFailsInAnyStepRunsAnewAndGivesTheRightNumbers) {
  for (int failing = 0; failing < 3; ++failing) {
    Failing backend([failing](int call) { return call == failing; });
    ExpectRanAnew(RunThreeLanes(&backend), Rung::kSequenceOwnChoice);
    EXPECT_EQ(backend.waits_of_caller(), 2) << "all lanes that have streams are joined";
  }
}

TEST(LadderTest, ASequenceThatFailsHalfwayRunsAnewWithWhatNeedsLeast) {
  Failing backend([](int call) { return call == 1 || call == 3; });
  const Outcome outcome = RunThreeLanes(&backend);
  ExpectRanAnew(outcome, Rung::kSequenceLeastWorkspace);
  EXPECT_EQ(outcome.sequences, 2);
}

TEST(LadderTest, AStageWhoseEveryLaunchFailsRunsOnStockKernels) {
  Failing backend([](int) { return true; });
  const Outcome outcome = RunThreeLanes(&backend, Stock::kRuns);
  ExpectRanAnew(outcome, Rung::kStock);
  EXPECT_EQ(outcome.stocks, 1);
}

TEST(LadderTest, AStageThatFailsWithoutMemoryForASequenceRunsOnStockKernels) {
  Failing backend([](int call) { return call == 1; });
  ExpectRanAnew(RunThreeLanes(&backend, Stock::kRuns, /*has_memory=*/false), Rung::kStock);
}

TEST(LadderTest, AStageThatSucceedsStaysAsItIs) {
  Failing backend([](int) { return false; });
  const Outcome outcome = RunThreeLanes(&backend, Stock::kRuns);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.sequences, 0);
  EXPECT_EQ(outcome.stocks, 0);
}

TEST(LadderTest, AnErrorThatStaysIsTheFirstWithTheLast) {
  for (const Stock stock : {Stock::kNone, Stock::kFails}) {
    Failing backend([](int call) { return call >= 1; });
    const Outcome outcome = RunThreeLanes(&backend, stock);
    EXPECT_EQ(outcome.status.code(), StatusCode::kInternal);
    const std::string& message = outcome.status.message();
    EXPECT_EQ(message.find("Convolution '1' with algorithm IM2COL_GEMM: EXECUTION_FAILED"), 0u);
    EXPECT_NE(message.find(stock == Stock::kNone ? "Convolution '0'" : "stock failed"),
              std::string::npos)
        << message;
  }
}

TEST(LadderTest, NothingRunsAnewBesideLanesThatAreNotJoined) {
  Failing backend([](int call) { return call == 2; }, /*joins=*/false);
  const Outcome outcome = RunThreeLanes(&backend, Stock::kRuns);
  EXPECT_EQ(outcome.status.code(), StatusCode::kInternal);
  EXPECT_EQ(outcome.sequences, 0);
  EXPECT_EQ(outcome.stocks, 0);
}

TEST(LadderTest, AMergedLaneThatFailsRunsAnewUnmergedWithoutItsJoinedFilter) {
  Failing backend([](int call) { return call == 0; });
  const Convolution c = CopyConvolution(64);
  Stage stage = StageOf(StageOfLanes(2, c, kPinned).steps, {0, 0});
  stage.lanes[0].merged = true;
  const PreparedStage prepared = Prepared(&backend, stage);
  ASSERT_EQ(prepared.merged.size(), 1u);
  StageMemory memory(2, c, 5.0f, 2.0f);
  std::vector<float> joined(2, 1e6f), other_filter(1, 3.0f);
  StageBuffers buffers = memory.Bind(prepared.lane_workspace_bytes);
  buffers.steps[1].inputs[1] = other_filter.data();
  buffers.joined_filters = {joined.data()};
  LadderCalls calls;
  calls.get_workspaces = [&](const std::vector<size_t>& bytes, bool, std::vector<void*>* places) {
    memory.AddWorkspaces(bytes, places);
    return true;
  };
  const std::unique_ptr<HostStream> caller = NewCaller();
  const Status status =
      RunOrDescend(&backend, stage, kAnyWorkspace, prepared, buffers, caller.get(), calls);
  caller->Synchronize();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(memory.results[0], std::vector<float>(64, 10.0f));
  EXPECT_EQ(memory.results[1], std::vector<float>(64, 15.0f));
}

TEST(LadderTest, WithoutAPlanOrAnAlgorithmStockRunsAtOnceAndIsCounted) {
  LadderCalls calls;
  EXPECT_EQ(RunStock(calls, kNoPlan, "batch size 7").code(), StatusCode::kUnsupported);
  int stocks = 0;
  calls.run_stock = [&stocks] {
    ++stocks;
    return Status::Ok();
  };
  for (const char* kind : {kNoPlan, kNoAlgorithm}) {
    const int64_t before = CountFallbacks(std::string(kind) + ": batch size 7");
    EXPECT_TRUE(RunStock(calls, kind, "batch size 7").ok());
    EXPECT_EQ(CountFallbacks(std::string(kind) + ": batch size 7"), before + 1);
  }
  EXPECT_EQ(stocks, 2);
}

}  // namespace
}  // namespace tf_interop
