// Measuring stages on the host backend: lanes beside sequences, merged lanes, and failures.
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

#include "cc_kernels/core/host/host_backend.h"
#include "cc_kernels/core/measure/stage.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/measure_fixture.h"
#include "tests/cc/reference_convolution.h"
#include "tests/cc/stage_fixture.h"

namespace tf_interop {
namespace {

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

// Steps with algorithms, each on a lane of its own.
Stage SideBySide(const std::vector<std::pair<Convolution, std::string>>& steps) {
  Stage stage;
  for (const auto& [convolution, algorithm] : steps) {
    stage.lanes.push_back({{stage.steps.size()}});
    const std::string name(1, static_cast<char>('a' + stage.steps.size()));
    stage.steps.push_back({name, convolution, algorithm, nullptr});
  }
  return stage;
}

StageMeasurement Measured(MeasuringDevice* device, const StageRequest& request,
                          const MeasureOptions& options = FewRuns()) {
  StageMeasurement measured;
  const Status status = MeasureStage(device, request, options, &measured);
  EXPECT_TRUE(status.ok()) << status.message();
  return measured;
}

// Checks that the request is refused, before anything runs.
void ExpectRefusal(CountingDevice* device, const StageRequest& request, StatusCode code,
                   const std::string& words) {
  StageMeasurement measured;
  const Status status = MeasureStage(device, request, FewRuns(), &measured);
  EXPECT_EQ(status.code(), code);
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  EXPECT_EQ(device->sections, 0);
}

using Names = std::vector<std::string>;

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
  StageMeasurement measured =
      Measured(&device, {SideBySide({{c, "DIRECT"}, {c, "IM2COL_GEMM"}}), {"DIRECT", "DIRECT"}});
  EXPECT_EQ(most, 2);
  EXPECT_GE(measured.same_sequential.median_us, 40e3);
  EXPECT_GE(measured.sequential.median_us, 40e3);
  EXPECT_GE(measured.concurrent.median_us, 20e3);
  EXPECT_GE(measured.concurrent.spread_us, 0);
  EXPECT_EQ(measured.algorithms, (Names{"DIRECT", "IM2COL_GEMM"}));
  EXPECT_EQ(measured.sequential_algorithms, (Names{"DIRECT", "DIRECT"}));
  EXPECT_EQ(device.sections, 12);  // three ways, one warm-up and three repetitions

  most = 0;
  Measured(&device, {InSequence(SideBySide({{c, "DIRECT"}, {c, "DIRECT"}})), {}});
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
      if (prepared.algorithm() == "DIRECT") {
        static_cast<HostStream*>(stream)->Enqueue([] {
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
          return Status::Ok();
        });
      }
      return HostBackend::Launch(prepared, buffers, workspace, group, stream);
    }
  } backend;
  CountingDevice device(&backend);
  const StageMeasurement measured =
      Measured(&device, {SideBySide({{c, "IM2COL_GEMM"}, {slow, ""}}), {"", "DIRECT"}});
  EXPECT_EQ(measured.algorithms, (Names{"IM2COL_GEMM", "IM2COL_GEMM"}));
  EXPECT_EQ(measured.sequential_algorithms, (Names{"IM2COL_GEMM", "DIRECT"}));
  EXPECT_GE(measured.sequential.median_us, 30e3);
  EXPECT_LT(measured.same_sequential.median_us, 30e3);
  EXPECT_LT(measured.concurrent.median_us, 30e3);
}

TEST(MeasureStageTest, OneTimeServesWhereBothSequencesAreTheSame) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  const Stage stage = SideBySide({{c, "DIRECT"}, {c, ""}});
  for (const Names& others : {Names(), Names{"DIRECT", "IM2COL_GEMM"}}) {
    device.sections = 0;
    const StageMeasurement measured = Measured(&device, {stage, others});
    EXPECT_EQ(device.sections, 8);
    EXPECT_EQ(measured.sequential.median_us, measured.same_sequential.median_us);
    EXPECT_EQ(measured.sequential_algorithms, measured.algorithms);
  }
}

TEST(MeasureStageTest, LanesGetTheirOptionsAndSayHowManySmsTheyGot) {
  PartitioningBackend backend;
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  const Stage stage = SideBySide({{c, ""}, {c, ""}});
  EXPECT_EQ(Measured(&device, {WithOptions(stage, {{-1, 12}, {-3, 20}}), {}}).sm_counts,
            (std::vector<int>{16, 24}));
  EXPECT_EQ(backend.priorities, (std::set<int>{-3, -1, 0}));  // 0: of the sequences
  EXPECT_EQ(backend.leased, 0);
  EXPECT_TRUE(Measured(&device, {WithOptions(stage, {{-1, 0}, {-3, 0}}), {}}).sm_counts.empty());

  backend.refuses_partitions = true;
  device.sections = 0;
  ExpectRefusal(&device, {WithOptions(stage, {{0, 12}, {0, 20}}), {}}, StatusCode::kUnsupported,
                "no partitions here");
  EXPECT_EQ(backend.leased, 0);
}

