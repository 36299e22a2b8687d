// Thousands of stages with changing shapes from two threads: memory does not grow.
#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/ladder.h"
#include "cc_kernels/core/lru_cache.h"
#include "tests/cc/stage_fixture.h"
#include "tests/cc/threads.h"

namespace tf_interop {
namespace {

// One program's stages, of which no two in a row have one shape; some have no memory, and their
// pins do not exist now and then.
class Program {
 public:
  explicit Program(HostBackend* backend) : backend_(backend), caller_(NewCaller()) {}

  void Run(int round) {
    std::vector<Convolution> cs;
    std::vector<int64_t> signature;
    for (int lane = 0; lane < 2 + round % 5; ++lane) {
      cs.push_back(MakePointwise(1 + (round * 7 + lane) % 97, 1 + round % 3));
      signature.insert(signature.end(), {cs[lane].image_width, round % 3, round % 11});
    }
    const std::string pin = round % 11 == 0 ? "NONE_" + std::to_string(round) : "BUFFERED";
    const Stage stage = SideBySide(cs, pin);
    const PrepareOptions options = {~size_t{0}, round % 50 != 0, round % 70 == 0};
    std::shared_ptr<const PreparedStage> prepared = cache_.Find(signature).value_or(nullptr);
    if (prepared == nullptr) {
      prepared = cache_.Insert(signature,
                               std::make_shared<PreparedStage>(Prepared(backend_, stage, options)));
    }
    for (const std::string& reason : prepared->fallbacks) CountFallback("pin", reason);
    Problem problem(stage);
    StageBuffers buffers = problem.Bind({});
    LadderCalls calls;
    calls.get_workspaces = [&](const std::vector<size_t>& bytes, bool is_last,
                               std::vector<void*>* places) {
      if (round % 13 == 0 && !is_last) return false;
      *places = problem.NewWorkspaces(bytes);
      return true;
    };
    LesserStage lesser;
    const PreparedStage* ran = prepared.get();
    if (!calls.get_workspaces(ran->lane_workspace_bytes, false, &buffers.lane_workspaces)) {
      EXPECT_TRUE(IsOk(DescendForMemory(backend_, stage, options, *ran, calls, &lesser)));
      ran = &lesser.stage;
      buffers.lane_workspaces = lesser.lane_workspaces;
    }
    EXPECT_TRUE(IsOk(RunOrDescend(backend_, stage, options, *ran, buffers, caller_.get(), calls)));
    caller_->Synchronize();
    problem.ExpectCorrect();
  }

 private:
  HostBackend* const backend_;
  std::unique_ptr<HostStream> caller_;
  LruCache<std::vector<int64_t>, std::shared_ptr<const PreparedStage>> cache_{8};
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
  HostBackend backend;
  const auto drive_two = [&backend](int first, int rounds) {
    InThreads(2, [&](int thread) {
      Program program(&backend);
      for (int round = 0; round < rounds; ++round) program.Run(first + thread * 100000 + round);
    });
  };
  // All tables of reasons are full, and the pool has its threads.
  drive_two(0, kRounds / 2);
  const size_t before = BytesInUse();
  drive_two(kRounds, kRounds);
  const size_t after = BytesInUse();
  // Arenas, thread stacks' bookkeeping and free lists move by some KiB; 8,000 stages that each left
  // a few bytes behind come to more.
  if (kCountsMemory) {
    EXPECT_LT(after, before + 64 * 1024);
  }
}

}  // namespace
}  // namespace tf_interop
