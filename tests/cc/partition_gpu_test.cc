// Lanes with stream priorities and SM partitions on a GPU: what the device gives for the counts
// that are asked for, and the stream contract with them. Skips, and says so, where there is no GPU
// or no green contexts.
#include <gtest/gtest.h>

#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/measure/cuda_device.h"
#include "cc_kernels/core/stage_runner.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/convolution_problem.h"
#include "tests/cc/reference_convolution.h"
#include "tests/cc/stage_fixture.h"

namespace tf_interop {
namespace {

constexpr size_t kAmpleWorkspace = size_t{256} << 20;
constexpr Tolerance kTolerance = {2e-3, 5e-3};
constexpr int kRounds = 25;

// Host memory, filled with bytes that read as NaN.
class HostBuffer {
 public:
  explicit HostBuffer(size_t bytes) : bytes_(bytes, 0xFF) {}
  unsigned char* data() { return bytes_.data(); }
  const unsigned char* data() const { return bytes_.data(); }
  bool IsIntact() const { return true; }

 private:
  std::vector<unsigned char> bytes_;
};

using Problem = ConvolutionProblem<HostBuffer>;

// Made once: its stream lives until the process ends.
Status FindDevice(MeasuringDevice** device) {
  struct Found {
    Found() : status(CudaMeasuringDevice::Create(&device)) {}
    std::unique_ptr<CudaMeasuringDevice> device;
    Status status;
  };
  static const Found* const found = new Found();
  *device = found->device.get();
  return found->status;
}

class PartitionGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    const Status status = FindDevice(&device_);
    if (!status.ok()) GTEST_SKIP() << "no GPU: " << status.message();
    backend_ = device_->backend();
    std::vector<int> given;
    const Status divided = Divide({1, 0}, &given);
    if (divided.code() == StatusCode::kUnsupported) GTEST_SKIP() << divided.message();
    ASSERT_TRUE(divided.ok()) << divided.message();
    granularity_ = given[0];
    sm_count_ = given[0] + given[1];
  }

  void TearDown() override {
    for (void* data : allocated_) device_->Free(data);
  }

  // What each lane gets for these counts.
  Status Divide(const std::vector<int>& counts, std::vector<int>* given) {
    for (size_t lane = 0; lane < counts.size(); ++lane) {
      StreamGroupOptions options;
      options.partition = counts;
      options.partition_index = static_cast<int>(lane);
      std::unique_ptr<StreamGroup> group;
      TF_INTEROP_RETURN_IF_ERROR(backend_->Acquire(options, &group));
      given->push_back(group->sm_count());
      backend_->Release(std::move(group));
    }
    return Status::Ok();
  }

  void* Allocate(size_t bytes) {
    void* data = nullptr;
    EXPECT_TRUE(device_->Allocate(bytes == 0 ? 1 : bytes, &data).ok());
    allocated_.push_back(data);
    return data;
  }

  void* AllocateCopy(const void* from, size_t bytes) {
    void* data = Allocate(bytes);
    EXPECT_TRUE(device_->CopyToDevice(from, bytes, data).ok());
    return data;
  }

