// Measuring stages on the host backend: lanes beside sequences, merged lanes, and failures.
#include "cc_kernels/core/measure_stage.h"

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
#include "tests/cc/convolution_cases.h"
#include "tests/cc/measure_fixture.h"
#include "tests/cc/reference_convolution.h"

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
