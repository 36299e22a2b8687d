// Stream priorities and SM partitions of lanes, on stand-ins for libcuda and libcudnn: what the
// device gives, what is kept, what is refused and left over, and stages that run with it.
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc_kernels/core/cudnn/cuda_driver.h"
#include "cc_kernels/core/cudnn/cudnn_backend.h"
#include "cc_kernels/core/cudnn/sm_partition.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/cudnn_backend_fixture.h"
#include "tests/cc/fake_cuda.h"
#include "tests/cc/fake_cudnn.h"
#include "tests/cc/is_error.h"

namespace tf_interop {
namespace {

constexpr int kUnlimited = 1 << 30;

StreamGroupOptions OnSms(const std::vector<int>& partition, int index, int priority = 0) {
  StreamGroupOptions options;
  options.partition = partition;
  options.partition_index = index;
  options.priority = priority;
  return options;
}

StreamGroupOptions Priority(int priority) { return OnSms({}, 0, priority); }

// A stream group that goes back to the pool with its last owner.
using Lease = std::shared_ptr<StreamGroup>;

CUstream StreamOf(const Lease& group) { return static_cast<CUstream>(group->stream()); }

// How many times lanes have run without their options, for a reason with `part` in it.
int64_t CountRefusals(const std::string& part) {
  int64_t count = 0;
  for (const auto& [reason, times] : ReadCounters().refused_lane_options) {
    if (reason.find(part) != std::string::npos) count += times;
  }
  return count;
}

class LaneOptionsTest : public CudnnBackendTest {
 protected:
  void SetUp() override {
    CudnnBackendTest::SetUp();
#if CUDA_VERSION < 12050
    GTEST_SKIP() << "the headers of this CUDA have no green contexts";
#endif
    green_contexts_before_ = FakeCudaCounts().live_green_contexts;
    streams_before_ = FakeCudaCounts().live_streams;
    events_before_ = FakeCudaCounts().live_events;
  }

  void TearDown() override {
    FakeCudaCounts().green_contexts_left = FakeCudaCounts().streams_left = kUnlimited;
    CudnnBackendTest::TearDown();
  }

  CudnnBackend* BackendOf(CUcontext context) {
    caller_ = FakeCudaMakeStream(context);
    CudnnBackend* backend = nullptr;
    const Status status = CudnnBackend::ForStream(caller_, &backend);
    EXPECT_TRUE(status.ok()) << status.message();
    return backend;
  }

  Lease AcquireOk(const StreamGroupOptions& options) {
    std::unique_ptr<StreamGroup> group;
    const Status status = backend_->Acquire(options, &group);
    EXPECT_TRUE(status.ok()) << status.message();
    return Lease(group.release(), [backend = backend_](StreamGroup* leased) {
      backend->Release(std::unique_ptr<StreamGroup>(leased));
    });
  }

  Status AcquireError(const StreamGroupOptions& options) {
    std::unique_ptr<StreamGroup> group;
    const Status status = backend_->Acquire(options, &group);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(group, nullptr);
    return status;
  }

  int GreenContexts() const {
    return FakeCudaCounts().live_green_contexts - green_contexts_before_;
  }
  int Streams() const { return FakeCudaCounts().live_streams - streams_before_; }
  int Events() const { return FakeCudaCounts().live_events - events_before_; }