// It would run in sequence, and be taken for a stage that does not overlap.
TEST(MeasureStageTest, AStageWhoseLanesHaveNoGroupsIsNotMeasured) {
  PartitioningBackend backend;
  backend.most_groups = 1;
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  const Stage stage = SideBySide({{c, ""}, {c, ""}, {c, ""}});
  for (const Stage& each : {stage, WithOptions(stage, {{-1, 0}, {0, 0}, {0, 0}})}) {
    ExpectRefusal(&device, {each, {}}, StatusCode::kResourceExhausted, "no more groups");
    EXPECT_EQ(backend.leased, 0);
  }
}

TEST(MeasureStageTest, WorkspacesOfLanesAddUpAndStepsOfALaneShareIt) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  const Step gemm = {"a", c, "IM2COL_GEMM", nullptr};
  std::shared_ptr<const PreparedConvolution> prepared;
  ASSERT_TRUE(backend.Prepare(c, "IM2COL_GEMM", kAnyWorkspace, &prepared).ok());
  EXPECT_EQ(Measured(&device, {StageOf({gemm, gemm, gemm}, {0, 0, 1}), {}}).workspace_bytes,
            2 * static_cast<int64_t>(prepared->workspace_bytes()));
}

TEST(MeasureStageTest, ASequenceMayNeedMoreWorkspaceThanTheLanes) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  Convolution large = c;
  large.batch *= 4;
  const StageMeasurement measured = Measured(
      &device,
      {SideBySide({{c, "DIRECT"}, {large, "IM2COL_GEMM"}}), {"IM2COL_GEMM", "IM2COL_GEMM"}});
  std::shared_ptr<const PreparedConvolution> direct, gemm;
  ASSERT_TRUE(backend.Prepare(c, "DIRECT", kAnyWorkspace, &direct).ok());
  ASSERT_TRUE(backend.Prepare(large, "IM2COL_GEMM", kAnyWorkspace, &gemm).ok());
  EXPECT_EQ(measured.workspace_bytes,
            static_cast<int64_t>(direct->workspace_bytes() + gemm->workspace_bytes()));
  // Lane 0 on its own needs less; the sequence runs there.
  EXPECT_EQ(std::count(device.sizes.begin(), device.sizes.end(), gemm->workspace_bytes()), 2);
}