  // Runs a stage of one convolution for each lane, all on one image that the caller's stream
  // overwrites just after, and compares every element. Then the same for zeros that the caller's
  // stream writes just before.
  void ExpectStageIsRight(const std::vector<LaneOptions>& lanes) {
    Convolution c = MakeConvolution();
    c.image_height = c.image_width = 56;
    c.image_channels = c.output_channels = 64;
    CompleteSame(&c);
    const Stage planned = StageOfLanes(static_cast<int>(lanes.size()), c);
    const PreparedStage stage = Prepared(backend_, WithOptions(planned, lanes), {kAmpleWorkspace});

    Problem problem(c);
    HostBuffer poison = problem.MakeResult(), host_result = problem.MakeResult();
    const ConvolutionBuffers host = problem.Buffers(&host_result);
    const size_t image_bytes = c.image_elements() * sizeof(float);
    const size_t result_bytes = c.result_elements() * sizeof(float);
    void* image = Allocate(image_bytes);
    const void* filter = AllocateCopy(host.inputs[1], c.filter_elements() * sizeof(float));
    StageBuffers buffers;
    for (const size_t bytes : stage.lane_workspace_bytes) {
      buffers.steps.push_back({{image, filter, nullptr}, Allocate(result_bytes)});
      buffers.lane_workspaces.push_back(Allocate(bytes));
    }
    const HostBuffer nan_image(image_bytes);
    for (int round = 0; round < kRounds; ++round) {
      for (const bool is_zero : {false, true}) {
        for (const ConvolutionBuffers& each : buffers.steps) {
          ASSERT_TRUE(device_->CopyToDevice(poison.data(), result_bytes, each.result).ok());
        }
        const void* content = is_zero ? nan_image.data() : host.inputs[0];
        ASSERT_TRUE(device_->CopyToDevice(content, image_bytes, image).ok());
        if (is_zero) FillWithZeros(image, image_bytes);
        const Status run = RunStage(backend_, stage, buffers, device_->stream());
        ASSERT_TRUE(run.ok()) << run.message();
        if (!is_zero) FillWithZeros(image, image_bytes);
        for (const ConvolutionBuffers& each : buffers.steps) {
          ASSERT_TRUE(device_->CopyFromDevice(each.result, result_bytes, host_result.data()).ok());
          if (is_zero) {
            ASSERT_EQ(std::vector<float>(c.result_elements(), 0.0f), Floats(host_result, c));
          } else {
            problem.ExpectCorrect(&host_result, kTolerance);
          }
          if (HasFatalFailure()) return;
        }
      }
    }
  }

  void FillWithZeros(void* data, size_t bytes) {
    ASSERT_TRUE(backend_->FillZero(data, bytes, device_->stream()).ok());
  }

  static std::vector<float> Floats(const HostBuffer& buffer, const Convolution& c) {
    std::vector<float> values(c.result_elements());
    std::memcpy(values.data(), buffer.data(), values.size() * sizeof(float));
    return values;
  }

  MeasuringDevice* device_ = nullptr;
  Backend* backend_ = nullptr;
  int granularity_ = 0, sm_count_ = 0;

 private:
  std::vector<void*> allocated_;
};

TEST_F(PartitionGpuTest, GivesNoLaneLessThanItAskedFor) {
  std::cout << sm_count_ << " SMs in groups of " << granularity_ << "\n";
  RecordProperty("granularity", granularity_);
  for (const std::vector<int>& counts :
       {std::vector<int>{sm_count_ / 2, 0}, {sm_count_ / 4, sm_count_ / 3, 0}, {0, 8, 0}}) {
    std::vector<int> given;
    const Status status = Divide(counts, &given);
    ASSERT_TRUE(status.ok()) << status.message();
    std::cout << "asked for and given:";
    for (size_t lane = 0; lane < counts.size(); ++lane) {
      std::cout << " " << counts[lane] << " " << given[lane]
                << (lane + 1 < counts.size() ? "," : "");
      EXPECT_GE(given[lane], counts[lane]);
      EXPECT_LT(given[lane], sm_count_);
      if (counts[lane] > 0) {
        EXPECT_LT(given[lane], counts[lane] + granularity_);
      }
    }
    std::cout << "\n";
  }
}

TEST_F(PartitionGpuTest, RefusesMoreThanThereIs) {
  std::vector<int> given;
  EXPECT_EQ(Divide({sm_count_, sm_count_}, &given).code(), StatusCode::kUnsupported);
}

TEST_F(PartitionGpuTest, AStageOnAPartitionIsRight) {
  const size_t refusals = ReadCounters().refused_lane_options.size();
  ExpectStageIsRight({{0, sm_count_ / 2}, {0, sm_count_ / 4}, {0, 0}});
  EXPECT_EQ(ReadCounters().refused_lane_options.size(), refusals);
}

TEST_F(PartitionGpuTest, AStageWithPrioritiesIsRight) {
  const size_t refusals = ReadCounters().refused_lane_options.size();
  ExpectStageIsRight({{-100, 0}, {-1, 0}, {100, 0}});
  ExpectStageIsRight({{-100, sm_count_ / 2}, {0, 0}, {-1, 0}});
  EXPECT_EQ(ReadCounters().refused_lane_options.size(), refusals);
}

TEST_F(PartitionGpuTest, AStageWhosePartitionDoesNotFitIsRight) {
  const size_t refusals = ReadCounters().refused_lane_options.size();
  ExpectStageIsRight({{0, sm_count_}, {0, sm_count_}});
  EXPECT_EQ(ReadCounters().refused_lane_options.size(), refusals + 1);
}

}  // namespace
}  // namespace tf_interop