 private:
  int green_contexts_before_ = 0, streams_before_ = 0, events_before_ = 0;
};

TEST_F(LaneOptionsTest, RoundsCountsUpAndReportsWhatTheDeviceGives) {
  const std::vector<int> counts = {57, 8, 0};
  const auto first = AcquireOk(OnSms(counts, 0));
  const auto second = AcquireOk(OnSms(counts, 1));
  const auto rest = AcquireOk(OnSms(counts, 2));
  EXPECT_EQ(first->sm_count(), 64);
  EXPECT_EQ(second->sm_count(), 8);
  EXPECT_EQ(rest->sm_count(), 60);  // the four that make no whole group among them
  EXPECT_EQ(FakeCudaSmsOf(StreamOf(first)), std::make_pair(0, 63));
  EXPECT_EQ(FakeCudaSmsOf(StreamOf(second)), std::make_pair(64, 71));
  EXPECT_EQ(FakeCudaSmsOf(StreamOf(rest)), std::make_pair(72, 131));
  EXPECT_EQ(AcquireOk({})->sm_count(), 0);
}

TEST_F(LaneOptionsTest, FollowsTheGranularityOfTheDevice) {
  FakeCuda().sm_count = 30;
  FakeCuda().sm_granularity = 4;
  EXPECT_EQ(AcquireOk(OnSms({5, 0}, 0))->sm_count(), 8);
  EXPECT_EQ(AcquireOk(OnSms({5, 0}, 1))->sm_count(), 22);
  EXPECT_EQ(AcquireOk(OnSms({28, 0}, 1))->sm_count(), 2);
}

TEST_F(LaneOptionsTest, LanesWithoutACountShareWhatIsLeft) {
  const std::vector<int> counts = {0, 16, 0};
  const auto first = AcquireOk(OnSms(counts, 0));
  const auto last = AcquireOk(OnSms(counts, 2));
  EXPECT_NE(first->stream(), last->stream());
  EXPECT_EQ(first->sm_count(), 116);
  EXPECT_EQ(FakeCudaSmsOf(StreamOf(first)), FakeCudaSmsOf(StreamOf(last)));
  EXPECT_EQ(GreenContexts(), 2);
}

TEST_F(LaneOptionsTest, MakesAPartitionOnceAndKeepsItsStreams) {
  auto group = AcquireOk(OnSms({60, 64}, 0));
  const Stream stream = group->stream();
  EXPECT_EQ(GreenContexts(), 2);
  group.reset();
  auto other_lane = AcquireOk(OnSms({60, 64}, 1));
  EXPECT_NE(other_lane->stream(), stream);
  auto plain = AcquireOk({});
  EXPECT_NE(plain->stream(), stream);
  group = AcquireOk(OnSms({60, 64}, 0));
  EXPECT_EQ(group->stream(), stream);
  EXPECT_EQ(GreenContexts(), 2);
  EXPECT_EQ(Streams(), 3);
}

TEST_F(LaneOptionsTest, RefusesCountsThatDoNotFitOnceRoundedUp) {
  EXPECT_TRUE(IsError(AcquireError(OnSms({60, 65}, 0)), StatusCode::kUnsupported,
                      {"[60, 65]", "[64, 72]", "groups of 8", "132 SMs in 16"}));
  EXPECT_EQ(AcquireError(OnSms({2147483647, 0}, 1)).code(), StatusCode::kUnsupported);
  EXPECT_EQ(GreenContexts(), 0);
}

TEST_F(LaneOptionsTest, RefusesToLeaveNothingForALaneWithoutACount) {
  FakeCuda().sm_count = 128;
  EXPECT_EQ(AcquireOk(OnSms({64, 64}, 1))->sm_count(), 64);
  EXPECT_EQ(AcquireError(OnSms({64, 64, 0}, 0)).code(), StatusCode::kUnsupported);
}

TEST_F(LaneOptionsTest, RefusesAPlaceThatThePartitionDoesNotHave) {
  EXPECT_EQ(AcquireError(OnSms({64, 0}, 2)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(AcquireError(OnSms({64, 0}, -1)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(AcquireError(OnSms({64, -8}, 0)).code(), StatusCode::kInvalidArgument);
}

TEST_F(LaneOptionsTest, NamesTheEntryPointsThatADriverLacks) {
  CudaDriver driver;
  const Status opened = CudaDriver::Open(DRIVER_WITHOUT_GREEN_CONTEXTS, &driver);
  ASSERT_TRUE(opened.ok()) << opened.message();
  std::unique_ptr<SmPartition> partition;
  EXPECT_TRUE(IsError(SmPartition::Create(driver, context_, {8, 0}, &partition),
                      StatusCode::kUnsupported,
                      {"cuGreenCtxCreate", "cuDevSmResourceSplitByCount", "newer NVIDIA"}));
}

TEST_F(LaneOptionsTest, RefusesAGpuWithoutGreenContextsOnceAndForAll) {
  FakeCuda().no_green_contexts = true;
  const Status status = AcquireError(OnSms({8, 0}, 0));
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  FakeCuda().no_green_contexts = false;
  EXPECT_EQ(AcquireError(OnSms({8, 0}, 1)).message(), status.message());
}

TEST_F(LaneOptionsTest, RefusesAContextThatIsNotThePrimaryOne) {
  backend_ = BackendOf(FakeCudaMakeSecondContext(context_));
  EXPECT_TRUE(
      IsError(AcquireError(OnSms({8, 0}, 0)), StatusCode::kUnsupported, {"primary context"}));
}

TEST_F(LaneOptionsTest, LackOfMemoryHalfwayLeavesNothingAndIsTriedAnew) {
  FakeCudaCounts().green_contexts_left = 2;
  const Status status = AcquireError(OnSms({8, 8, 0}, 0));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(GreenContexts(), 0);
  FakeCudaCounts().green_contexts_left = kUnlimited;
  EXPECT_EQ(AcquireOk(OnSms({8, 8, 0}, 0))->sm_count(), 8);
}

TEST_F(LaneOptionsTest, AGroupThatCannotBeMadeLeavesNoStreamsAndEvents) {
  const auto another = AcquireOk(OnSms({8, 0}, 0, -1));
  ASSERT_EQ(Streams(), 1);
  ASSERT_EQ(Events(), 2);
  FakeCudaCounts().streams_left = 0;
  EXPECT_EQ(AcquireError(OnSms({8, 0}, 0)).code(), StatusCode::kResourceExhausted);
  FakeCudaCounts().streams_left = kUnlimited;
  FakeCudnn().fail_handle = true;
  EXPECT_FALSE(AcquireError(OnSms({8, 0}, 1)).ok());
  EXPECT_EQ(Streams(), 1);
  EXPECT_EQ(Events(), 2);
}

TEST_F(LaneOptionsTest, ClampsPrioritiesToWhatTheDeviceHas) {
  auto highest = AcquireOk(Priority(-100));
  EXPECT_EQ(FakeCudaPriorityOf(StreamOf(highest)), -5);
  EXPECT_EQ(FakeCudaPriorityOf(StreamOf(AcquireOk(Priority(-2)))), -2);
  EXPECT_EQ(FakeCudaPriorityOf(StreamOf(AcquireOk(Priority(7)))), 0);
  EXPECT_EQ(FakeCudaPriorityOf(StreamOf(AcquireOk(OnSms({8, 0}, 1, -3)))), -3);
  const Stream stream = highest->stream();
  highest.reset();
  EXPECT_NE(AcquireOk(Priority(-4))->stream(), stream);
  EXPECT_EQ(AcquireOk(Priority(-5))->stream(), stream);
}

// Three convolutions, the last of which has a result that is filled with zeros.
std::vector<Convolution> ThreeConvolutions() {
  Convolution gradient = MakeConvolution(ConvolutionKind::kBackwardFilter);
  gradient.batch = 0;
  return {MakeConvolution(), MakeConvolution(), gradient};
}

TEST_F(LaneOptionsTest, AStageOnAPartitionIsForkedAndJoined) {
  FakeCuda().lane_delay_us = 200;
  const int64_t refusals = CountRefusals("");
  RunStageOnce(backend_, caller_, ThreeConvolutions(), {{-5, 64}, {0, 8}, {0, 0}});
  EXPECT_EQ(CountRefusals(""), refusals);
  EXPECT_EQ(GreenContexts(), 3);
  EXPECT_EQ(Streams(), 3) << "one for each lane";
  EXPECT_EQ(FakeCudaPriorityOf(StreamOf(AcquireOk(OnSms({64, 8, 0}, 0, -5)))), -5);
  EXPECT_EQ(Streams(), 3) << "they are back";
}

TEST_F(LaneOptionsTest, ThreadsTakeTurnsOnAPartition) {
  FakeCuda().lane_delay_us = 20;
  const int64_t refusals = CountRefusals("");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      CUstream caller = FakeCudaMakeStream(context_);
      for (int round = 0; round < 20; ++round) {
        RunStageOnce(backend_, caller, ThreeConvolutions(), {{0, 64}, {-1, 0}, {0, 0}});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(CountRefusals(""), refusals);
  EXPECT_EQ(GreenContexts(), 2);
}

TEST_F(LaneOptionsTest, AStageWhosePartitionDoesNotFitRunsWithoutAndIsCounted) {
  FakeCuda().lane_delay_us = 200;
  const int64_t refusals = CountRefusals("[128, 8, 0]");
  RunStageOnce(backend_, caller_, ThreeConvolutions(), {{0, 128}, {0, 8}, {0, 0}});
  RunStageOnce(backend_, caller_, ThreeConvolutions(), {{0, 128}, {0, 8}, {0, 0}});
  EXPECT_EQ(CountRefusals("[128, 8, 0]"), refusals + 2);
  EXPECT_EQ(GreenContexts(), 0);
}

TEST_F(LaneOptionsTest, AStageWhoseGroupsCannotAllBeMadeReturnsThemAndRunsWithout) {
  {
    const Lease plain[] = {AcquireOk({}), AcquireOk({}), AcquireOk({})};
  }
  FakeCudaCounts().streams_left = 1;
  const int64_t refusals = CountRefusals("OUT_OF_MEMORY");
  RunStageOnce(backend_, caller_, ThreeConvolutions(), {{0, 64}, {0, 8}, {0, 0}});
  EXPECT_EQ(CountRefusals("OUT_OF_MEMORY"), refusals + 1);
  EXPECT_EQ(Streams(), 4);
  // The one that could be made is in the pool.
  EXPECT_EQ(AcquireOk(OnSms({64, 8, 0}, 0))->sm_count(), 64);
}

// As where TensorFlow holds all memory: a cuDNN handle needs some of its own.
TEST_F(LaneOptionsTest, AStageThatHasTooFewHandlesRunsInSequence) {
  {
    const Lease of_prepare = AcquireOk(StreamGroupOptions::OnCallerStream());
  }
  const int streams = Streams();
  FakeCudnn().fail_handle = true;
  RunStageOnce(backend_, caller_, ThreeConvolutions(), {});
  RunStageOnce(backend_, caller_, ThreeConvolutions(), {{0, 64}, {0, 8}, {0, 0}});
  EXPECT_EQ(Streams(), streams);
}

TEST_F(LaneOptionsTest, AStageThatHasNoGroupAtAllFails) {
  const PreparedStage stage =
      Prepared(backend_, WithOptions(StageOfLanes(2, MakeConvolution()), {{0, 8}, {0, 0}}),
               {kAmpleWorkspace});
  const Lease of_prepare = AcquireOk(StreamGroupOptions::OnCallerStream());
  const int streams = Streams();
  FakeCudnn().fail_handle = true;
  const StageBuffers buffers = {
      std::vector<ConvolutionBuffers>(2), std::vector<void*>(2), {}, nullptr};
  const Status status = RunStage(backend_, stage, buffers, caller_);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(Streams(), streams);
}

}  // namespace
}  // namespace tf_interop