// Notes how many output channels are computed, and from which images.
class MergeNotingBackend : public HostBackend {
 public:
  MergeNotingBackend() : HostBackend(SerialFor) {}
  Status Prepare(const Convolution& convolution, const std::string& algorithm,
                 const PrepareOptions& options,
                 std::shared_ptr<const PreparedConvolution>* prepared) override {
    TF_INTEROP_RETURN_IF_ERROR(HostBackend::Prepare(convolution, algorithm, options, prepared));
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

// `c` once with 6 and once with 2 output channels, on one merged lane, and others beside it.
Stage Merging(const Convolution& c, const std::string& algorithm, size_t other_count = 0) {
  Convolution narrow = c;
  narrow.output_channels = 2;
  Stage stage = SideBySide({{c, algorithm}, {narrow, algorithm}});
  stage.lanes = {{{0, 1}, 0, 0, true}};
  if (other_count > 0) stage.lanes.emplace_back();
  for (size_t i = 0; i < other_count; ++i) {
    stage.lanes[1].steps.push_back(stage.steps.size());
    stage.steps.push_back({"other", c, "", nullptr});
  }
  return stage;
}

MeasureOptions OneRun() {
  MeasureOptions options = FewRuns();
  options.warmup_runs = 0;
  options.repetitions = 1;
  return options;
}

TEST(MeasureStageTest, AMergedLaneIsMeasuredBesideItsConvolutionsInSequence) {
  MergeNotingBackend backend;
  CountingDevice device(&backend);
  const Stage stage = Merging(MakeConvolution(), "IM2COL_GEMM");
  const StageMeasurement measured = Measured(&device, {stage, {"DIRECT", "DIRECT"}}, OneRun());
  EXPECT_EQ(backend.launched, (std::vector<int64_t>{8, 6, 2, 6, 2}));
  EXPECT_EQ(backend.images.size(), 1u);
  EXPECT_EQ(measured.algorithms, (Names{"IM2COL_GEMM", "IM2COL_GEMM"}));
  EXPECT_EQ(measured.sequential_algorithms, (Names{"DIRECT", "DIRECT"}));
  EXPECT_EQ(measured.workspace_bytes,
            static_cast<int64_t>(Prepared(&backend, stage).merged[0].merge.workspace_bytes()));
}

TEST(MeasureStageTest, ConvolutionsOfOtherLanesHaveImagesOfTheirOwn) {
  MergeNotingBackend backend;
  CountingDevice device(&backend);
  Measured(&device, {Merging(MakeConvolution(), "", 2), {}}, OneRun());
  EXPECT_EQ(backend.images.size(), 3u);
}

// An algorithm for the wider convolution alone: in sequence the backend chooses.
TEST(MeasureStageTest, AnAlgorithmForTheWiderConvolutionAloneCanBeMeasured) {
  class WideOnly : public MergeNotingBackend {
   public:
    Status Prepare(const Convolution& convolution, const std::string& algorithm,
                   const PrepareOptions& options,
                   std::shared_ptr<const PreparedConvolution>* prepared) override {
      if (algorithm == "DIRECT" && convolution.output_channels < 8) return Unsupported("narrow");
      return MergeNotingBackend::Prepare(convolution, algorithm, options, prepared);
    }
  } backend;
  CountingDevice device(&backend);
  const StageMeasurement measured = Measured(&device, {Merging(MakeConvolution(), "DIRECT"), {}});
  EXPECT_EQ(measured.algorithms, (Names{"DIRECT", "DIRECT"}));
  EXPECT_EQ(measured.sequential_algorithms, (Names{"IM2COL_GEMM", "IM2COL_GEMM"}));
}

TEST(MeasureStageTest, ALaneThatCannotBeMergedIsAFailureWithItsReason) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  Stage misfits = Merging(MakeConvolution(), "");
  misfits.steps[1].convolution.filter_width = 1;
  CompleteSame(&misfits.steps[1].convolution);
  Stage algorithms = Merging(MakeConvolution(), "");
  algorithms.steps[1].algorithm = "DIRECT";
  const Stage alone = WithOptions(SideBySide({{MakeConvolution(), ""}}), {kMergedLane});
  for (const Stage& stage : {misfits, algorithms, Merging(MakeConvolution(), "FFT")}) {
    ExpectRefusal(&device, {stage, {}}, StatusCode::kUnsupported, "'a', 'b' merged");
  }
  ExpectRefusal(&device, {alone, {}}, StatusCode::kUnsupported, "'a' merged");
}

TEST(MeasureStageTest, APinThatCannotBeHadIsAFailureWithItsReason) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  const Convolution c = MakeConvolution();
  for (const StageRequest& request :
       {StageRequest{SideBySide({{c, ""}, {c, "FFT"}}), {}},
        StageRequest{SideBySide({{c, ""}, {c, "DIRECT"}}), {"", "FFT"}}}) {
    ExpectRefusal(&device, request, StatusCode::kUnsupported, "'b' with algorithm FFT");
  }
}

TEST(MeasureStageTest, AShortageOfMemoryIsToldFromAnAlgorithmThatCannotRun) {
  class ShortBackend : public HostBackend {
   public:
    ShortBackend() : HostBackend(SerialFor) {}
    Status Prepare(const Convolution& convolution, const std::string& algorithm,
                   const PrepareOptions& options,
                   std::shared_ptr<const PreparedConvolution>* prepared) override {
      if (algorithm == "DIRECT") return ResourceExhausted("no memory for a plan");
      return HostBackend::Prepare(convolution, algorithm, options, prepared);
    }
  } backend;
  CountingDevice device(&backend);
  ExpectRefusal(&device, {SideBySide({{MakeConvolution(), "DIRECT"}}), {}},
                StatusCode::kResourceExhausted, "no memory for a plan");
}

TEST(MeasureStageTest, RefusesWithAReason) {
  HostBackend backend(SerialFor);
  CountingDevice device(&backend);
  const Stage one = SideBySide({{MakeConvolution(), ""}});
  Stage nowhere = one;
  nowhere.lanes.emplace_back();
  Stage empty = one;
  empty.steps[0].convolution.batch = 0;
  for (const auto& [request, words] :
       std::vector<std::pair<StageRequest, std::string>>{{{}, "got none"},
                                                         {{nowhere, {}}, "lane 1"},
                                                         {{empty, {}}, "compute"},
                                                         {{one, {"DIRECT", "DIRECT"}}, "got 2"}}) {
    ExpectRefusal(&device, request, StatusCode::kInvalidArgument, words);
  }
}

}  // namespace
}  // namespace tf_interop
