// How a stage falls back when it cannot run as planned: every rung, by cause.
#include "cc_kernels/core/ladder.h"

#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/stage_fixture.h"

namespace tf_interop {
namespace {

constexpr char kPinned[] = "BUFFERED";

Stage Lanes(int count) { return StageOfLanes(count, MakeConvolution(), kPinned); }

size_t Sum(const std::vector<size_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), size_t{0});
}

// The workspace of one convolution.
size_t OfOne() { return MakeConvolution().result_elements() * sizeof(double); }

// `asked` gets the bytes of each attempt.
LesserStage Descend(Backend* backend, const Stage& stage, size_t available,
                    Problem* memory = nullptr, std::vector<size_t>* asked = nullptr) {
  LadderCalls calls;
  calls.get_workspaces = [&](const std::vector<size_t>& bytes, std::vector<void*>* places) {
    if (asked != nullptr) asked->push_back(Sum(bytes));
    if (Sum(bytes) > available) return false;
    if (memory != nullptr) *places = memory->NewWorkspaces(bytes);
    return true;
  };
  return FindForMemory(backend, stage, kAnyWorkspace, Prepared(backend, stage), calls);
}

Stage WithMergedLane(int lane_count) {
  Stage stage = Lanes(lane_count + 1);
  stage.lanes.resize(lane_count);
  stage.lanes.back().steps.push_back(lane_count);
  stage.lanes.back().merged = true;
  return stage;
}

TEST(LadderTest, UsesTheFirstRungWhoseWorkspacesFitAndComputesTheRightNumbers) {
  const struct {
    Stage stage;
    size_t available;
    Rung rung;
    size_t lanes;
    const char* algorithm;
  } cases[] = {
      // Joined filters and outputs go first; the algorithms stay.
      {WithMergedLane(1), OfOne(), Rung::kUnmerged, 1, kPinned},
      {WithMergedLane(2), 2 * OfOne(), Rung::kUnmerged, 2, kPinned},
      {Lanes(6), 3 * OfOne(), Rung::kFewerLanes, 3, kPinned},
      {Lanes(16), 2 * OfOne(), Rung::kFewerLanes, 2, kPinned},
      {Lanes(3), 2 * OfOne() - 1, Rung::kFewerLanesLeastWorkspace, 2, "DIRECT"},
      {Lanes(1), 0, Rung::kSequenceLeastWorkspace, 1, "DIRECT"},
      {StageOf(Lanes(6).steps, {0, 1, 2, 3, 4, 0}), 3 * OfOne(), Rung::kFewerLanes, 3, kPinned},
      {StageOf(Lanes(6).steps, {0, 1, 2, 3, 4, 0}), 0, Rung::kFewerLanesLeastWorkspace, 2,
       "DIRECT"},
  };
  for (const auto& each : cases) {
    HostBackend backend;
    Problem problem(each.stage);
    StageBuffers buffers = problem.Bind({});
    const LesserStage descent = Descend(&backend, each.stage, each.available, &problem);
    const PreparedStage& lesser = descent.stage;
    ASSERT_EQ(descent.rung, each.rung);
    EXPECT_EQ(lesser.lane_workspace_bytes.size(), each.lanes);
    const std::vector<std::string> algorithms = AlgorithmsOf(lesser);
    EXPECT_EQ(std::set<std::string>(algorithms.begin(), algorithms.end()),
              std::set<std::string>{each.algorithm});
    // Steps of a lane stay together, in order.
    std::vector<size_t> launched(lesser.steps.size());
    for (size_t i = 0; i < lesser.launches.size(); ++i) launched[lesser.launches[i].step] = i;
    for (const Lane& lane : each.stage.lanes) {
      EXPECT_EQ(lesser.steps[lane.steps.front()].lane, lesser.steps[lane.steps.back()].lane);
      EXPECT_LE(launched[lane.steps.front()], launched[lane.steps.back()]);
    }
    buffers.lane_workspaces = descent.lane_workspaces;
    const std::unique_ptr<HostStream> caller = NewCaller();
    ASSERT_TRUE(IsOk(RunStage(&backend, lesser, buffers, caller.get())));
    caller->Synchronize();
    problem.ExpectCorrect();
  }
}

