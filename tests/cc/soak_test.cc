// Thousands of stages with changing shapes from two threads: memory does not grow.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cc_kernels/core/ladder.h"
#include "cc_kernels/core/stage_cache.h"
#include "tests/cc/stage_fixture.h"

namespace tf_interop {
namespace {

// Filters of ones: every element of the result is as many as the image has channels.
Convolution PointwiseOf(int64_t batch, int64_t channels) {
  Convolution c;
  c.dtype = DataType::kFloat;
  c.batch = batch;
  c.image_height = c.output_height = 2;
  c.image_width = c.output_width = 3;
  c.image_channels = channels;
  c.output_channels = 2;
  c.filter_height = c.filter_width = 1;
  return c;
}

// One program's stages, of which no two in a row have one shape; some have no memory, some a step
// that fails, and their pins do not exist now and then.
class Program {
 public:
  explicit Program(HostBackend* backend) : backend_(backend), caller_(NewCaller()) {}

  // Returns how many elements were wrong.
  int Run(int round) {
    const int lanes = 2 + round % 5;
    Stage stage;
    StageBuffers buffers;
    std::vector<std::vector<float>> images, filters, results;
    std::vector<int64_t> signature;
    for (int lane = 0; lane < lanes; ++lane) {
      const Convolution c = PointwiseOf(1 + (round * 7 + lane) % 97, 1 + round % 3);
      const std::string pin = round % 11 == 0 ? "NONE_" + std::to_string(round) : "IM2COL_GEMM";
      stage.steps.push_back(
          {"step_" + std::to_string(round) + "_" + std::to_string(lane), c, pin, nullptr});
      stage.lanes.push_back({{static_cast<size_t>(lane)}});
      images.emplace_back(c.image_elements(), 1.0f);
      filters.emplace_back(c.filter_elements(), 1.0f);
      results.emplace_back(c.output_elements(), -1.0f);
      buffers.steps.push_back(
          {{images[lane].data(), filters[lane].data(), nullptr}, results[lane].data()});
      signature.insert(signature.end(), {c.batch, c.image_channels, round % 11});
    }
    const PrepareOptions options = {~size_t{0}, round % 50 != 0, round % 70 == 0};
    std::shared_ptr<const PreparedStage> prepared = cache_.Find(signature);
    if (prepared == nullptr) {
      prepared = cache_.Insert(signature,
                               std::make_shared<PreparedStage>(Prepared(backend_, stage, options)));
    }
    for (const std::string& reason : prepared->fallbacks) CountFallback("pin", reason);
    std::vector<std::vector<char>> workspaces;
    const bool has_memory = round % 13 != 0;
    LadderCalls calls;
    calls.get_workspaces = [&](const std::vector<size_t>& bytes, bool is_last,
                               std::vector<void*>* places) {
      if (!has_memory && !is_last) return false;
      workspaces.clear(), places->clear();
      for (const size_t each : bytes) places->push_back(workspaces.emplace_back(each).data());
      return true;
    };
    LesserStage lesser;
    const PreparedStage* ran = prepared.get();
    if (!calls.get_workspaces(ran->lane_workspace_bytes, false, &buffers.lane_workspaces)) {
      EXPECT_TRUE(DescendForMemory(backend_, stage, options, *ran, calls, &lesser).ok());
      ran = &lesser.stage;
      buffers.lane_workspaces = lesser.lane_workspaces;
    }
    const Status status =
        RunOrDescend(backend_, stage, options, *ran, buffers, caller_.get(), calls);
    EXPECT_TRUE(status.ok()) << status.message();
    caller_->Synchronize();
    int wrong = 0;
    for (const auto& result : results) {
      for (const float value : result) wrong += value != static_cast<float>(1 + round % 3);
    }
    return wrong;
  }

 private:
  HostBackend* const backend_;
  std::unique_ptr<HostStream> caller_;
  StageCache<PreparedStage> cache_;
};

size_t BytesInUse() { return mallinfo2().uordblks; }

// Sanitizers have allocators of their own, which mallinfo2 knows nothing of.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kRounds = 300;
constexpr bool kCountsMemory = false;
#else
constexpr int kRounds = 4000;
constexpr bool kCountsMemory = true;
#endif

TEST(SoakTest, ThousandsOfStagesWithChangingShapesLeaveNothingBehind) {
  HostBackend backend(SerialFor);
  std::atomic<int> wrong{0};
  const auto drive = [&](int first, int rounds) {
    Program program(&backend);
    for (int round = first; round < first + rounds; ++round) wrong += program.Run(round);
  };
  const auto drive_two = [&](int first, int rounds) {
    std::thread one(drive, first, rounds), other(drive, first + 100000, rounds);
    one.join();
    other.join();
  };
  // All tables of reasons are full, and the pool has its threads.
  drive_two(0, kRounds / 2);
  const size_t before = BytesInUse();
  drive_two(kRounds, kRounds);
  const size_t after = BytesInUse();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(ReadCounters().fallbacks.size(), kMostReasons + 2u);
  // Arenas, thread stacks' bookkeeping and free lists move by some KiB; 8,000 stages that each left
  // a few bytes behind come to more.
  if (kCountsMemory) {
    EXPECT_LT(after, before + 64 * 1024);
  }
}

}  // namespace
}  // namespace tf_interop