// Always needs some workspace, as cuDNN does for transposed filters.
class Needing : public HostBackend {
 public:
  Status Prepare(const Convolution& convolution, const std::string&, const PrepareOptions& options,
                 std::shared_ptr<const PreparedConvolution>* prepared) override {
    std::shared_ptr<const PreparedConvolution> host;
    TF_INTEROP_RETURN_IF_ERROR(HostBackend::Prepare(convolution, "DIRECT", kAnyWorkspace, &host));
    *prepared = std::make_shared<Padded>(host, options.workspace_limit_bytes == 0 ? 1000 : 1500);
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

TEST(LadderTest, EveryRungNeedsLessThanTheOneBeforeAndStockIsTheLast) {
  Needing backend;
  EXPECT_EQ(Descend(&backend, Lanes(3), 1500).rung, Rung::kSequence)
      << "the plan's algorithms come before those that need least";
  std::vector<size_t> asked;
  EXPECT_EQ(Descend(&backend, Lanes(5), 0, nullptr, &asked).rung, Rung::kStock);
  EXPECT_EQ(asked, (std::vector<size_t>{4500, 3000, 2000, 1500, 1000}));
}

// A stage of three lanes, some of whose launches fail.
struct FailingCase {
  std::set<size_t> failing;  // launches; with `from`, also all after the first of them
  bool from = false;
  bool has_memory = true;
  bool joins = true;
  bool stock_runs = true;
  // Expected: the numbers of sequence and stock runs, and the rung unless the stage fails.
  int sequences = 0, stocks = 0;
  int rung = -1;
  std::vector<std::string> error = {};
};

TEST(LadderTest, AStageWhoseLaunchFailsRunsAgainOnTheFirstRungThatCanBeLaunched) {
  const int own = static_cast<int>(Rung::kSequenceOwnChoice);
  const int least = static_cast<int>(Rung::kSequenceLeastWorkspace);
  const int stock = static_cast<int>(Rung::kStock);
  const std::string first = "Convolution 'b' with algorithm BUFFERED: EXECUTION_FAILED";
  const FailingCase cases[] = {
      {{}, false, true, true, true, 0, 0},
      {{0}, false, true, true, true, 1, 0, own},
      {{1}, false, true, true, true, 1, 0, own},
      {{2}, false, true, true, true, 1, 0, own},
      {{1, 3}, false, true, true, true, 2, 0, least},
      {{0}, true, true, true, true, 2, 1, stock},
      {{1}, false, false, true, true, 2, 1, stock},
      {{1}, true, true, true, false, 2, 1, -1, {first, "stock failed"}},
      // Nothing runs while lanes may still write.
      {{2}, false, true, false, true, 0, 0, -1, {"EXECUTION_FAILED"}},
  };
  for (const FailingCase& each : cases) {
    SpyBackend backend;
    HostBackend host;
    const std::unique_ptr<HostStream> caller = NewCaller();
    backend.on_launch = [&](const PreparedConvolution&, const ConvolutionBuffers& buffers,
                            Stream stream) {
      const size_t call = backend.launched.size() - 1;
      const bool fails = each.from ? call >= *each.failing.begin() : each.failing.count(call) != 0;
      if (!fails) return Status::Ok();
      // Like a launch that got halfway.
      static_cast<HostStream*>(stream)->Enqueue(
          [buffers] { static_cast<float*>(buffers.result)[3] = -7.0f; });
      return Internal("EXECUTION_FAILED");
    };
    backend.on_wait = [&](Stream stream) {
      return stream == caller.get() && !each.joins ? Internal("no join") : Status::Ok();
    };
    backend.on_synchronize = [&] { return each.joins ? Status::Ok() : Internal("lost"); };
    const Stage stage = Lanes(3);
    const PreparedStage prepared = Prepared(&backend, stage);
    Problem problem(stage);
    const StageBuffers buffers = problem.Bind(prepared.lane_workspace_bytes);
    int sequences = 0, stocks = 0;
    LadderCalls calls;
    calls.get_workspaces = [&](const std::vector<size_t>& bytes, std::vector<void*>* places) {
      ++sequences;
      if (each.has_memory) *places = problem.NewWorkspaces(bytes);
      return each.has_memory;
    };
    calls.run_stock = [&]() -> Status {
      ++stocks;
      if (!each.stock_runs) return Internal("stock failed");
      return RunStage(&host, Prepared(&host, InSequence(stage), {0}),
                      {buffers.steps, {nullptr}, {}}, caller.get());
    };
    const auto count = [](const char* rung) {
      return CountFallbacks(std::string("ran again: ") + rung + ": ");
    };
    std::vector<int64_t> before;
    for (const char* rung : kRungNames) before.push_back(count(rung));
    const Status status =
        RunOrDescend(&backend, stage, kAnyWorkspace, prepared, buffers, caller.get(), calls);
    caller->Synchronize();
    EXPECT_EQ(sequences, each.sequences);
    EXPECT_EQ(stocks, each.stocks);
    for (int i = 0; i < static_cast<int>(std::size(kRungNames)); ++i) {
      EXPECT_EQ(count(kRungNames[i]) - before[i], i == each.rung ? 1 : 0) << kRungNames[i];
    }
    if (each.error.empty()) {
      EXPECT_TRUE(IsOk(status));
      problem.ExpectCorrect();
    } else {
      EXPECT_TRUE(IsError(status, StatusCode::kInternal, each.error));
    }
  }
}

TEST(LadderTest, AMergedLaneThatFailsRunsAgainUnmergedWithoutItsJoinedFilter) {
  SpyBackend backend;
  backend.on_launch = [&](const PreparedConvolution&, const ConvolutionBuffers&, Stream) {
    return backend.launched.size() == 1 ? Internal("EXECUTION_FAILED") : Status::Ok();
  };
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 2});
  const Stage stage = MergedStage(parts, kPinned);
  const PreparedStage prepared = Prepared(&backend, stage);
  ASSERT_EQ(prepared.merged.size(), 1u);
  Problem problem(parts, /*share_image=*/true);
  StageBuffers buffers = problem.Bind(prepared.lane_workspace_bytes);
  buffers.joined_filters = {
      problem.NewBuffer(prepared.merged[0].merge.joined_filter_bytes()).data()};
  LadderCalls calls;
  calls.get_workspaces = [&](const std::vector<size_t>& bytes, std::vector<void*>* places) {
    *places = problem.NewWorkspaces(bytes);
    return true;
  };
  const std::unique_ptr<HostStream> caller = NewCaller();
  EXPECT_TRUE(
      IsOk(RunOrDescend(&backend, stage, kAnyWorkspace, prepared, buffers, caller.get(), calls)));
  caller->Synchronize();
  problem.ExpectCorrect();
}

}  // namespace
}  // namespace tf_interop
